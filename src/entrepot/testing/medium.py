"""The suite that any new medium must pass; see :mod:`entrepot.testing`.

::

    class TestMyMedium(MediumContract):
        imports = "mypackage.mymedium"  # what a new process imports to know the scheme

        def make(self, slot_nbytes, slots, *, poison=False):
            return MyMedium.create(slot_nbytes, slots, poison=poison)
"""

from __future__ import annotations

import gc
from contextlib import suppress

from entrepot.errors import (
    BadAddress,
    Closed,
    ConfigurationError,
    MediumGone,
    NotOwner,
    SlotOutOfRange,
)
from entrepot.mediums.base import POISON, SLOT_ALIGNMENT
from entrepot.mediums.registry import attach
from entrepot.testing.later import raises
from entrepot.testing.medium_bytes import MediumBytes
from entrepot.testing.medium_suite import PROCESS_TIMEOUT_S


class MediumContract(MediumBytes):
    """What holds for every medium. Subclass it, name it ``Test...``, and give ``make``."""

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
                with raises(SlotOutOfRange, match=str(slot)):
                    medium.offset(slot)

    def test_needs_a_slot_and_a_byte(self) -> None:
        for slot_nbytes, slots in ((0, 1), (1, 0), (-1, 1), (1, -1)):
            with raises(ConfigurationError):
                self.make(slot_nbytes, slots)

    def test_two_have_two_addresses(self) -> None:
        with self.make(8, 1) as one, self.make(8, 1) as other:
            assert one.address != other.address

    # --- addresses ----------------------------------------------------------------------

    def test_bad_addresses(self) -> None:
        with self.make(8, 1) as medium:
            for place in self.bad_places:
                address = f"{medium.scheme}:{place}"
                with raises(BadAddress):
                    attach(address)
                with raises(BadAddress):
                    type(medium).attach(address)
            for address in ("", ":", "nothing", "nothing:", "nothing:of-the-kind"):
                with raises(BadAddress):
                    attach(address)
                with raises(BadAddress):
                    type(medium).attach(address)

    def test_an_owner_that_closed_is_gone(self) -> None:
        medium = self.make(8, 1)
        address = self.address(medium, 0)
        medium.close()
        with raises(MediumGone):
            attach(address)

    def test_an_owner_that_was_dropped_is_gone(self) -> None:
        medium = self.make(8, 1)
        address = self.address(medium, 0)
        del medium
        gc.collect()
        with raises(MediumGone):
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
                with raises(Closed):
                    write(0, b"x", 8)
            for use in (side.read, side.view, side.checksum):
                with raises(Closed):
                    use(0, 1)

    def test_who_attached_never_unlinks(self) -> None:
        with self.make(8, 1) as medium:
            supplier = self.attached(medium)
            with raises(NotOwner):
                supplier.unlink()
            with raises(NotOwner):
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
                with raises(MediumGone):
                    attach(address)

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
            with raises(SlotOutOfRange):
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
