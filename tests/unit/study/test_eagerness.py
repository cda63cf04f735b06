"""Being too eager, and being late: what each costs, and who speaks."""

from __future__ import annotations

from collections import Counter

import pytest

from entrepot.errors import TrialLost
from entrepot.store import Store
from entrepot.store.memory import MemoryStore
from entrepot.study import Sampler, Space, Study, finished, report, rescue, take, trials

SPACE = Space().real("lr", 1e-4, 1.0, log=True)
POINT = SPACE.point(lr=0.01)


def study(store: Store, me: str, stale: float) -> Study:
    return Study(store, "spam", SPACE, Sampler.sobol(0), me=me, stale=stale)


def test_being_too_eager_costs_one_trial_run_twice() -> None:
    """A machine that thinks at once that the others are dead: the study is none the worse."""
    store = MemoryStore()
    ran: Counter[int] = Counter()
    slow = study(store, "slow", 3600.0).work(trials=10)
    held = next(slow)
    ran[held.number] += 1
    held.report(1.0)
    for trial in study(store.view(), "eager", 0.0).work(trials=10):
        with trial:
            ran[trial.number] += 1
            trial.report(0.5)
    with held:  # which ends quietly: somebody else has it
        held.report(0.25)
    assert list(slow) == []
    assert ran == Counter({0: 2} | dict.fromkeys(range(1, 10), 1))
    found = trials(store.view(), study="spam")
    assert [(one.trial, one.state, one.score) for one in found] == [
        (number, "done", 0.5) for number in range(10)
    ]
    assert [one.attempt for one in found] == [1] + [0] * 9
    assert {one.meta.who for one in found} == {"eager"}


def test_each_who_rescues_has_an_attempt_of_its_own_and_the_last_speaks() -> None:
    store = MemoryStore()
    assert take(store, POINT, study="spam", trial=0, me="m0", goal="min")
    views = [store.view() for _ in range(4)]
    held = [
        rescue(view, study="spam", trial=0, me=f"m{number}", max_attempts=9)
        for number, view in enumerate(views, 1)
    ]
    # One after the other each claims the next: none ever gets one that another has.
    assert [one.attempt for one in held if one is not None] == [1, 2, 3, 4]
    for number, view in enumerate(views[:-1], 1):
        with pytest.raises(TrialLost):
            report(view, POINT, [0.1], study="spam", trial=0, me=f"m{number}", state="done")
    report(views[-1], POINT, [0.4], study="spam", trial=0, me="m4", state="done")
    assert finished(store, SPACE, study="spam") == [(POINT, 0.4)]


def test_of_two_that_finished_the_higher_attempt_speaks_in_whatever_order() -> None:
    for first, second in (((0, 0.1), (1, 0.2)), ((1, 0.2), (0, 0.1))):
        store = MemoryStore()
        for attempt, score in (first, second):
            store.claim(
                f"spam/trial/0/{attempt}",
                meta={"state": "done", "point": str(POINT), "score": repr(score)},
            )
            trials(store, study="spam")  # a reader that saw the one before the other
        assert finished(store, SPACE, study="spam") == [(POINT, 0.2)]
        assert finished(store.view(), SPACE, study="spam") == [(POINT, 0.2)]
