"""Writes that are acknowledged later: each ends as it would have ended alone, whatever happens."""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from entrepot.errors import (
    Fenced,
    MediumError,
    MediumGone,
    MediumTimeout,
    ProductTooLarge,
    SlotOutOfRange,
)
from entrepot.mediums import Medium, TCPMedium, attach
from entrepot.mediums.receipt import Receipt
from entrepot.mediums.tcp_post import UNDER_WAY_NBYTES
from entrepot.mediums.tcp_wire import (
    ANSWER,
    ANSWER_OK,
    CHECK,
    EAGER_NBYTES,
    FENCED,
    GRANTED,
    GREETING,
    OK,
    REQUEST,
    ROW,
    ROW_NBYTES,
    ROW_WRITES,
    WRITE,
)
from tests.unit.mediums.tcp_ends import (
    LIMIT_S,
    PlayedOwner,
    lines_of,
    raw_owner,
    run,
    short,
    slot,
    tcp,
    until,
)


def finish(receipts: list[Receipt]) -> list[Exception | None]:
    """Wait for all of them; what each says."""
    for receipt in receipts:
        while not receipt.done:
            receipt.post.wait()
    return [receipt.error for receipt in receipts]


def put(supplier: Medium, offset: int, data: bytes | bytearray, *, lease: int = 1) -> Receipt:
    """One that is under way."""
    checksum, receipt = supplier.post(offset, data, max(64, len(data)), lease=lease)
    assert checksum == xxhash.xxh3_64_intdigest(data)
    assert receipt is not None
    return receipt


def is_done(receipt: Receipt) -> bool:
    """By what the owner has said so far."""
    receipt.post.look()
    return receipt.done


# --- what arrives -----------------------------------------------------------------------


def test_nothing_goes_before_it_is_pushed_and_then_all_of_it_does() -> None:
    with tcp(64, 3) as medium, attach(slot(medium)) as supplier:
        orders = [slot(medium, number) for number in range(3)]
        receipts = [
            put(supplier.at(order), 64 * number, bytes([number + 1]) * 64, lease=number + 5)
            for number, order in enumerate(orders)
        ]
        post = receipts[0].post
        assert post.under_way == 3
        assert not any(receipt.done for receipt in receipts)
        assert medium.read(0, 192) == bytes(192)
        assert finish(receipts) == [None, None, None]
        assert medium.read(0, 192) == b"\1" * 64 + b"\2" * 64 + b"\3" * 64
        assert [medium.written(64 * number) for number in range(3)] == [5, 6, 7]
        assert post.under_way == 0
        assert lines_of(medium) == 1


def test_a_receipt_is_done_without_waiting_once_the_owner_has_answered() -> None:
    with tcp(64, 1) as medium, attach(slot(medium)) as supplier:
        receipt = put(supplier, 0, b"x")
        receipt.post.push()
        until(lambda: is_done(receipt))
        assert receipt.error is None
        assert medium.written(0) == 1


def test_what_is_changed_after_it_was_posted_is_not_what_is_written() -> None:
    with tcp(64, 1) as medium, attach(slot(medium)) as supplier:
        data = bytearray(b"good" * 16)
        receipt = put(supplier, 0, data)
        data[:] = b"bad!" * 16
        assert finish([receipt]) == [None]
        assert medium.read(0, 64) == b"good" * 16


def test_more_than_fits_in_a_row_goes_in_several() -> None:
    count = 2 * ROW_WRITES + 3
    with tcp(64, count) as medium, attach(slot(medium)) as supplier:
        receipts = [
            put(supplier.at(slot(medium, number)), 64 * number, bytes([number]) * 64)
            for number in range(count)
        ]
        assert finish(receipts) == [None] * count
        for number in range(count):
            assert medium.read(64 * number, 64) == bytes([number]) * 64


@pytest.mark.parametrize("nbytes", [0, ROW_NBYTES // 2 + 1, ROW_NBYTES])
def test_those_that_fill_a_row_go_by_themselves(nbytes: int) -> None:
    with tcp(nbytes or 64, 6) as medium, attach(slot(medium)) as supplier:
        offsets = [medium.offset(number) for number in range(6)]
        receipts = [
            put(supplier.at(slot(medium, number)), offset, bytes([number + 1]) * nbytes)
            for number, offset in enumerate(offsets)
        ]
        assert finish(receipts) == [None] * 6
        for number, offset in enumerate(offsets):
            assert medium.read(offset, nbytes) == bytes([number + 1]) * nbytes


def test_one_that_is_larger_still_is_written_at_once_and_the_others_are_sent_before() -> None:
    nbytes = EAGER_NBYTES + 1
    with tcp(nbytes, 2) as medium, attach(slot(medium)) as supplier:
        first = put(supplier, 0, b"first")
        data = os.urandom(nbytes)
        offset = medium.offset(1)
        checksum, receipt = supplier.at(slot(medium, 1)).post(offset, data, nbytes, lease=3)
        assert (checksum, receipt) == (xxhash.xxh3_64_intdigest(data), None)
        assert medium.written(offset) == 3
        assert medium.read(offset, nbytes) == data
        until(lambda: is_done(first))
        assert first.error is None


@pytest.mark.parametrize("nbytes", [ROW_NBYTES + 1, (3 << 20) + 7, 8 << 20])
def test_what_is_too_large_for_a_row_is_under_way_as_well(nbytes: int) -> None:
    """It has left when the call returns, and the next leaves before it is acknowledged."""
    with (
        PlayedOwner() as owner,
        attach(owner.address(0), settings=short(tcp_timeout_s=LIMIT_S)) as supplier,
    ):
        first, second = os.urandom(nbytes), bytearray(os.urandom(nbytes))
        receipts = []
        for number, data in ((1, first), (2, second)):
            checksum, receipt = supplier.at(owner.address(number)).post(
                0, data, nbytes, lease=number, final=True
            )
            assert checksum == xxhash.xxh3_64_intdigest(data)
            assert receipt is not None
            receipts.append(receipt)
        until(lambda: len(owner.heard) == 2)
        assert owner.heard == [(1, 1, first), (2, 2, second)]
        assert not any(map(is_done, receipts))
        owner.say(ANSWER_OK)
        until(lambda: is_done(receipts[0]))
        assert not is_done(receipts[1])
        owner.say(ANSWER_OK)
        assert finish(receipts) == [None, None]


def test_a_large_one_that_may_be_changed_is_waited_for() -> None:
    nbytes = ROW_NBYTES + 1
    with tcp(nbytes, 1) as medium, attach(slot(medium)) as supplier:
        data = bytearray(os.urandom(nbytes))
        checksum, receipt = supplier.post(0, data, nbytes, lease=1)
        assert receipt is None
        assert checksum == xxhash.xxh3_64_intdigest(data)
        assert medium.read(0, nbytes) == data


def test_a_connection_that_breaks_in_a_large_one_is_made_anew() -> None:
    nbytes = 6 << 20
    data = os.urandom(nbytes)
    connections = 0

    def serve(sock: socket.socket) -> None:
        nonlocal connections
        connections += 1
        owner = Owner(sock)
        owner.greet()
        if connections == 1:
            owner.read(REQUEST.size + (1 << 20))
            sock.close()
            return
        with until_hung_up():
            while True:
                heard.extend(owner.requests())
                sock.sendall(ANSWER_OK)

    heard: list[Heard] = []
    with raw_owner(serve) as address, attach(address, settings=short(tcp_timeout_s=5)) as supplier:
        (order,) = orders_of(supplier, 1)
        checksum, receipt = order.post(0, data, nbytes, lease=1)
        assert checksum == xxhash.xxh3_64_intdigest(data)
        assert receipt is not None
        assert finish([receipt]) == [None]
        assert heard == [(0, data)]


def test_large_ones_are_bounded_too() -> None:
    """One may be on its way while the next is sent, and the third waits."""
    nbytes = 5 << 20
    with (
        PlayedOwner() as owner,
        attach(owner.address(0), settings=short(tcp_timeout_s=LIMIT_S)) as supplier,
    ):
        receipts: list[Receipt | None] = []

        def write() -> None:
            for number in range(1, 5):
                order = supplier.at(owner.address(number))
                receipts.append(order.post(0, bytes(nbytes), nbytes, lease=1)[1])

        thread = threading.Thread(target=write)
        thread.start()
        until(lambda: len(owner.heard) == 2)
        assert len(receipts) <= 2
        for number in range(1, 5):
            until(lambda number=number: len(owner.heard) >= number)  # type: ignore[misc]
            owner.say(ANSWER_OK)
        thread.join(LIMIT_S)
        assert finish([receipt for receipt in receipts if receipt is not None]) == [None] * 4


def test_two_writes_of_one_order_keep_their_order() -> None:
    with tcp(64, 2) as medium, attach(slot(medium)) as supplier:
        receipts = [
            put(supplier, 0, b"first", lease=1),
            put(supplier, 0, b"second", lease=2),
            put(supplier, 0, b"third", lease=1),
        ]
        first, second, third = finish(receipts)
        assert (first, second) == (None, None)
        assert isinstance(third, Fenced)
        assert medium.read(0, 6) == b"second"


def test_what_cannot_fit_is_refused_at_once() -> None:
    with tcp(64, 2) as medium, attach(slot(medium, 1)) as supplier:
        with pytest.raises(ProductTooLarge, match="65 bytes"):
            supplier.post(64, bytes(65), 64)
        with pytest.raises(SlotOutOfRange):
            supplier.post(0, b"x", 64)
        with pytest.raises(SlotOutOfRange):
            supplier.post(64, b"x", 65)


def test_several_threads_post_to_one_owner() -> None:
    with tcp(64, 8) as medium, attach(slot(medium)) as supplier:
        orders = [slot(medium, number) for number in range(8)]
        ends: list[Exception | None] = []

        def write(number: int) -> None:
            own = supplier.at(orders[number])
            for lease in range(1, 30):
                ends.extend(finish([put(own, 64 * number, bytes([number]) * 64, lease=lease)]))

        threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert ends == [None] * (8 * 29)
        for number in range(8):
            assert medium.read(64 * number, 64) == bytes([number]) * 64


# --- what is refused --------------------------------------------------------------------


def test_what_is_refused_is_told_of_the_right_one() -> None:
    with tcp(64, 5) as medium, attach(slot(medium)) as supplier:
        orders = [supplier.at(slot(medium, number)) for number in range(5)]
        orders[3].write(3 * 64, b"new", 64, lease=7)
        orders[3].write(3 * 64, b"newer", 64, lease=8)
        receipts = [
            put(order, 64 * number, bytes([number + 1]) * 64, lease=7)
            for number, order in enumerate(orders)
        ]
        medium.revoke(64)
        said = finish(receipts)
        assert [error is None for error in said] == [True, False, True, False, True]
        assert isinstance(said[1], Fenced)
        assert isinstance(said[3], Fenced)
        assert "no order's any more" in str(said[1])
        assert "another lease than 0x7" in str(said[3])
        assert medium.read(64, 64) == bytes(64)
        assert medium.read(3 * 64, 5) == b"newer"
        assert lines_of(medium) == 1


def test_one_that_was_taken_back_before_there_was_a_connection() -> None:
    with tcp(64, 3) as medium, attach(slot(medium)) as supplier:
        receipts = [
            put(supplier.at(slot(medium, number)), 64 * number, b"x" * 64) for number in range(3)
        ]
        for line in list(medium._owner_end._lines):
            line.hang_up()
        until(lambda: lines_of(medium) == 0)
        supplier.gone()  # the dead connection is found, and is not kept
        medium.revoke(0)
        first, *others = finish(receipts)
        assert isinstance(first, MediumGone | Fenced)
        assert others == [None, None]
        assert medium.read(0, 192) == bytes(64) + b"x" * 128


# --- connections that break -------------------------------------------------------------

Heard = tuple[int, bytes]  # token's last byte, data


class Owner:
    """Reads what comes, and answers as it is told to."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def greet(self, status: int = OK) -> bytes:
        """The token that the connection begins with."""
        self.sock.sendall(GREETING)
        _, op, token, *_ = REQUEST.unpack(self.read(REQUEST.size))
        assert op == CHECK
        if status == OK:
            self.sock.sendall(ANSWER.pack(OK, GRANTED.size) + GRANTED.pack(0, 2**40))
        else:
            self.sock.sendall(ANSWER.pack(status, 2) + b"no")
        return bytes(token)

    def read(self, nbytes: int) -> bytes:
        data = b""
        while len(data) < nbytes:
            more = self.sock.recv(nbytes - len(data))
            if not more:
                raise ConnectionResetError
            data += more
        return data

    def requests(self) -> list[Heard]:
        """The writes of the next request."""
        head = self.read(REQUEST.size)
        _, op, _, _, _, limit, _ = REQUEST.unpack(head)
        heads = [head]
        if op == ROW:
            heads = [self.read(REQUEST.size) for _ in range(limit)]
        heard = []
        for head in heads:
            _, op, token, _, _, _, nbytes = REQUEST.unpack(head)
            assert op == WRITE
            heard.append((token[-1], nbytes))
        return [(number, self.read(nbytes)) for number, nbytes in heard]


@contextmanager
def until_hung_up() -> Iterator[None]:
    """The other end hanging up ends what is inside."""
    try:
        yield
    except ConnectionResetError:
        pass


def stall(sock: socket.socket) -> None:
    """Do nothing until the other end hangs up."""
    hangs_up = select.poll()
    hangs_up.register(sock, select.POLLRDHUP)
    hangs_up.poll(LIMIT_S * 1000)


def orders_of(supplier: Medium, count: int) -> list[Medium]:
    place = supplier.address.rpartition("/")[0]
    return [supplier.at(f"{place}/{number:032x}") for number in range(count)]


@pytest.mark.parametrize("acknowledged", [0, 1, 2, 4])
def test_what_was_not_acknowledged_is_written_again_and_nothing_else(acknowledged: int) -> None:
    heard: list[list[list[Heard]]] = []

    def serve(sock: socket.socket) -> None:
        owner = Owner(sock)
        mine: list[list[Heard]] = []
        heard.append(mine)
        owner.greet()
        if len(heard) == 1:  # attach, and then the row
            mine.append(owner.requests())
            sock.sendall(ANSWER_OK * acknowledged)
            until(lambda: go_on.is_set())
            sock.shutdown(socket.SHUT_RDWR)
            return
        with until_hung_up():
            while True:
                mine.append(owner.requests())
                sock.sendall(ANSWER_OK)

    go_on = threading.Event()
    with raw_owner(serve) as address, attach(address, settings=short(tcp_timeout_s=5)) as supplier:
        receipts = [
            put(order, 64 * number, bytes([number]) * 10)
            for number, order in enumerate(orders_of(supplier, 5))
        ]
        receipts[0].post.push()
        until(lambda: sum(map(is_done, receipts)) == acknowledged)
        go_on.set()
        assert finish(receipts) == [None] * 5
        all_five = [(number, bytes([number]) * 10) for number in range(5)]
        assert heard[0] == [all_five]
        again = [one for connection in heard[1:] for request in connection for one in request]
        assert again == all_five[acknowledged:]


def test_each_is_told_of_its_own_when_the_connection_broke() -> None:
    """The owner wants 1 and 3 no more, says so to a new connection, and takes the others."""
    connections = 0

    def serve(sock: socket.socket) -> None:
        nonlocal connections
        connections += 1
        owner = Owner(sock)
        if connections == 1:
            owner.greet()
            owner.requests()
            sock.shutdown(socket.SHUT_RDWR)
            return
        owner.greet()
        with until_hung_up():
            while True:
                for number, _ in owner.requests():
                    if number in (1, 3):
                        sock.sendall(ANSWER.pack(FENCED, 5) + b"moved")
                    else:
                        sock.sendall(ANSWER_OK)

    with raw_owner(serve) as address, attach(address, settings=short(tcp_timeout_s=5)) as supplier:
        receipts = [
            put(order, 64 * number, b"x") for number, order in enumerate(orders_of(supplier, 5))
        ]
        said = finish(receipts)
    assert [error is None for error in said] == [True, False, True, False, True]
    assert isinstance(said[1], Fenced)
    assert isinstance(said[3], Fenced)
    assert "moved" in str(said[1])


def test_an_owner_that_ended_is_told_of_each() -> None:
    medium = tcp(64, 4)
    with attach(slot(medium)) as supplier:
        receipts = [
            put(supplier.at(slot(medium, number)), 64 * number, b"x") for number in range(4)
        ]
        medium.close()
        said = finish(receipts)
        assert [type(error) for error in said] == [MediumGone] * 4
        assert receipts[0].post.under_way == 0


def test_an_owner_that_never_answers_holds_nobody() -> None:
    """One time-out for all of them, however many there are."""

    def serve(sock: socket.socket) -> None:
        owner = Owner(sock)
        owner.greet()
        owner.requests()
        sock.sendall(ANSWER_OK * 2)
        stall(sock)

    with raw_owner(serve) as address, attach(address, settings=short()) as supplier:
        receipts = [
            put(order, 64 * number, b"x") for number, order in enumerate(orders_of(supplier, 9))
        ]
        began = time.monotonic()
        said = finish(receipts)
        spent = time.monotonic() - began
        assert said[:2] == [None, None]
        assert [type(error) for error in said[2:]] == [MediumTimeout] * 7
        assert 0.4 < spent < LIMIT_S / 2


def test_an_owner_that_stalls_is_given_up_by_looking_alone() -> None:
    def serve(sock: socket.socket) -> None:
        owner = Owner(sock)
        owner.greet()
        stall(sock)

    with raw_owner(serve) as address, attach(address, settings=short()) as supplier:
        receipt = put(supplier, 0, b"x")
        receipt.post.push()
        until(lambda: is_done(receipt))
        assert isinstance(receipt.error, MediumTimeout)


@pytest.mark.parametrize(
    "answer",
    [
        ANSWER.pack(99, 0),
        ANSWER.pack(1, 0),
        ANSWER.pack(OK, 1),
        ANSWER.pack(FENCED, 1 << 60),
        ANSWER_OK * 4,
    ],
)
def test_an_answer_that_is_none_ends_the_connection(answer: bytes) -> None:
    """With a word more than was asked for, too: whatever came next would be taken for another."""

    def serve(sock: socket.socket) -> None:
        owner = Owner(sock)
        owner.greet()
        owner.requests()
        sock.sendall(answer)
        stall(sock)
        ended.set()

    ended = threading.Event()
    with raw_owner(serve) as address, attach(address, settings=short()) as supplier:
        receipts = [
            put(order, 64 * number, b"x") for number, order in enumerate(orders_of(supplier, 3))
        ]
        said = finish(receipts)
        if answer == ANSWER_OK * 4:
            assert said == [None, None, None]
        else:
            assert [type(error) for error in said] == [MediumError] * 3
            assert "not an answer" in str(said[0])
        assert ended.wait(LIMIT_S)


@settings(max_examples=40, deadline=None)
@given(
    refused=st.lists(st.booleans(), min_size=1, max_size=12),
    cuts=st.lists(st.integers(1, 60), max_size=30),
)
def test_answers_may_come_in_pieces(refused: list[bool], cuts: list[int]) -> None:
    answers = b"".join(
        ANSWER.pack(FENCED, 9 + number) + b"sentence " + b"." * number if no else ANSWER_OK
        for number, no in enumerate(refused)
    )

    def serve(sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        owner = Owner(sock)
        owner.greet()
        owner.requests()
        left = answers
        for cut in cuts:
            sock.sendall(left[:cut])
            left = left[cut:]
        sock.sendall(left)
        stall(sock)

    with raw_owner(serve) as address, attach(address, settings=short(tcp_timeout_s=5)) as supplier:
        receipts = [
            put(order, 64 * number, b"x")
            for number, order in enumerate(orders_of(supplier, len(refused)))
        ]
        for number, (error, no) in enumerate(zip(finish(receipts), refused, strict=True)):
            if no:
                assert isinstance(error, Fenced)
                assert str(error).endswith("sentence " + "." * number)
            else:
                assert error is None


# --- bounds -----------------------------------------------------------------------------


def test_a_slow_owner_slows_its_suppliers_and_takes_none_of_their_memory() -> None:
    """It takes all that comes and acknowledges nothing, until it is told to."""
    nbytes, count = ROW_NBYTES // 4, 60

    def serve(sock: socket.socket) -> None:
        owner = Owner(sock)
        owner.greet()
        owed = 0
        sock.settimeout(None)
        hears = select.poll()
        hears.register(sock, select.POLLIN)
        with until_hung_up():
            while True:
                if hears.poll(10):
                    owed += len(owner.requests())
                    taken.append(owed)
                if go_on.is_set():
                    sock.sendall(ANSWER_OK * owed)
                    owed = 0

    taken: list[int] = []
    go_on = threading.Event()
    with raw_owner(serve) as address, attach(address, settings=short(tcp_timeout_s=20)) as supplier:
        (order,) = orders_of(supplier, 1)
        data = bytes(nbytes)
        receipts: list[Receipt] = []

        def write() -> None:
            for _ in range(count):
                receipts.append(put(order, 0, data))

        thread = threading.Thread(target=write)
        thread.start()
        fits = UNDER_WAY_NBYTES // nbytes
        until(lambda: len(taken) >= fits - 1)
        assert len(receipts) <= fits + ROW_NBYTES // nbytes + 1
        go_on.set()
        thread.join(LIMIT_S)
        assert finish(receipts) == [None] * count


def test_a_connection_with_writes_under_way_is_kept() -> None:
    def serve(sock: socket.socket) -> None:
        owner = Owner(sock)
        owner.greet()
        with until_hung_up():
            answers = len(owner.requests())
            go_on.wait(LIMIT_S)
            sock.sendall(ANSWER_OK * answers)
            stall(sock)

    go_on = threading.Event()
    patient = short(tcp_timeout_s=20, tcp_idle_s=0.1)
    with raw_owner(serve) as address, attach(address, settings=patient) as supplier:
        receipt = put(supplier, 0, b"x")
        receipt.post.push()
        time.sleep(1.1)  # beyond the second for which nobody looks
        assert supplier.worth_keeping()
        go_on.set()
        assert finish([receipt]) == [None]


# --- forks ------------------------------------------------------------------------------

FORKED = """
import os
from entrepot.errors import UsedAfterFork
from entrepot.mediums import TCPMedium, attach
medium = TCPMedium.create(64, 2)
supplier = attach(medium.grant(0, 64))
other = supplier.at(medium.grant(64, 64))
_, sent = supplier.post(0, b"p" * 64, 64, lease=1)
sent.post.push()
_, gathered = other.post(64, b"p" * 64, 64, lease=1)
child = os.fork()
if not child:
    for receipt in (sent, gathered):
        receipt.post.wait()
        assert receipt.done and isinstance(receipt.error, UsedAfterFork), receipt.error
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
for receipt in (sent, gathered):
    while not receipt.done:
        receipt.post.wait()
    assert receipt.error is None, receipt.error
assert medium.read(0, 128) == b"p" * 128
print("written")
"""


def test_a_forked_child_does_not_end_its_parents_writes() -> None:
    assert run(FORKED) == "written\n"


# --- all of it at once ------------------------------------------------------------------

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 4), st.integers(0, 64)),
        st.tuples(st.just("push")),
        st.tuples(st.just("look")),
        st.tuples(st.just("wait")),
        st.tuples(st.just("revoke"), st.integers(0, 4)),
        st.tuples(st.just("hang up")),
    ),
    max_size=30,
)


@settings(max_examples=100, deadline=None)
@given(steps=STEPS)
def test_a_receipt_without_error_means_that_it_is_there(steps: list[tuple[object, ...]]) -> None:
    """Whatever is taken back, and whenever connections break: nothing else is ever said.

    Who was not taken back is always written: a connection that broke is no reason.
    """
    with ExitStack() as stack:
        medium: TCPMedium = stack.enter_context(tcp(64, 6))
        supplier = stack.enter_context(attach(slot(medium, 5)))
        orders = [supplier.at(slot(medium, number)) for number in range(5)]
        posted: dict[int, list[tuple[int, bytes, Receipt]]] = {}
        revoked: set[int] = set()
        lease = 0
        post = put(supplier, 5 * 64, b"first").post
        for step in steps:
            if step[0] == "put":
                number, nbytes = step[1], step[2]
                assert isinstance(number, int)
                assert isinstance(nbytes, int)
                lease += 1
                data = lease.to_bytes(8, "big")[: min(8, nbytes)] + bytes(max(0, nbytes - 8))
                receipt = put(orders[number], 64 * number, data, lease=lease)
                posted.setdefault(number, []).append((lease, data, receipt))
            elif step[0] == "revoke":
                number = step[1]
                assert isinstance(number, int)
                revoked.add(number)
                medium.revoke(64 * number)
            elif step[0] == "hang up":
                for line in list(medium._owner_end._lines):
                    line.hang_up()
            else:
                getattr(post, str(step[0]))()
        finish([receipt for some in posted.values() for _, _, receipt in some])
        assert post.under_way in (0, 1)
        for number, some in posted.items():
            for _, _, receipt in some:
                error = receipt.error
                assert error is None or isinstance(error, MediumGone | Fenced)
            last, data, receipt = some[-1]
            if number not in revoked:
                assert receipt.error is None
            if receipt.error is None:
                assert medium.written(64 * number) == last
                assert medium.read(64 * number, len(data)) == data
