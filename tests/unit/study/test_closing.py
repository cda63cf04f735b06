"""When a block of trials is closed, and when it is left open."""

from __future__ import annotations

import pytest

from entrepot.store.memory import MemoryStore
from entrepot.study import Space, compact, report, take, trials

SPACE = Space().real("lr", 1e-4, 1.0, log=True)
POINT = SPACE.point(lr=0.01)


class Time:
    now = 1.8e9


@pytest.fixture
def store() -> MemoryStore:
    """A block that was finished an hour ago and more, on a clock that stands still."""
    made = MemoryStore(wall=lambda: Time.now)
    for trial in range(1000):
        meta = {"state": "done", "point": str(POINT), "score": repr(trial / 7)}
        made.claim(f"spam/trial/{trial}/0", meta=meta)
    return made


def later(store: MemoryStore, seconds: float) -> MemoryStore:
    other = store.view()
    other._wall = lambda: Time.now + seconds
    return other


def test_a_block_is_closed_when_its_last_report_is_old_enough(store: MemoryStore) -> None:
    assert compact(store, study="spam", grace_s=3600) == []
    assert compact(later(store, 3599.0), study="spam", grace_s=3600) == []
    assert compact(later(store, 3601.0), study="spam", grace_s=3600) == [0]
    assert compact(later(store, 3601.0), study="spam", grace_s=3600) == []


def test_a_block_in_which_somebody_still_runs_a_higher_attempt_is_left_open(
    store: MemoryStore,
) -> None:
    """A rescue that was begun too eagerly: the trial is finished, and the heir is at work."""
    heir = later(store, 7000.0)
    assert take(heir, POINT, study="spam", trial=5, me="m1", attempt=1)
    assert compact(later(store, 7100.0), study="spam", grace_s=3600) == []
    report(heir, POINT, [0.25], study="spam", trial=5, me="m1", attempt=1, state="done")
    assert compact(later(store, 10599.0), study="spam", grace_s=3600) == []
    assert compact(later(store, 10601.0), study="spam", grace_s=3600) == [0]
    spoken = trials(store.view(), study="spam")[5]
    assert (spoken.attempt, spoken.score) == (1, 0.25)


def test_an_heir_that_died_keeps_no_block_open(store: MemoryStore) -> None:
    assert take(later(store, 7000.0), POINT, study="spam", trial=5, me="m1", attempt=1)
    assert compact(later(store, 10601.0), study="spam", grace_s=3600) == [0]
    assert trials(store.view(), study="spam")[5].score == 5 / 7


def test_a_block_with_a_file_that_cannot_be_read_is_closed_without_it(store: MemoryStore) -> None:
    store.plant("names/spam/trial/000000/7.1.json", b"nonsense")
    assert compact(later(store, 3601.0), study="spam", grace_s=3600) == [0]
    assert trials(store.view(), study="spam")[7].score == 1.0
