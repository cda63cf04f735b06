"""Who is silent, by the store's clock and by watching; also when nobody is left at all."""

from __future__ import annotations

import pytest

from entrepot.store.memory import MemoryStore
from entrepot.study import Sampler, Space, Study, abandoned, in_flight, report, take, trials
from entrepot.study.held import _known
from entrepot.study.history import History

SPACE = Space().real("lr", 1e-4, 1.0, log=True)
POINT = SPACE.point(lr=0.01)
HOUR_S = 3600.0


class Time:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 1.8e9

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def store(time: Time) -> MemoryStore:
    """A store on which three machines run a trial each, and one has finished one."""
    made = MemoryStore(wall=time.clock)
    for trial in range(3):
        assert take(made.view(), POINT, study="spam", trial=trial, me=f"m{trial}", goal="min")
    machine = made.view()
    assert take(machine, POINT, study="spam", trial=3, me="m3", goal="min")
    report(machine, POINT, [0.5], study="spam", trial=3, me="m3", state="done")
    return made


def watching(store: MemoryStore, time: Time, *, read_only: bool = True) -> MemoryStore:
    """A machine whose monotonic clock is ``time``, and that has looked once."""
    made = store.view(read_only=read_only)
    _known(made).histories["spam"] = History(made, "spam", clock=time.clock)
    trials(made, study="spam")
    return made


def test_where_everything_stopped_an_hour_ago_all_are_found(store: MemoryStore, time: Time) -> None:
    assert abandoned(store.view(), study="spam", stale=HOUR_S) == []
    time.sleep(HOUR_S + 1)
    newcomer = store.view()
    found = abandoned(newcomer, study="spam", stale=HOUR_S)
    assert [(one.trial, one.attempt, one.who) for one in found] == [
        (trial, 0, f"m{trial}") for trial in range(3)
    ]
    assert all(HOUR_S <= one.silent_s < HOUR_S + 2 for one in found)
    assert in_flight(newcomer, SPACE, study="spam", stale=HOUR_S) == []
    assert len(in_flight(newcomer, SPACE, study="spam", stale=2 * HOUR_S)) == 3


def test_a_machine_that_comes_then_finishes_it_all(store: MemoryStore, time: Time) -> None:
    time.sleep(HOUR_S + 1)
    heir = Study(
        store.view(),
        "spam",
        SPACE,
        Sampler.random(0),
        me="heir",
        clock=time.clock,
        sleep=time.sleep,
    )
    began = time.now
    got = []
    for trial in heir.work(trials=5):
        with trial:
            got.append((trial.number, trial.attempt, str(trial.point) == str(POINT)))
            trial.report(0.5)
    assert got == [(0, 1, True), (1, 1, True), (2, 1, True), (4, 0, False)]
    assert [one.state for one in heir.trials()] == ["done"] * 5
    assert time.now == began, "nobody was waited for"


def test_who_may_not_write_finds_them_by_watching(store: MemoryStore, time: Time) -> None:
    reader = watching(store, time)
    time.sleep(HOUR_S - 1)
    assert abandoned(reader, study="spam", stale=HOUR_S) == []
    time.sleep(2)
    found = abandoned(reader, study="spam", stale=HOUR_S)
    assert [one.trial for one in found] == [0, 1, 2]
    assert all(one.silent_s == HOUR_S + 1 for one in found)
    assert abandoned(store.view(read_only=True), study="spam", stale=HOUR_S) == [], (
        "who came just now has watched nobody"
    )


def test_who_beats_is_not_silent_to_who_watches(store: MemoryStore, time: Time) -> None:
    reader = watching(store, time)
    beats = store.view()
    for beat in range(5):
        time.sleep(HOUR_S / 2)
        report(beats, POINT, [0.5] * beat, study="spam", trial=1, me="m1")
        trials(reader, study="spam")
    found = abandoned(reader, study="spam", stale=HOUR_S)
    assert [(one.trial, one.silent_s) for one in found] == [
        (0, 2.5 * HOUR_S),
        (2, 2.5 * HOUR_S),
    ]


def test_a_store_whose_clock_stands_still_finds_them_by_watching(time: Time) -> None:
    """The store's clock may be as wrong as any: whoever watched for long enough knows."""
    store = MemoryStore(wall=lambda: 0.0)
    assert take(store.view(), POINT, study="spam", trial=0, me="m0", goal="min")
    reader = watching(store, time, read_only=False)
    assert abandoned(reader, study="spam", stale=HOUR_S) == []
    time.sleep(HOUR_S)
    assert [one.silent_s for one in abandoned(reader, study="spam", stale=HOUR_S)] == [HOUR_S]
