"""The memory that a client reads files into: a place for each slot that is in use, and no more."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from entrepot.mediums import FilesystemMedium, attach
from entrepot.mediums.landing import Landing
from entrepot.settings import SupplierSettings


def test_a_slot_has_a_place_from_when_it_is_read_until_it_is_released() -> None:
    landing = Landing(3, 64, "somewhere")
    assert landing.at(64, 10) is None
    taken = landing.take(64, 10)
    assert taken is not None
    taken[:] = b"0123456789"
    found = landing.at(66, 3)
    assert found is not None
    assert found.tobytes() == b"234"
    landing.give(1)
    assert landing.at(64, 10) is None
    landing.give(1)


def test_the_place_that_was_given_back_last_is_taken_next() -> None:
    landing = Landing(4, 64, "somewhere")
    for slot in (0, 1, 2):
        taken = landing.take(64 * slot, 1)
        assert taken is not None
        taken[:] = bytes([slot])
    landing.give(2)
    landing.give(0)
    for slot, was in ((3, 0), (2, 2)):
        taken = landing.take(64 * slot, 1)
        assert taken is not None
        assert taken[0] == was


def test_what_is_of_several_slots_or_nothing_has_no_place() -> None:
    landing = Landing(2, 64, "somewhere")
    assert landing.take(0, 65) is None
    assert landing.take(60, 5) is None
    assert landing.take(128, 0) is None
    assert landing.at(128, 0) is None
    assert landing.take(0, 64) is not None


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5)), max_size=60))
def test_no_two_slots_share_a_place(steps: list[tuple[bool, int]]) -> None:
    landing = Landing(6, 64, "somewhere")
    in_use: set[int] = set()
    for takes, slot in steps:
        if takes:
            taken = landing.take(64 * slot, 64)
            assert taken is not None
            taken[:] = bytes([slot + 1]) * 64
            in_use.add(slot)
        else:
            landing.give(slot)
            in_use.discard(slot)
        for other in range(6):
            place = landing.at(64 * other, 64)
            if other in in_use:
                assert place is not None
                assert place.tobytes() == bytes([other + 1]) * 64
            else:
                assert place is None


def test_a_client_that_releases_reads_into_the_same_memory_again(tmp_path: Path) -> None:
    """And one that does not has each product in memory of its own."""
    settings = SupplierSettings(file_root=str(tmp_path))
    with (
        FilesystemMedium.create(1000, 4, root=tmp_path) as medium,
        attach(medium.address, settings=settings) as supplier,
    ):
        for slot in range(4):
            supplier.write(medium.offset(slot), bytes([slot + 1]) * 1000, 1000)
        views = []
        for slot in range(4):
            medium.checksum(medium.offset(slot), 1000)
            views.append(medium.view(medium.offset(slot), 1000))
        assert [view[0] for view in views] == [1, 2, 3, 4]
        medium.released(2)
        supplier.write(medium.offset(2), b"\7" * 1000, 1000)
        medium.checksum(medium.offset(2), 1000)
        assert views[2].tobytes() == b"\7" * 1000
        assert [view[0] for view in views] == [1, 2, 7, 4]


@pytest.mark.parametrize("poison", [False, True])
def test_a_released_slot_shows_what_its_file_has(tmp_path: Path, poison: bool) -> None:
    with FilesystemMedium.create(64, 2, root=tmp_path, poison=poison) as medium:
        medium.write(0, b"x" * 64)
        assert medium.view(0, 64).tobytes() == b"x" * 64
        medium.poison_slot(0)
        medium.released(0)
        assert medium.view(0, 64).tobytes() == (b"\xdb" if poison else b"x") * 64
