"""What a loop cannot use: no store, endless times, spaces that changed, errors without words."""

from __future__ import annotations

import logging
import math
from typing import Any

import pytest

from entrepot.errors import ConfigurationError, StudyError
from entrepot.store.memory import MemoryStore
from entrepot.study import Space, Study, Trial

SPACE = Space().real("lr", 1e-4, 1.0, log=True)
WIDER = SPACE.choice("opt", ["adam", "sgd"])


def worked(store: MemoryStore, space: Space, trials: int, name: str = "spam") -> int:
    """How many trials there were to run."""
    seen = 0
    for trial in Study(store, name, space, me="m0").work(trials=trials):
        with trial:
            seen += 1
            trial.report(0.5)
    return seen


def test_a_study_without_a_store_is_told_so() -> None:
    store: Any = None
    with pytest.raises(ConfigurationError, match="a store needs a path, got None"):
        Study(store, "spam", SPACE)


# --- errors that cannot be read ---------------------------------------------------------


class Raises(Exception):
    def __str__(self) -> str:
        raise ArithmeticError("no sentence")


class SaysNothing(Exception):
    def __str__(self) -> str:
        none: Any = None
        return none  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", [Raises, SaysNothing])
def test_an_error_without_a_sentence_fails_its_trial_and_passes_on(kind: type[Exception]) -> None:
    """As it was raised: what its ``__str__`` raises never stands in its place."""
    made = Study(MemoryStore(), "spam", SPACE, me="m0")
    loop = made.work(trials=1)
    trial = next(loop)
    with pytest.raises(kind), trial:
        raise kind
    (found,) = made.trials()
    assert found.state == "failed"
    assert found.meta.because == f"{kind.__name__}: (its message could not be read)"


# --- a space that changed ---------------------------------------------------------------


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]


def test_trials_of_another_space_that_use_up_the_budget_are_told_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = MemoryStore()
    assert worked(store, WIDER, 20) == 20
    assert warnings(caplog) == []
    assert worked(store.view(), SPACE, 20) == 0
    (said,) = warnings(caplog)
    assert "20 of the 20 trials that 'spam' may have are of another space" in said
    assert "give the study another name" in said
    caplog.clear()
    assert worked(store.view(), SPACE, 21) == 1
    (said,) = warnings(caplog)
    assert "20 of the 21 trials" in said


def test_who_has_the_space_of_before_hears_nothing(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    assert worked(store, SPACE, 5) == 5
    assert worked(store.view(), SPACE, 5) == 0
    assert worked(store.view(), SPACE, 6) == 1
    assert worked(store.view(), WIDER, 5, "eggs") == 5
    assert warnings(caplog) == []


# --- times that nobody can wait for -----------------------------------------------------


@pytest.mark.parametrize("stale", [math.inf, 1e300, 1.1e9, math.nan, -1.0, "600", None, 10**400])
def test_a_stale_that_no_thread_can_wait_for_is_refused(stale: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"stale is .*number from 0 to 1,000,000,000"):
        Study(MemoryStore(), "spam", SPACE, stale=stale)


def test_the_longest_stale_beats_to_the_end() -> None:
    """A thread that cannot wait so long would die with an error, which fails this test."""
    made = Study(MemoryStore(), "spam", SPACE, stale=1e9)
    for trial in made.work(trials=2):
        with trial:
            trial.report(0.5)
    assert [one.state for one in made.trials()] == ["done", "done"]


# --- several goals ----------------------------------------------------------------------


def reported_only(trial: Trial) -> None:
    with trial:
        trial.report(0.5)


def test_several_goals_and_only_reports_says_what_to_set() -> None:
    made = Study(MemoryStore(), "spam", SPACE, goal={"loss": "min", "lat": "max"}, me="m0")
    loop = made.work(trials=1)
    trial = next(loop)
    with pytest.raises(StudyError) as told:
        reported_only(trial)
    assert 'trial.score = {"loss": ..., "lat": ...}' in str(told.value)
    assert "or report numbers" not in str(told.value)
