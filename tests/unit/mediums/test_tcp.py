"""TCP under the suite for all mediums, and who may write and read what."""

from __future__ import annotations

import threading
import time

import pytest

pytest.register_assert_rewrite("entrepot.testing")

from entrepot.errors import (  # noqa: E402
    Fenced,
    MediumError,
    MediumGone,
    ProductTooLarge,
    SlotOutOfRange,
)
from entrepot.mediums import Medium, TCPMedium, attach  # noqa: E402
from entrepot.mediums.buffers import checksum_of  # noqa: E402
from entrepot.mediums.receipt import Receipt  # noqa: E402
from entrepot.mediums.tcp_wire import (  # noqa: E402
    BUSY,
    FENCED,
    OFFER,
    OK,
    OUT_OF_RANGE,
    WRITE,
)
from entrepot.testing import MediumContract  # noqa: E402
from tests.unit.mediums.places import place  # noqa: E402
from tests.unit.mediums.tcp_ends import (  # noqa: E402
    LIMIT_S,
    Clock,
    RawSupplier,
    lines_of,
    slot,
    tcp,
    token_of,
    until,
)


class TestTCPMedium(MediumContract):
    bad_places = (
        *MediumContract.bad_places,
        "127.0.0.1",
        "127.0.0.1:7",
        "127.0.0.1:7/",
        "127.0.0.1:0/" + "0" * 32,
        "127.0.0.1:65536/" + "0" * 32,
        "127.0.0.1:7/" + "0" * 31,
        "127.0.0.1:7/" + "0" * 33,
        "127.0.0.1:7/" + "A" * 32,
        "127.0.0.1:7/" + "0" * 32 + "\n",
        "-x:7/" + "0" * 32,
        "a b:7/" + "0" * 32,
        "::1:7/" + "0" * 32,
        ":7/" + "0" * 32,
    )

    def make(self, slot_nbytes: int, slots: int, *, poison: bool = False) -> TCPMedium:
        return TCPMedium.create(slot_nbytes, slots, poison=poison)


def busy(medium: TCPMedium) -> bool:
    """Whether a supplier writes or reads, or waits to."""
    return any(line.busy.locked() for line in list(medium._owner_end._lines))


def until_done(receipt: Receipt) -> None:
    while not receipt.done:
        receipt.post.wait()
    assert receipt.error is None


# --- who may ----------------------------------------------------------------------------


def test_addresses_are_of_128_random_bits() -> None:
    with tcp() as medium:
        tokens = {token_of(slot(medium)) for _ in range(200)}
    assert len(tokens) == 200
    assert all(len(token) == 16 for token in tokens)
    ones = sum(bin(int.from_bytes(token, "big")).count("1") for token in tokens)
    assert 0.45 < ones / (200 * 128) < 0.55


def test_an_order_writes_its_own_slot_and_no_other() -> None:
    with tcp() as medium, attach(slot(medium, 1)) as supplier:
        before = slot(medium, 0)
        for offset, limit in ((0, 64), (64, 65), (63, 1), (100, 64), (0, 128)):
            with pytest.raises(SlotOutOfRange):
                supplier.write(offset, b"x", limit, lease=1)
            with pytest.raises(SlotOutOfRange):
                supplier.read(offset, limit)
        # Nor when the supplier's own checks are left out.
        with RawSupplier(medium).line(before) as raw:
            raw.ask(OFFER, before, offset=64, limit=64, nbytes=1)
            status, sentence = raw.answer()
            assert (status, b"not within" in sentence) == (OUT_OF_RANGE, True)
        assert medium.read(0, 128) == bytes(128)


def test_an_address_that_nobody_was_given_leads_nowhere() -> None:
    with tcp() as medium, attach(slot(medium)) as supplier:
        guess = f"{medium.address}/{'0' * 32}"
        with pytest.raises(MediumGone, match="no order's any more"):
            attach(guess)
        with pytest.raises(Fenced, match="no order's any more"):
            supplier.at(guess).write(0, b"x", 64)
        with pytest.raises(Fenced):
            supplier.at(guess).read(0, 1)
        with pytest.raises(MediumGone):
            attach(f"{medium.address}/{'f' * 32}")
        assert medium.read(0, 64) == bytes(64)


def test_another_mediums_address_leads_nowhere() -> None:
    with tcp() as medium, tcp() as other, pytest.raises(MediumGone):
        attach(f"{other.address}/{slot(medium)[-32:]}")


def test_an_input_is_read_and_not_written_and_a_slot_written_and_not_read() -> None:
    with tcp() as medium:
        medium.write(0, b"input")
        given = medium.grant(0, 5, readonly=True)
        with attach(given) as supplier:
            assert supplier.read(0, 5) == b"input"
            assert supplier.view(1, 3).tobytes() == b"npu"
            for offset, nbytes in ((0, 6), (5, 1), (64, 1)):
                with pytest.raises(SlotOutOfRange):
                    supplier.read(offset, nbytes)
            with pytest.raises(Fenced, match="to be read"):
                supplier.write(0, b"x", 5)
        order = slot(medium, 1)
        with attach(order) as supplier, pytest.raises(Fenced, match="to be written"):
            supplier.read(64, 5)
        assert medium.read(0, 69) == b"input" + bytes(64)


def test_a_late_writer_is_refused_and_told_why() -> None:
    """A supplier that was thought dead: its order has moved, to another address of the slot."""
    with tcp() as medium, attach(slot(medium)) as zombie:
        with attach(slot(medium)) as heir:
            with pytest.raises(Fenced, match="ended, or moved"):
                zombie.write(0, b"z" * 64, 64, lease=1)
            heir.write(0, b"h" * 64, 64, lease=2)
            with pytest.raises(Fenced):
                zombie.write_checksummed(0, b"z" * 64, 64, lease=1)
        assert medium.read(0, 64) == b"h" * 64
        assert medium.written(0) == 2
        medium.revoke(0)
        with pytest.raises(Fenced):
            zombie.write(0, b"z" * 64, 64, lease=1)
        assert medium.written(0) == 2


def test_a_lease_that_was_overtaken_is_refused() -> None:
    """The owner hears of leases from writes alone: the newest has the slot."""
    with tcp() as medium, attach(slot(medium)) as supplier:
        supplier.write(0, b"1" * 64, 64, lease=1)
        supplier.write(0, b"2" * 64, 64, lease=2)
        with pytest.raises(Fenced, match="another lease"):
            supplier.write(0, b"1" * 64, 64, lease=1)
        assert medium.read(0, 64) == b"2" * 64
        assert medium.written(0) == 2


def test_who_wrote_is_known_by_lease() -> None:
    with tcp() as medium, attach(slot(medium)) as supplier:
        assert medium.written(0) == 0
        supplier.write(0, b"x", 64, lease=2**64 - 1)
        assert medium.written(0) == 2**64 - 1
        assert medium.written(medium.offset(1)) == 0
        medium.revoke(0)
        assert medium.written(0) == 2**64 - 1
        slot(medium)
        assert medium.written(0) == 0


# --- who is writing just then -----------------------------------------------------------


def test_taking_back_stops_who_is_writing() -> None:
    """On return nothing of it changes the slot any more, though more is sent and sent."""
    nbytes = 8 << 20
    with tcp(nbytes, 1) as medium:
        order = slot(medium)
        with RawSupplier(medium).line(order) as zombie:
            zombie.offer(order, nbytes)
            zombie.sock.sendall(b"z" * (nbytes // 2))
            until(lambda: medium.read(nbytes // 4, 1) == b"z")
            pushing = threading.Thread(target=zombie.push, args=(b"z" * (nbytes // 2),))
            pushing.start()
            medium.revoke(0)
            after = medium.checksum(0, nbytes)
            pushing.join()
            assert medium.checksum(0, nbytes) == after
            assert medium.written(0) == 0
            zombie.wait_hung_up()


def test_taking_back_waits_until_the_writer_has_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    with tcp() as medium:
        order = slot(medium)
        with RawSupplier(medium).line(order) as raw:
            raw.offer(order, 64)
            (line,) = medium._owner_end._lines
            monkeypatch.setattr(line, "hang_up", lambda: None)  # it does not hear of it yet
            taking = threading.Thread(target=medium.revoke, args=(0,))
            taking.start()
            taking.join(0.3)
            assert taking.is_alive()
            raw.sock.sendall(bytes(64))
            taking.join(LIMIT_S)
            assert not taking.is_alive()
            assert raw.answer()[0] == FENCED
            assert medium.written(0) == 0


def test_granting_anew_stops_who_is_writing() -> None:
    nbytes = 4 << 20
    with tcp(nbytes, 1) as medium:
        order = slot(medium)
        with RawSupplier(medium).line(order) as zombie:
            zombie.offer(order, nbytes)
            zombie.sock.sendall(b"z" * 1000)
            until(lambda: medium.read(999, 1) == b"z")
            with attach(slot(medium)) as heir:
                zombie.push(b"z" * nbytes)
                heir.write(0, b"h" * nbytes, nbytes, lease=2)
                zombie.push(b"z" * nbytes)
                assert medium.read(0, nbytes) == b"h" * nbytes
                assert medium.written(0) == 2


def test_the_next_lease_stops_who_is_writing() -> None:
    """One writer a slot: the owner was not told that the first is dead, but another has begun."""
    nbytes = 4 << 20
    with tcp(nbytes, 1) as medium:
        order = slot(medium)
        with RawSupplier(medium).line(order) as zombie, attach(order) as heir:
            zombie.offer(order, nbytes, lease=1)
            zombie.sock.sendall(b"z" * 1000)
            until(lambda: medium.read(999, 1) == b"z")
            heir.write(0, b"h" * nbytes, nbytes, lease=2)
            zombie.push(b"z" * nbytes)
            assert medium.read(0, nbytes) == b"h" * nbytes
            assert medium.written(0) == 2
            with pytest.raises(Fenced, match="another lease"):
                heir.write(0, b"z", nbytes, lease=1)


def test_a_write_that_breaks_off_is_none() -> None:
    with tcp() as medium:
        order = slot(medium)
        with attach(order) as supplier:
            supplier.write(0, b"x" * 64, 64, lease=1)
            with RawSupplier(medium).line(order) as raw:
                raw.offer(order, 64, lease=2)
                assert medium.written(0) == 0
                raw.sock.sendall(b"y" * 32)
            until(lambda: lines_of(medium) == 1)
            assert medium.written(0) == 0
            supplier.write(0, b"z" * 64, 64, lease=3)
            assert medium.written(0) == 3


def test_taking_an_input_back_stops_who_is_reading() -> None:
    """What comes into that slot next is not for who reads the input of an order that ended."""
    nbytes = 64 << 20
    with tcp(nbytes, 1) as medium:
        medium.view(0, nbytes, writable=True)[:] = b"o" * nbytes
        given = medium.grant(0, nbytes, readonly=True)
        with RawSupplier(medium).line(given) as zombie:
            zombie.read(given, 0, nbytes)
            zombie.receive(1000)
            medium.revoke(0)
            medium.view(0, nbytes, writable=True)[:] = b"n" * nbytes
            said = zombie.wait_hung_up()
            assert len(said) < nbytes
            assert b"n" not in said


def test_who_reads_an_input_before_it_is_written_waits_for_it() -> None:
    nbytes = 100_000
    with tcp(nbytes, 2) as medium:
        given = medium.grant_ahead(0, nbytes)
        with RawSupplier(medium).line(given) as early:
            early.read(given, 0, nbytes)
            until(lambda: busy(medium))
            medium.write(0, b"i" * nbytes)
            early.sock.settimeout(0.2)
            with pytest.raises(TimeoutError):
                early.sock.recv(1)
            early.sock.settimeout(LIMIT_S)
            medium.filled(0)
            assert early.answer() == (OK, b"i" * nbytes)
            early.read(given, 0, 3)
            assert early.answer() == (OK, b"iii")


@pytest.mark.parametrize("how", ["revoke", "grant", "close"])
def test_an_input_that_is_not_written_keeps_nobody(how: str) -> None:
    """Its order ended, its slot is another's, or its client left."""
    with tcp(64, 1) as medium:
        given = medium.grant_ahead(0, 64)
        with RawSupplier(medium).line(given) as waiting:
            waiting.read(given, 0, 64)
            until(lambda: busy(medium))
            began = time.monotonic()
            {
                "revoke": lambda: medium.revoke(0),
                "grant": lambda: medium.grant(0, 64, readonly=True),
                "close": medium.close,
            }[how]()
            assert time.monotonic() - began < 5
            said = waiting.wait_hung_up()
            assert OK not in said[:1]


def test_an_input_that_is_not_written_is_not_waited_for_without_end() -> None:
    with tcp(64, 1, timeout_s=0.3) as medium:
        clock = Clock(medium)
        given = medium.grant_ahead(0, 64)
        with RawSupplier(medium).line(given) as waiting:
            clock.go()
            waiting.read(given, 0, 64)
            status, sentence = waiting.answer()
            assert (status, b"not written within 0.3 s" in sentence) == (BUSY, True)
            Clock(medium)
            medium.filled(0)
            waiting.read(given, 0, 64)
            assert waiting.answer() == (OK, bytes(64))


@pytest.mark.parametrize("nbytes", [9_000, 300_000, 3 << 20, 5 << 20])
def test_the_checksum_of_what_was_written_is_that_of_what_is_there(nbytes: int) -> None:
    with tcp(nbytes, 2) as medium, attach(slot(medium, 1)) as supplier:
        start = medium.offset(1)
        for letter in (b"a", b"b"):
            supplier.write(start, letter * nbytes, nbytes, lease=1)
            assert medium.checksum_written(start, nbytes) == checksum_of(letter * nbytes)
        until(lambda: not busy(medium))
        supplier.write(start, b"c" * 20_000, nbytes, lease=1) if nbytes > 20_000 else None
        there = medium.read(start, nbytes)
        assert medium.checksum_written(start, nbytes) == checksum_of(there)


def test_a_write_comes_into_the_memory_that_was_aimed_at() -> None:
    nbytes = 300_000
    with tcp(nbytes, 2) as medium:
        order = slot(medium, 1)
        start = medium.offset(1)
        memory = bytearray(b"m" * 200_000)
        medium.aim(start, memoryview(memory))
        with attach(order) as supplier:
            for letter, more in ((b"a", 0), (b"b", -1), (b"c", 1), (b"d", 0)):
                size = len(memory) + more
                data = letter * size
                supplier.write(start, data, nbytes, lease=1)
                landed = medium.landed(start)
                assert (landed is not None) == (size == len(memory))
                assert medium.read(start, size) == medium.view(start, size) == data
                assert medium.checksum(start, size) == checksum_of(data)
                assert medium.checksum_written(start, size) == checksum_of(data)
            assert memory == b"d" * 200_000
            medium.revoke(start)
            assert medium.view(start, 5).tobytes() == b"ddddd"
            medium.released(1)
            assert medium.view(start, 5).tobytes() == b"ccccc"


def test_who_was_stopped_writes_no_more_to_memory_that_was_aimed_at() -> None:
    nbytes = 1 << 20
    with tcp(nbytes, 1) as medium:
        order = slot(medium)
        memory = bytearray(nbytes)
        medium.aim(0, memoryview(memory))
        with RawSupplier(medium).line(order) as zombie:
            zombie.ask(WRITE, order, lease=1, nbytes=nbytes)
            zombie.push(b"z" * (nbytes // 2))
            until(lambda: memory[nbytes // 4])
            medium.revoke(0)
            memory[:] = bytes(nbytes)  # it is its owner's again
            zombie.push(b"z" * (nbytes // 2))
            zombie.wait_hung_up()
            assert memory == bytes(nbytes)
            assert medium.landed(0) is None


def test_a_product_in_parts_is_one() -> None:
    parts = [b"head", b"", b"x" * 5_000_000, b"tail" * 3000]
    flat = [memoryview(part) for part in parts]
    whole = b"".join(parts)
    with tcp(len(whole), 2) as medium:
        with attach(slot(medium)) as supplier:
            made = supplier.write_parts(0, flat, len(whole), lease=1)
            assert (made, medium.read(0, len(whole))) == (checksum_of(whole), whole)
            with pytest.raises(ProductTooLarge):
                supplier.write_parts(0, [*flat, memoryview(b"x")], len(whole), lease=1)
        start = medium.offset(1)
        for several in (flat, flat[:2], flat[3:], []):
            whole = b"".join(several)
            with attach(slot(medium, 1)) as supplier:
                small = [memoryview(bytearray(part)) for part in several]
                made, receipt = supplier.post_parts(start, small, medium.slot_nbytes, lease=1)
                for part in small:
                    part[:] = bytes(len(part))  # the function's own, once it was posted
                if receipt is not None:
                    until_done(receipt)
                assert (made, medium.read(start, len(whole))) == (checksum_of(whole), whole)


def test_memory_of_an_input_is_used_again_and_never_while_somebody_looks() -> None:
    nbytes = 200_000
    with tcp(nbytes, 1) as medium:
        medium.write(0, b"1" * nbytes)
        with attach(medium.grant(0, nbytes, readonly=True)) as supplier:
            first = supplier.view(0, nbytes)
            medium.write(0, b"2" * nbytes)
            second = supplier.view(0, nbytes)
            assert first == b"1" * nbytes
            assert second == b"2" * nbytes
            again = place(first)
            del first
            medium.write(0, b"3" * nbytes)
            third = supplier.view(0, nbytes)
            assert place(third) == again
            assert second == b"2" * nbytes
            assert third == b"3" * nbytes


def test_rights_come_and_go_while_suppliers_write() -> None:
    """Whoever holds the slot is alone in it, whatever else is sent at it."""
    nbytes = 300_000
    with tcp(nbytes, 1) as medium:
        done = threading.Event()
        newest = [slot(medium)]
        refusals = [0, 0, 0]

        def supply(number: int) -> None:
            lease = number * 1_000_000
            held: Medium | None = None
            while not done.is_set():
                address = newest[0]
                lease += 1
                try:
                    if held is None:
                        held = attach(address)
                    data = lease.to_bytes(4, "big") * (nbytes // 4)
                    held.at(address).write(0, data, nbytes, lease=lease)
                except MediumError:
                    refusals[number] += 1
            if held is not None:
                held.close()

        threads = [threading.Thread(target=supply, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        served = 0
        deadline = time.monotonic() + 3 * LIMIT_S  # four threads, beside other tests
        while served < 150 or not all(refusals):
            assert time.monotonic() < deadline, (served, refusals)
            if not medium.written(0):
                continue
            medium.revoke(0)
            lease = medium.written(0)
            if lease:
                product = medium.view(0, nbytes).tobytes()
                assert medium.checksum_written(0, nbytes) == checksum_of(product)
                assert product == lease.to_bytes(4, "big") * (nbytes // 4)
                time.sleep(0.0005)  # somebody looks at it for a while
                assert medium.view(0, nbytes) == product
                served += 1
            newest[0] = slot(medium)
        done.set()
        for thread in threads:
            thread.join()
