"""What is new in a listing, and when a file's time no longer stands for other bytes."""

from __future__ import annotations

from entrepot.store.clock import COARSE_GRAIN_NS, GRAIN_NS, Horizon, StoreClock, recurs
from entrepot.store.cursor import UNSEEN, Listing, Seen, after, is_new, to_read

S = 1_000_000_000


class Ticks:
    """A clock that is moved by hand."""

    def __init__(self, at: float = 100.0) -> None:
        self.at = at

    def __call__(self) -> float:
        return self.at


def test_new_changed_and_fresh_files_are_read_and_no_others() -> None:
    seen = Seen({"same": 1, "changed": 2, "fresh": 3, "gone": 4}, {"fresh": "nonce"})
    listing = Listing({"same": 1, "changed": 5, "fresh": 3, "new": 6})
    assert to_read(seen, listing) == ["changed", "fresh", "new"]
    assert to_read(UNSEEN, listing) == ["same", "changed", "fresh", "new"]


def test_a_fresh_file_is_told_of_if_its_nonce_is_another() -> None:
    seen = Seen({"a": 1, "b": 2}, {"a": "old", "b": "old"})
    listing = Listing({"a": 1, "b": 2, "c": 3})
    assert not is_new(seen, listing, "a", "old")
    assert is_new(seen, listing, "b", "new")
    assert is_new(seen, listing, "c", "any")


def test_what_vanished_before_it_was_read_is_looked_for_again() -> None:
    listing = Listing({"a": 1, "b": 2})
    seen = after(UNSEEN, listing, {"a": "nonce"})
    assert to_read(seen, listing) == ["b"]


def test_what_is_no_longer_fresh_is_read_once_more_and_then_not() -> None:
    fresh = Listing({"a": 1}, fresh=frozenset({"a"}))
    settled = Listing({"a": 1})
    seen = after(UNSEEN, fresh, {"a": "nonce"})
    assert to_read(seen, fresh) == ["a"]
    seen = after(seen, fresh, {"a": "nonce"})
    assert to_read(seen, settled) == ["a"]
    seen = after(seen, settled, {"a": "nonce"})
    assert to_read(seen, settled) == []


def test_a_time_recurs_until_its_grain_has_passed() -> None:
    fine, coarse = 5 * S + 1, 5 * S
    assert recurs(fine, fine)
    assert recurs(fine, fine + GRAIN_NS - 1)
    assert not recurs(fine, fine + GRAIN_NS)
    # Whole milliseconds may be FAT's, which are two seconds apart.
    assert recurs(coarse, coarse + GRAIN_NS)
    assert not recurs(coarse, coarse + COARSE_GRAIN_NS)


def test_the_horizon_is_the_latest_time_seen_and_what_has_passed_since() -> None:
    ticks = Ticks()
    horizon = Horizon(ticks)
    assert horizon.seen(7 * S) == 7 * S
    ticks.at += 2
    assert horizon.seen(3 * S) == 9 * S
    assert horizon.seen(20 * S) == 20 * S
    ticks.at += 1
    assert horizon.seen(20 * S) == 21 * S


def test_the_stores_clock_goes_on_by_one_that_nobody_sets() -> None:
    ticks, wall = Ticks(50.0), Ticks(1000.0)
    clock = StoreClock(ticks, wall)
    assert (clock.now(), clock.due) == (1000.0, True)
    clock.anchor(2000.0)
    assert (clock.now(), clock.due) == (2000.0, False)
    ticks.at += 10
    wall.at = 0.0
    assert (clock.now(), clock.due) == (2010.0, False)
    ticks.at += 51
    assert clock.due
