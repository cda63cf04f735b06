"""The owner's end of TCP: strangers at its port, suppliers that stop, and its own end."""

from __future__ import annotations

import gc
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from entrepot.errors import (
    Closed,
    MediumError,
    MediumGone,
)
from entrepot.mediums import attach
from entrepot.mediums.tcp_owner import MAX_STRANGERS
from entrepot.mediums.tcp_wire import (
    CHECK,
    MAGIC,
    MALFORMED,
    OFFER,
    OK,
    REQUEST,
    REST,
    TOO_LARGE,
    WRITE,
)
from tests.unit.mediums.tcp_ends import (
    LIMIT_S,
    Clock,
    RawSupplier,
    lines_of,
    run,
    slot,
    tcp,
    token_of,
    until,
)

# --- strangers at the port --------------------------------------------------------------

GARBAGE = [
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
    b"\0" * 1000,
    bytes(range(256)) * 256,
    MAGIC + b"\xff" * 1000,
    MAGIC[:2] + b"x",
    REQUEST.pack(MAGIC, 2, bytes(16), 0, 0, 2**64 - 1, 2**63),
    REQUEST.pack(MAGIC, 99, bytes(16), 0, 0, 0, 0),
    b"x",
]


@pytest.mark.parametrize("garbage", GARBAGE, ids=range(len(GARBAGE)))
def test_garbage_is_hung_up_on_and_changes_nothing(garbage: bytes) -> None:
    with tcp() as medium, attach(slot(medium)) as supplier:
        with RawSupplier(medium).greeted() as stranger:
            stranger.push(garbage)
            said = stranger.wait_hung_up()
            assert len(said) < 200
        supplier.write(0, b"served", 64)
        assert medium.read(0, 64) == b"served" + bytes(58)
        assert lines_of(medium) == 1


@pytest.mark.parametrize("garbage", GARBAGE, ids=range(len(GARBAGE)))
def test_garbage_on_a_line_ends_that_line_alone(garbage: bytes) -> None:
    with tcp(timeout_s=0.3) as medium:
        clock = Clock(medium)
        order = slot(medium)
        with attach(slot(medium, 1)) as supplier:
            with RawSupplier(medium).line(order) as raw:
                clock.go()
                raw.push(garbage)
                raw.wait_hung_up()
            until(lambda: lines_of(medium) == 1)
            supplier.write(64, b"served", 64)
            assert medium.read(0, 64) == bytes(64)


def test_nothing_is_kept_for_what_a_request_claims() -> None:
    """An immediate write of more than may be is refused before any of it is stored."""
    with tcp() as medium:
        order = slot(medium)
        with RawSupplier(medium).line(order) as raw:
            raw.ask(WRITE, order, nbytes=2**62)
            status, _ = raw.answer()
            assert status == MALFORMED
            raw.wait_hung_up()


def test_a_refused_product_is_thrown_away_and_the_connection_goes_on() -> None:
    with tcp(64, 1) as medium:
        order = slot(medium)
        with RawSupplier(medium).line(order) as raw:
            raw.write(order, b"x" * 1000)
            status, sentence = raw.answer()
            assert (status, b"1000 bytes" in sentence) == (TOO_LARGE, True)
            raw.ask(OFFER, order, nbytes=1 << 30)
            assert raw.answer()[0] == TOO_LARGE
            raw.write(order, b"fits")
            assert raw.answer() == (OK, b"")
            assert medium.read(0, 5) == b"fits\0"


def test_requests_may_come_in_pieces_and_together() -> None:
    with tcp(slots=3) as medium:
        orders = [slot(medium, number) for number in range(3)]
        with RawSupplier(medium).line(orders[0]) as raw:
            whole = b"".join(
                REQUEST.pack(MAGIC, WRITE, token_of(order), 7, medium.offset(number), REST, 64)
                + bytes([number + 1]) * 64
                for number, order in enumerate(orders)
            )
            for step in (1, 7, 56, 57, 200, len(whole)):
                for number in range(3):
                    medium.write(medium.offset(number), bytes(64))
                for start in range(0, len(whole), step):
                    raw.sock.sendall(whole[start : start + step])
                for number in range(3):
                    assert raw.answer() == (OK, b"")
                    assert medium.read(medium.offset(number), 64) == bytes([number + 1]) * 64


def test_slow_strangers_end_and_keep_nobody_waiting() -> None:
    with tcp(timeout_s=0.5) as medium, attach(slot(medium)) as supplier:
        strangers = [RawSupplier(medium).greeted() for _ in range(10)]
        began = time.monotonic()
        head = REQUEST.pack(MAGIC, CHECK, bytes(16), 0, 0, 0, 0)
        sent = 0
        while time.monotonic() < began + 0.6:
            for stranger in strangers:
                stranger.push(head[sent : sent + 1])
            sent = min(sent + 1, 50)
            supplier.write(0, b"served", 64)
            time.sleep(0.02)
        for stranger in strangers:
            assert stranger.wait_hung_up() == b""
            stranger.close()
        assert medium.read(0, 6) == b"served"


def test_silent_strangers_make_room_for_others() -> None:
    """However many connect and say nothing, an order is served at once, without a time-out."""
    with tcp(timeout_s=60.0) as medium:
        strangers = []
        for _ in range(MAX_STRANGERS * 2):
            strangers.append(RawSupplier(medium).greeted())
        began = time.monotonic()
        with attach(slot(medium)) as supplier:
            supplier.write(0, b"served", 64)
        assert time.monotonic() - began < LIMIT_S
        assert medium.read(0, 6) == b"served"
        for number, stranger in enumerate(strangers):
            if number < MAX_STRANGERS:
                assert stranger.wait_hung_up() == b""
            stranger.close()


def test_more_suppliers_than_may_be_take_turns() -> None:
    with tcp(slots=1, max_connections=3) as medium, ExitStack() as stack:
        order = slot(medium)
        suppliers = [stack.enter_context(attach(order)) for _ in range(6)]
        for round_ in range(3):
            for number, supplier in enumerate(suppliers):
                lease = 10 * round_ + number + 1
                supplier.write(0, bytes([lease]) * 64, 64, lease=lease)
                assert medium.written(0) == lease
                until(lambda: lines_of(medium) <= 3)


def test_when_all_are_writing_another_is_told() -> None:
    with tcp(slots=2, max_connections=1) as medium:
        order = slot(medium)
        with RawSupplier(medium).line(order) as raw:
            raw.offer(order, 64)
            with pytest.raises(MediumError, match="all of them are writing"):
                attach(slot(medium, 1))
            raw.sock.sendall(bytes(64))
            assert raw.answer() == (OK, b"")
        with attach(slot(medium, 1)) as supplier:
            supplier.write(64, b"served", 64)


NO_MORE_DESCRIPTORS = """
import os, resource, select, socket
from entrepot.mediums import TCPMedium, attach
medium = TCPMedium.create(64, 1)
address = medium.grant(0, 64)
host, port = medium.address[4:].split(":")
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
taken = []
try:
    while True:
        taken.append(os.dup(0))
except OSError:
    pass
for fd in taken[-3:]:
    os.close(fd)
waiting = [socket.create_connection((host, int(port))) for _ in range(2)]
# One descriptor is left: one of them is accepted, and the other waits for a place.
heard, *more = select.select(waiting, [], [], 20)[0]
assert heard.recv(16) == b"entrepot slots 1" and not more
for fd in taken[:-3]:
    os.close(fd)
for sock in waiting:
    if sock is not heard:
        assert sock.recv(16) == b"entrepot slots 1"
    sock.close()
attach(address).write(0, b"served", 64)
assert medium.read(0, 6) == b"served"
medium.close()
"""


def test_running_out_of_descriptors_is_survived() -> None:
    run(NO_MORE_DESCRIPTORS)


# --- suppliers that stop ----------------------------------------------------------------


@pytest.mark.parametrize("op", [WRITE, OFFER])
def test_a_supplier_that_falls_silent_is_hung_up_on(op: int) -> None:
    with tcp(timeout_s=0.3) as medium:
        clock = Clock(medium)
        order = slot(medium)
        with RawSupplier(medium).line(order) as raw:
            clock.go()
            raw.ask(op, order, nbytes=64)
            raw.sock.sendall(bytes(10))
            raw.wait_hung_up()
        until(lambda: lines_of(medium) == 0)
        Clock(medium)
        with attach(order) as supplier:
            supplier.write(0, b"served", 64, lease=2)
        assert medium.written(0) == 2


def test_a_request_that_stops_in_the_middle_is_hung_up_on() -> None:
    with tcp(timeout_s=0.3) as medium:
        clock = Clock(medium)
        with RawSupplier(medium).line(slot(medium)) as raw:
            clock.go()
            raw.sock.sendall(MAGIC)
            raw.wait_hung_up()


def test_a_supplier_that_trickles_is_hung_up_on() -> None:
    with tcp(timeout_s=0.2, slowest_nbytes_s=1 << 20) as medium:
        clock = Clock(medium)
        order = slot(medium)
        with RawSupplier(medium).line(order) as raw:
            raw.offer(order, 64)
            clock.go()
            began = time.monotonic()
            while lines_of(medium):
                raw.push(b"x")
                time.sleep(0.05)
                assert time.monotonic() - began < 6.0


def test_a_supplier_that_does_not_read_is_hung_up_on() -> None:
    nbytes = 64 << 20
    with tcp(nbytes, 1, timeout_s=0.3) as medium:
        clock = Clock(medium)
        given = medium.grant(0, nbytes, readonly=True)
        with RawSupplier(medium).line(given) as raw:
            clock.go()
            raw.read(given, 0, nbytes)
            until(lambda: lines_of(medium) == 0)


def test_a_connection_that_is_not_used_ends_and_comes_back_by_itself() -> None:
    with tcp(timeout_s=0.1, idle_s=0.2) as medium:
        clock = Clock(medium)
        with attach(slot(medium)) as supplier:
            supplier.write(0, b"first", 64)
            assert lines_of(medium) == 1
            clock.go()
            until(lambda: lines_of(medium) == 0)
            Clock(medium)
            supplier.write(0, b"again", 64)
            assert medium.read(0, 5) == b"again"


# --- owners that end --------------------------------------------------------------------


def test_close_ends_a_write_and_does_not_wait_for_it() -> None:
    medium = tcp(timeout_s=60.0)
    order = slot(medium)
    with RawSupplier(medium).line(order) as raw, RawSupplier(medium).greeted():
        raw.offer(order, 64)
        raw.sock.sendall(bytes(10))
        began = time.monotonic()
        medium.close()
        assert time.monotonic() - began < 5.0
        raw.wait_hung_up()
    with pytest.raises(Closed):
        slot(medium)
    with pytest.raises(MediumGone):
        attach(order)


def test_an_owner_that_ends_is_gone_for_who_wrote_before() -> None:
    medium = tcp()
    with attach(slot(medium)) as supplier:
        supplier.write(0, b"x", 64)
        medium.close()
        with pytest.raises(MediumGone, match="nothing listens"):
            supplier.write(0, b"x", 64)
        assert supplier.gone()


def test_a_medium_that_is_dropped_leaves_no_thread() -> None:
    before = threading.active_count()
    medium = tcp()
    with attach(slot(medium)) as supplier:
        assert threading.active_count() == before + 2
        window = medium.view(0, 1)
        del medium
        gc.collect()
        assert threading.active_count() == before
        assert window.tobytes() == b"\0"
        with pytest.raises(MediumGone):
            supplier.write(0, b"x", 64)


def test_a_hundred_leave_nothing() -> None:
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    threads = threading.active_count()
    for _ in range(100):
        with tcp() as medium, attach(slot(medium)) as supplier:
            supplier.write(0, b"x", 64)
    assert threading.active_count() == threads
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors


FORKED_OWNER = """
import os, signal, socket, sys
from entrepot.errors import MediumGone, UsedAfterFork
from entrepot.mediums import TCPMedium, attach
medium = TCPMedium.create(64, 1)
supplier = attach(medium.grant(0, 64))
supplier.write(0, b"before", 64)
ready, go = os.pipe(), os.pipe()
child = os.fork()
if not child:
    os.close(go[1])
    for use in (lambda: medium.grant(0, 64), lambda: medium.read(0, 1)):
        try:
            use()
        except UsedAfterFork:
            continue
        os._exit(3)
    medium.close()
    os.write(ready[1], b"x")
    os.read(go[0], 1)
    sys.exit(0)
os.close(ready[1])
assert os.read(ready[0], 1) == b"x", "the child failed"
supplier.write(0, b"after!", 64)
assert medium.read(0, 6) == b"after!"
# The child lives, and holds neither the port nor the connection.
host, port = medium.address[4:].split(":")
raw = socket.create_connection((host, int(port)))
assert raw.recv(16) == b"entrepot slots 1"
medium.close()
assert raw.recv(1) == b""
raw.close()
try:
    supplier.write(0, b"late", 64)
    raise SystemExit("written to nobody")
except MediumGone:
    pass
os.close(go[1])
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""

FORKED_SUPPLIER = """
import os, sys
from entrepot.mediums import TCPMedium, attach
read, write = os.pipe()
owner = os.fork()
if not owner:
    medium = TCPMedium.create(64, 2)
    os.write(write, f"{medium.grant(0, 64)} {medium.grant(64, 64)}".encode())
    os.close(write)
    os.read(0, 1)
    assert medium.read(0, 64) == b"p" * 64, medium.read(0, 64)
    assert medium.read(64, 64) == b"c" * 64, medium.read(64, 64)
    os._exit(0)
mine, childs = os.read(read, 1000).decode().split()
supplier = attach(mine)
child = os.fork()
if not child:
    for _ in range(500):
        supplier.at(childs).write(64, b"c" * 64, 64)
    os._exit(0)
for _ in range(500):
    supplier.write(0, b"p" * 64, 64)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
supplier.write(0, b"p" * 64, 64)
print("written", flush=True)
os.close(1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(owner, 0)[1]))
"""


def test_a_forked_child_of_an_owner_holds_nothing_open() -> None:
    run(FORKED_OWNER)


def test_a_forked_child_of_a_supplier_has_connections_of_its_own() -> None:
    assert run(FORKED_SUPPLIER, end_input=False) == "written\n"


NO_SIGPIPE = """
import signal
from entrepot.errors import MediumGone
from entrepot.mediums import TCPMedium, attach
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
medium = TCPMedium.create(4 << 20, 1)
supplier = attach(medium.grant(0, 4 << 20))
supplier.write(0, b"x", 64)
medium.close()
for data in (b"x", bytes(4 << 20)):
    try:
        supplier.write(0, data, 4 << 20)
    except MediumGone:
        print("told")
"""


def test_no_signal_comes_of_a_connection_that_broke() -> None:
    assert run(NO_SIGPIPE) == "told\ntold\n"
