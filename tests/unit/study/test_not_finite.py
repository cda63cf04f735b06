"""A score that is NaN or infinite ends its trial as failed, and nobody's work."""

from __future__ import annotations

import math
from typing import Any

import pytest

from entrepot.errors import ScoreNotFinite, StudyError
from entrepot.store.memory import MemoryStore
from entrepot.study import Pruner, Sampler, Space, Study, finished, report, take
from entrepot.study.trial import Trial

SPACE = Space().real("lr", 0.0, 1.0)
NUMBERS = [math.nan, math.inf, -math.inf]


def study(goal: Any = "min", **options: Any) -> Study:
    return Study(MemoryStore(), "spam", SPACE, Sampler.sobol(0), goal=goal, me="m", **options)


def by_report(trial: Trial, number: float) -> None:
    trial.report(0.5)
    trial.report(number)


def by_score(trial: Trial, number: float) -> None:
    trial.report(0.5)
    trial.score = number


def by_finish(trial: Trial, number: float) -> None:
    trial.finish(number)


@pytest.mark.parametrize("number", NUMBERS, ids=str)
@pytest.mark.parametrize("way", [by_report, by_score, by_finish])
def test_the_trial_has_failed_with_the_number_and_the_worker_goes_on(
    way: Any, number: float
) -> None:
    made = study()
    for trial in made.work(trials=3):
        with trial:
            way(trial, number if trial.number == 1 else 0.25)
    found = made.trials()
    assert [one.state for one in found] == ["done", "failed", "done"]
    assert found[1].meta.because == f"its score is {number!r}, and not finite"
    assert repr(found[1].score) == repr(number)
    assert [score for _, score in finished(made.store, SPACE, study="spam")] == [0.25, 0.25]
    assert made.best().trial == 0
    assert list(made.work(trials=3)) == []


def test_one_of_several_scores_is_enough() -> None:
    made = study(goal={"loss": "min", "ms": "min"})
    for trial in made.work(trials=2):
        with trial:
            trial.score = {"loss": 0.5, "ms": math.inf if trial.number == 0 else 3.0}
    first, second = made.trials()
    assert (first.state, second.state) == ("failed", "done")
    assert first.meta.because == "its score is {'loss': 0.5, 'ms': inf}, and not finite"


def test_what_a_pruner_stopped_is_pruned_and_not_failed() -> None:
    made = study(pruner=Pruner.diverged())
    for trial in made.work(trials=1):
        with trial:
            assert trial.report(math.nan).should_stop
    (one,) = made.trials()
    assert one.state == "pruned"


def test_a_score_that_is_none_of_the_goals_is_a_mistake_and_passes_on() -> None:
    made = study(goal={"loss": "min", "ms": "min"})
    loop = made.work(trials=2)
    trial = next(loop)
    trial.score = 0.5
    with pytest.raises(StudyError, match="loss, ms"):
        trial.__exit__(None, None, None)
    (one,) = made.trials()
    assert (one.state, "loss, ms" in one.meta.because) == ("failed", True)


def test_the_word_for_it_refuses_what_is_not_finite_with_the_number() -> None:
    store, point = MemoryStore(), SPACE.point(lr=0.5)
    said: Any = {"study": "spam", "trial": 0, "me": "m"}
    assert take(store, point, **said)
    with pytest.raises(ScoreNotFinite, match="nan"):
        report(store, point, [math.nan], state="done", **said)
    report(store, point, [math.nan], state="failed", **said)
