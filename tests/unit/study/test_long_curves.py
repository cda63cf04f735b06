"""Trials that report thousands of numbers."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from entrepot.store.memory import MemoryStore
from entrepot.study import Sampler, Space, Study, curves
from entrepot.study.curves import tail
from entrepot.study.goals import Direction

SPACE = Space().real("lr", 0.0, 1.0)


@given(
    st.lists(st.floats(allow_nan=True), min_size=1, max_size=120), st.sampled_from(["min", "max"])
)
def test_the_tail_that_grows_is_that_of_the_whole(reports: list[float], goal: Direction) -> None:
    study = Study(MemoryStore(), "spam", SPACE, Sampler.random(0), goal=goal, me="m")
    for trial in study.work(trials=1):
        with trial:
            for report in reports:
                trial.report(report)
            trial.prune("enough")
    (left,) = study.trials()
    assert str(left.tail) == str(tail(reports, goal))


def test_a_long_curve_is_all_there_in_the_end() -> None:
    store = MemoryStore()
    study = Study(store, "spam", SPACE, Sampler.random(0), goal="min", me="m")
    chance = random.Random(0)
    reports = [chance.random() for _ in range(5_000)]
    for trial in study.work(trials=1):
        with trial:
            for report in reports:
                trial.report(report)
    assert curves(store, study="spam") == {0: reports}
    (left,) = study.trials()
    assert str(left.tail) == str(tail(reports, "min"))
