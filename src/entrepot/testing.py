"""Suites that any new medium must pass, for pytest.

::

    import pytest
    pytest.register_assert_rewrite("entrepot.testing")

    from entrepot.testing import MediumContract

    class TestMyMedium(MediumContract):
        imports = "mypackage.mymedium"  # what a new process imports to know the scheme

        def make(self, slot_nbytes, slots, *, poison=False):
            return MyMedium.create(slot_nbytes, slots, poison=poison)

pytest is needed only while the tests run, not to import this.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from array import array
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import xxhash

from entrepot.errors import (
    BadAddress,
    Closed,
    ConfigurationError,
    MediumGone,
    NotBytes,
    NotOwner,
    ProductTooLarge,
    SlotOutOfRange,
)
from entrepot.mediums.base import COPY_CHUNK_NBYTES, POISON, SLOT_ALIGNMENT, Medium
from entrepot.mediums.registry import attach

if TYPE_CHECKING:
    import pytest

PROCESS_TIMEOUT_S = 60.0
"""How long a child process of a suite may take."""

# A supplier in a process of its own: it says that it has attached, waits to be told to go on,
# writes one byte value over a whole slot again and again, and ends without closing anything.
_WRITER = """
import importlib, sys
address, offset, limit, value, times, *modules = sys.argv[1:]
for module in modules:
    importlib.import_module(module)
from entrepot.mediums import attach
medium = attach(address)
print("attached", flush=True)
sys.stdin.readline()
data = bytes([int(value)]) * int(limit)
for _ in range(int(times)):
    medium.write(int(offset), data, int(limit))
print("written", flush=True)
"""


class MediumContract:
    """What holds for every medium. Subclass it, name it ``Test...``, and give ``make``."""

    imports: str | None = None
    """A module to import in new processes, so that they know the scheme; none for ours."""

    bad_places: tuple[str, ...] = ("", "/", "..", "../x", "a/../../b", "\0", "x" * 5000, "\u20ac")
    """What may not come after ``scheme:``."""

    def make(self, slot_nbytes: int, slots: int, *, poison: bool = False) -> Medium:
        """A new medium of the class under test, owned."""
        raise NotImplementedError("give the suite a medium to test")

    def address(self, medium: Medium, slot: int, *, readonly: bool = False) -> str:
        """The address of an order for ``slot`` of ``medium``, or of an input that is there.

        It takes the place of what was given out for that slot before.
        """
        return medium.grant(medium.offset(slot), medium.slot_nbytes, readonly=readonly)

    def attached(self, medium: Medium, slot: int = 0, *, readonly: bool = False) -> Medium:
        """The supplier's side of ``medium``, in this process."""
        return attach(self.address(medium, slot, readonly=readonly))

    # --- shape --------------------------------------------------------------------------

    def test_says_its_shape(self) -> None:
        with self.make(1000, 3) as medium:
            assert (medium.slot_nbytes, medium.slots) == (1000, 3)
            assert medium.owner
            assert medium.nbytes >= 3000
            assert medium.address.startswith(f"{medium.scheme}:")

    def test_slots_lie_apart_aligned_and_inside(self) -> None:
        with self.make(1000, 5) as medium:
            offsets = [medium.offset(slot) for slot in range(5)]
            ends = [offset + 1000 for offset in offsets]
            assert all(end <= start for end, start in zip(ends, offsets[1:], strict=False))
            assert ends[-1] <= medium.nbytes
            assert all(offset % SLOT_ALIGNMENT == 0 for offset in offsets)

    def test_a_slot_that_does_not_exist(self) -> None:
        with self.make(8, 3) as medium:
            for slot in (-1, 3, 2**63, -(2**70)):
                with _raises(SlotOutOfRange, match=str(slot)):
                    medium.offset(slot)

    def test_needs_a_slot_and_a_byte(self) -> None:
        for slot_nbytes, slots in ((0, 1), (1, 0), (-1, 1), (1, -1)):
            with _raises(ConfigurationError):
                self.make(slot_nbytes, slots)

    def test_two_have_two_addresses(self) -> None:
        with self.make(8, 1) as one, self.make(8, 1) as other:
            assert one.address != other.address

    # --- bytes --------------------------------------------------------------------------

    def test_a_new_one_is_zeros(self) -> None:
        with self.make(5000, 2) as medium:
            assert medium.read(0, medium.nbytes) == bytes(medium.nbytes)

    def test_round_trip_of_every_slot(self) -> None:
        with self.make(1000, 4) as medium:
            for slot in range(4):
                with self.attached(medium, slot) as supplier:
                    data = bytes([slot + 1]) * 1000
                    assert supplier.write(medium.offset(slot), data, 1000) == 1000
            for slot in range(4):
                assert medium.read(medium.offset(slot), 1000) == bytes([slot + 1]) * 1000

    def test_what_the_owner_puts_in_a_supplier_reads(self) -> None:
        with self.make(64, 2) as medium:
            medium.write(medium.offset(1), b"input")
            with self.attached(medium, 1, readonly=True) as supplier:
                assert supplier.read(medium.offset(1), 5) == b"input"

    def test_a_short_write_changes_only_its_own_bytes(self) -> None:
        with self.make(64, 1) as medium:
            medium.write(0, b"x" * 64)
            with self.attached(medium) as supplier:
                assert supplier.write(0, b"abc", 64) == 3
            assert medium.read(0, 64) == b"abc" + b"x" * 61

    def test_an_empty_write_changes_nothing(self) -> None:
        with self.make(64, 2) as medium:
            medium.write(0, b"x" * 64)
            with self.attached(medium) as supplier:
                assert supplier.write(0, b"", 64) == 0
                assert supplier.write_checksummed(0, b"", 64) == xxhash.xxh3_64_intdigest(b"")
            assert medium.write(medium.nbytes, b"") == 0
            assert medium.read(0, 64) == b"x" * 64
            assert medium.read(medium.nbytes, 0) == b""
            assert len(medium.view(medium.nbytes, 0)) == 0

    def test_takes_whatever_has_a_contiguous_buffer(self) -> None:
        values = array("d", [1.5, -2.5])
        with self.make(64, 1) as medium, self.attached(medium) as supplier:
            for data in (values, memoryview(values), bytearray(values.tobytes())):
                supplier.write(0, bytes(16), 64)
                assert supplier.write(0, data, 64) == 16
                assert medium.read(0, 16) == values.tobytes()

    def test_refuses_what_has_none(self) -> None:
        wrong: list[Any] = ["text", 7, None, memoryview(bytes(8))[::2]]
        with self.make(64, 1) as medium, self.attached(medium) as supplier:
            for data in wrong:
                with _raises(NotBytes):
                    supplier.write(0, data, 64)
                with _raises(NotBytes):
                    supplier.write_checksummed(0, data, 64)
            assert medium.read(0, 64) == bytes(64)

    # --- what leaves its slot, or the medium --------------------------------------------

    def test_a_product_may_fill_its_slot_and_no_more(self) -> None:
        with self.make(96, 3) as medium, self.attached(medium, 1) as supplier:
            offset = medium.offset(1)
            supplier.write(offset, b"f" * 96, 96)
            for side, limit in ((supplier, 96), (medium, None), (medium, 96)):
                for write in (side.write, side.write_checksummed):
                    with _raises(ProductTooLarge, match=r"97 bytes .* 96 bytes"):
                        write(offset, b"x" * 97, limit)
            assert medium.read(medium.offset(0), 96) == bytes(96)
            assert medium.read(offset, 96) == b"f" * 96
            assert medium.read(medium.offset(2), 96) == bytes(96)

    def test_the_owner_may_not_run_over_from_within_a_slot(self) -> None:
        with self.make(96, 2) as medium:
            medium.write(10, b"x" * 86)
            with _raises(ProductTooLarge):
                medium.write(10, b"x" * 87)

    def test_what_lies_outside(self) -> None:
        with self.make(64, 2) as medium, self.attached(medium) as supplier:
            end = medium.nbytes
            for offset, nbytes in (
                (-1, 1),
                (-64, 64),
                (end, 1),
                (end - 1, 2),
                (0, end + 1),
                (2**31, 1),
                (2**63 - 1, 1),
                (2**63, 1),
                (2**64 - 32, 64),
                (2**100, 2**100),
                (-(2**100), 1),
                (0, -1),
                (10, -1),
                (0, 2**63),
            ):
                for side in (medium, supplier):
                    for use in (side.read, side.view, side.checksum):
                        with _raises(SlotOutOfRange):
                            use(offset, nbytes)
                    with _raises(SlotOutOfRange):
                        side.view(offset, nbytes, writable=True)
                    # The slot itself is refused, though the data would fit.
                    with _raises(SlotOutOfRange):
                        side.write(offset, b"", nbytes)
                    with _raises(SlotOutOfRange):
                        side.write_checksummed(offset, b"x", nbytes)
            for offset in (-1, end + 1, 2**63, 2**100):
                with _raises(SlotOutOfRange):
                    medium.write(offset, b"x")
            assert medium.read(0, end) == bytes(end)

    # --- addresses ----------------------------------------------------------------------

    def test_bad_addresses(self) -> None:
        with self.make(8, 1) as medium:
            for place in self.bad_places:
                address = f"{medium.scheme}:{place}"
                with _raises(BadAddress):
                    attach(address)
                with _raises(BadAddress):
                    type(medium).attach(address)
            for address in ("", ":", "nothing", "nothing:", "nothing:of-the-kind"):
                with _raises(BadAddress):
                    attach(address)
                with _raises(BadAddress):
                    type(medium).attach(address)

    def test_an_owner_that_closed_is_gone(self) -> None:
        medium = self.make(8, 1)
        address = self.address(medium, 0)
        medium.close()
        with _raises(MediumGone):
            attach(address)

    def test_an_owner_that_was_dropped_is_gone(self) -> None:
        medium = self.make(8, 1)
        address = self.address(medium, 0)
        del medium
        gc.collect()
        with _raises(MediumGone):
            attach(address)

    def test_attaching_again_and_again(self) -> None:
        with self.make(8, 1) as medium:
            for round_ in range(20):
                with self.attached(medium) as supplier:
                    supplier.write(0, bytes([round_]), 8)
                assert medium.read(0, 1) == bytes([round_])

    # --- the end ------------------------------------------------------------------------

    def test_close_any_number_of_times(self) -> None:
        medium = self.make(8, 1)
        supplier = self.attached(medium)
        for side in (supplier, medium):
            assert not side.closed
            side.close()
            side.close()
            assert side.closed
        medium.unlink()

    def test_unlink_any_number_of_times(self) -> None:
        with self.make(8, 1) as medium:
            medium.unlink()
            medium.unlink()

    def test_use_after_close(self) -> None:
        medium = self.make(8, 1)
        supplier = self.attached(medium)
        for side in (supplier, medium):
            side.close()
            for write in (side.write, side.write_checksummed):
                with _raises(Closed):
                    write(0, b"x", 8)
            for use in (side.read, side.view, side.checksum):
                with _raises(Closed):
                    use(0, 1)

    def test_who_attached_never_unlinks(self) -> None:
        with self.make(8, 1) as medium:
            supplier = self.attached(medium)
            with _raises(NotOwner):
                supplier.unlink()
            with _raises(NotOwner):
                supplier.renew()
            supplier.close()
            dropped = self.attached(medium)
            del dropped
            gc.collect()
            with self.attached(medium) as again:
                again.write(0, b"still", 8)
            assert medium.read(0, 5) == b"still"
            assert not medium.gone()

    def test_a_process_that_attached_and_ended_never_unlinks(self) -> None:
        with self.make(8, 1) as medium:
            for value in (1, 2):
                with self._writer(medium, 0, value) as process:
                    process.communicate("go\n", timeout=PROCESS_TIMEOUT_S)
                    assert process.returncode == 0
                assert medium.read(0, 8) == bytes([value]) * 8

    def test_after_unlink_both_sides_keep_what_they_have(self) -> None:
        with self.make(8, 1) as medium:
            address = self.address(medium, 0)
            with attach(address) as supplier:
                assert not supplier.gone()
                medium.unlink()
                assert supplier.gone()
                assert medium.gone()
                supplier.write(0, b"late", 8)
                assert medium.read(0, 4) == b"late"
                with _raises(MediumGone):
                    attach(address)

    # --- views --------------------------------------------------------------------------

    def test_a_view_is_a_window_and_not_a_copy(self) -> None:
        with self.make(64, 2) as medium, self.attached(medium, 1) as supplier:
            window = medium.view(medium.offset(1), 4)
            assert window.readonly
            supplier.write(medium.offset(1), b"seen", 64)
            medium.checksum(medium.offset(1), 4)
            assert window.tobytes() == b"seen"

    def test_what_is_seen_is_what_was_summed(self) -> None:
        with self.make(1000, 2) as medium, self.attached(medium, 1) as supplier:
            for round_ in range(3):
                data = bytes([round_ + 1]) * 1000
                said = supplier.write_checksummed(medium.offset(1), data, 1000)
                assert medium.checksum(medium.offset(1), 1000) == said
                assert medium.view(medium.offset(1), 1000).tobytes() == data

    def test_a_supplier_sees_what_the_owner_wrote_last(self) -> None:
        with self.make(64, 2) as medium, self.attached(medium, 1, readonly=True) as supplier:
            for data in (b"one", b"two"):
                medium.write(medium.offset(1), data)
                assert supplier.read(medium.offset(1), 3) == data
                assert supplier.view(medium.offset(1), 3).tobytes() == data
                assert medium.view(medium.offset(1), 3).tobytes() == data

    def test_a_slot_is_filled_in_place(self) -> None:
        with self.make(64, 2) as medium, self.attached(medium, 1) as supplier:
            if not supplier.in_place:
                _skip("suppliers of this medium have no window on the owner's memory")
            window = supplier.view(medium.offset(1), 64, writable=True)
            window[:5] = b"place"
            checksum = supplier.checksum(medium.offset(1), 5)
            assert medium.read(medium.offset(1), 5) == b"place"
            assert checksum == medium.checksum(medium.offset(1), 5)

    def test_a_view_outlives_close(self) -> None:
        medium = self.make(64, 1)
        medium.write(0, b"kept")
        window = medium.view(0, 4)
        medium.close()
        assert window.tobytes() == b"kept"
        del medium
        gc.collect()
        assert window.tobytes() == b"kept"

    # --- checksums ----------------------------------------------------------------------

    def test_checksums_are_xxh3_64_at_every_length(self) -> None:
        chunk = COPY_CHUNK_NBYTES
        data = os.urandom(2 * chunk + 3)
        with self.make(len(data), 2) as medium, self.attached(medium, 1) as supplier:
            offset = medium.offset(1)
            for nbytes in (0, 1, 255, chunk - 1, chunk, chunk + 1, 2 * chunk, 2 * chunk + 3):
                product = data[:nbytes]
                supplier.write(offset, bytes(len(data)), len(data))
                said = supplier.write_checksummed(offset, product, len(data))
                assert said == xxhash.xxh3_64_intdigest(product)
                assert medium.checksum(offset, nbytes) == said
                assert medium.read(offset, len(data)) == product + bytes(len(data) - nbytes)

    def test_a_changed_byte_changes_the_checksum(self) -> None:
        with self.make(1000, 1) as medium, self.attached(medium) as supplier:
            said = supplier.write_checksummed(0, bytes(1000), 1000)
            supplier.write(500, b"\1", 1)
            assert medium.checksum(0, 1000) != said

    # --- renew and poison ---------------------------------------------------------------

    def test_renew_is_the_same_shape_elsewhere(self) -> None:
        with self.make(1000, 3) as medium, self.attached(medium) as zombie:
            medium.write(0, b"old")
            with medium.renew() as fresh:
                assert type(fresh) is type(medium)
                assert fresh.address != medium.address
                assert (fresh.slot_nbytes, fresh.slots) == (1000, 3)
                assert fresh.owner
                zombie.write(0, b"z" * 1000, 1000)
                assert fresh.read(0, fresh.nbytes) == bytes(fresh.nbytes)
                medium.close()
                with suppress(MediumGone):  # it may be told, and must not matter
                    zombie.write(0, b"y" * 1000, 1000)
                with self.attached(fresh) as supplier:
                    supplier.write(0, b"new", 1000)
                assert fresh.read(0, 4) == b"new\0"

    def test_poison_only_when_asked_for(self) -> None:
        with self.make(100, 3) as medium:
            medium.write(medium.offset(1), b"x" * 100)
            medium.poison_slot(1)
            assert medium.read(medium.offset(1), 100) == b"x" * 100
        with self.make(100, 3, poison=True) as medium:
            for slot in range(3):
                medium.write(medium.offset(slot), b"x" * 100)
            medium.poison_slot(1)
            assert medium.read(medium.offset(0), 100) == b"x" * 100
            assert medium.read(medium.offset(1), 100) == bytes([POISON]) * 100
            assert medium.read(medium.offset(2), 100) == b"x" * 100
            with _raises(SlotOutOfRange):
                medium.poison_slot(3)
            with medium.renew() as fresh:
                assert fresh.poison

    # --- several processes --------------------------------------------------------------

    def test_writers_in_several_processes_keep_to_their_slots(self) -> None:
        nbytes, slots = 100_001, 3
        with self.make(nbytes, slots) as medium:
            with self._writers(medium, slots) as processes:
                for process in processes:  # all are attached: let them write at once
                    assert process.stdin is not None
                    process.stdin.write("go\n")
                    process.stdin.flush()
                for process in processes:
                    out, _ = process.communicate(timeout=PROCESS_TIMEOUT_S)
                    assert (out, process.returncode) == ("written\n", 0)
            for slot in range(slots):
                assert medium.read(medium.offset(slot), nbytes) == bytes([slot + 1]) * nbytes

    @contextmanager
    def _writers(self, medium: Medium, slots: int) -> Iterator[list[subprocess.Popen[str]]]:
        if not slots:
            yield []
            return
        with (
            self._writers(medium, slots - 1) as others,
            self._writer(medium, slots - 1, slots, times=50) as process,
        ):
            yield [*others, process]

    @contextmanager
    def _writer(
        self, medium: Medium, slot: int, value: int, times: int = 1
    ) -> Iterator[subprocess.Popen[str]]:
        """A supplier process that has attached and waits for a line before it writes."""
        arguments = [medium.offset(slot), medium.slot_nbytes, value, times]
        with subprocess.Popen(
            [
                sys.executable,
                "-c",
                _WRITER,
                self.address(medium, slot),
                *map(str, arguments),
                *([self.imports] if self.imports else []),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        ) as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline() == "attached\n"
                yield process
            finally:
                process.kill()


def _raises(error: type[Exception], match: str | None = None) -> pytest.RaisesExc[Exception]:
    import pytest

    return pytest.raises(error, match=match)


def _skip(why: str) -> None:
    import pytest

    pytest.skip(why)
