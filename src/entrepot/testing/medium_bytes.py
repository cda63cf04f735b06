"""The part of the suite about bytes: what is written, seen, summed, and what leaves its slot."""

from __future__ import annotations

import gc
import os
from array import array
from typing import Any

import xxhash

from entrepot.errors import (
    NotBytes,
    ProductTooLarge,
    SlotOutOfRange,
)
from entrepot.mediums.buffers import COPY_CHUNK_NBYTES
from entrepot.testing.later import raises, skip
from entrepot.testing.medium_suite import MediumSuite


class MediumBytes(MediumSuite):
    """See the module."""

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
                with raises(NotBytes):
                    supplier.write(0, data, 64)
                with raises(NotBytes):
                    supplier.write_checksummed(0, data, 64)
            assert medium.read(0, 64) == bytes(64)

    # --- what leaves its slot, or the medium --------------------------------------------

    def test_a_product_may_fill_its_slot_and_no_more(self) -> None:
        with self.make(96, 3) as medium, self.attached(medium, 1) as supplier:
            offset = medium.offset(1)
            supplier.write(offset, b"f" * 96, 96)
            for side, limit in ((supplier, 96), (medium, None), (medium, 96)):
                for write in (side.write, side.write_checksummed):
                    with raises(ProductTooLarge, match=r"97 bytes .* 96 bytes"):
                        write(offset, b"x" * 97, limit)
            assert medium.read(medium.offset(0), 96) == bytes(96)
            assert medium.read(offset, 96) == b"f" * 96
            assert medium.read(medium.offset(2), 96) == bytes(96)

    def test_the_owner_may_not_run_over_from_within_a_slot(self) -> None:
        with self.make(96, 2) as medium:
            medium.write(10, b"x" * 86)
            with raises(ProductTooLarge):
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
                        with raises(SlotOutOfRange):
                            use(offset, nbytes)
                    with raises(SlotOutOfRange):
                        side.view(offset, nbytes, writable=True)
                    # The slot itself is refused, though the data would fit.
                    with raises(SlotOutOfRange):
                        side.write(offset, b"", nbytes)
                    with raises(SlotOutOfRange):
                        side.write_checksummed(offset, b"x", nbytes)
            for offset in (-1, end + 1, 2**63, 2**100):
                with raises(SlotOutOfRange):
                    medium.write(offset, b"x")
            assert medium.read(0, end) == bytes(end)

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
                skip("suppliers of this medium have no window on the owner's memory")
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
