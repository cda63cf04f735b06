"""Optuna's samplers behind the same question.

For each answer a study of Optuna's is made in memory, out of the history alone. What a sampler
notes at a trial when it is asked, as CMA-ES does of its state and NSGA-II of the generation, is
kept in this process and handed back with the same point: such samplers learn from the trials
that were asked for here, and see those of other machines as trials without a note.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from entrepot.errors import ConfigurationError, MissingExtra, SamplerFailed, SpaceError
from entrepot.errors.root import sentence_of
from entrepot.study import streams
from entrepot.study.checks import whole
from entrepot.study.goals import Goal, checked_goal, losses
from entrepot.study.knobs import ChoiceKnob, IntKnob, Knob, RealKnob
from entrepot.study.samplers.base import History, Sampler
from entrepot.study.space import Point, Space
from entrepot.study.text import Value

try:
    import optuna
    from optuna.distributions import (
        BaseDistribution,
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
    )
    from optuna.samplers import BaseSampler
    from optuna.storages import InMemoryStorage
    from optuna.trial import Trial, TrialState, create_trial
except ImportError as error:
    raise MissingExtra(
        "Optuna's samplers need Optuna, which is not installed; "
        "pip install 'entrepot[study-optuna]'"
    ) from error

Notes = dict[str, Any] | None

MAX_NOTES = 10_000
"""Points of which the sampler's notes are kept; the oldest go first."""

MAX_INT = 2**53
"""Up to here every whole number is a float."""

# It tells of every study that is made in memory, and one is made for each answer.
logging.getLogger(InMemoryStorage.__module__).setLevel(logging.WARNING)


@dataclass(frozen=True)
class OptunaSampler(Sampler):
    """:ivar sampler: a function of a seed, called anew for each trial, so that the answer is a
    function of seed, trial and history; or a class of Optuna's; or one that is made, which
    brings its own seed and remembers what it was asked before.
    """

    sampler: BaseSampler | Callable[[int], BaseSampler]
    goal: Goal = "min"
    seed: int = 0
    _notes: dict[str, list[Notes]] = field(default_factory=dict, repr=False, compare=False)

    looks_back: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "goal", checked_goal(self.goal))
        object.__setattr__(self, "seed", whole("seed", self.seed))
        if not isinstance(self.sampler, BaseSampler) and not callable(self.sampler):
            raise ConfigurationError(
                f"the sampler is {self.sampler!r}; give one of Optuna's, or "
                f"lambda seed: optuna.samplers.CmaEsSampler(seed=seed)"
            )

    def _ask(self, space: Space, trial: int, history: History, /) -> Point:
        directions = [self.goal] if isinstance(self.goal, str) else list(self.goal.values())
        study = optuna.create_study(
            storage=InMemoryStorage(),
            sampler=self._sampler(trial),
            directions=["maximize" if one == "max" else "minimize" for one in directions],
        )
        ranges = {knob.name: distribution(knob) for knob in space.knobs}
        seen: Counter[str] = Counter()
        for given, score in history:
            point = given if given.space == space else space.point(given)
            notes = self._notes.get(text := str(point), [None])
            nth, seen[text] = seen[text], seen[text] + 1
            values = None if score is None else self._values(score)
            if values is not None and any(value != value for value in values):
                continue
            study.add_trial(
                create_trial(
                    state=TrialState.RUNNING if values is None else TrialState.COMPLETE,
                    values=values,
                    params=dict(point),
                    distributions={name: ranges[name] for name in point},
                    # A sampler may answer with one point twice, and notes something each time.
                    system_attrs=notes[min(nth, len(notes) - 1)],
                )
            )
        made: dict[str, Value] = {}
        try:
            asked = study.ask()
            for knob in space.knobs:
                if space.asked(knob, made):
                    made[knob.name] = _suggest(asked, knob)
        except Exception as error:
            raise _failed(type(study.sampler).__name__, trial, error) from error
        point = space.point(made)
        self._note(str(point), study.get_trials(deepcopy=False)[asked.number].system_attrs)
        return point

    def _sampler(self, trial: int) -> BaseSampler:
        if isinstance(self.sampler, BaseSampler):
            return self.sampler
        seed = streams.words(1, self.seed, trial, "optuna")[0] >> 32
        try:
            made = self.sampler(seed=seed) if isinstance(self.sampler, type) else self.sampler(seed)
        except Exception as error:
            raise _failed("the function that makes Optuna's sampler", trial, error) from error
        if not isinstance(made, BaseSampler):
            raise ConfigurationError(
                f"the function that makes Optuna's sampler returned {made!r}; return one of "
                f"optuna.samplers"
            )
        return made

    def _values(self, score: object) -> list[float]:
        """Scores in the order of the goal, each in its own direction."""
        found = losses(score, self.goal)
        directions = [self.goal] if isinstance(self.goal, str) else self.goal.values()
        return [
            -loss if direction == "max" else loss
            for loss, direction in zip(found, directions, strict=True)
        ]

    def _note(self, point: str, notes: dict[str, Any]) -> None:
        if not notes:
            return
        self._notes.setdefault(point, []).append(dict(notes))
        while len(self._notes) > MAX_NOTES:
            del self._notes[next(iter(self._notes))]


def _failed(what: str, trial: int, error: Exception) -> SamplerFailed:
    return SamplerFailed(
        f"{what} raised when it was asked for trial {trial}: {type(error).__name__}: "
        f"{sentence_of(error)}"
    )


def distribution(knob: Knob) -> BaseDistribution:
    """What Optuna calls the range of a knob.

    :raises SpaceError: Optuna cannot draw from the range: it is wider than floats are, or has whole
        numbers that are none.
    """
    match knob:
        case RealKnob():
            if not knob.log and math.isinf(knob.high - knob.low):
                raise SpaceError(
                    f"knob {knob} is wider than any float, and Optuna's samplers need its width; "
                    f"make it narrower, or log"
                )
            return FloatDistribution(knob.low, knob.high, log=knob.log)
        case IntKnob():
            if max(abs(knob.low), abs(knob.high)) > MAX_INT:
                raise SpaceError(
                    f"knob {knob} goes beyond 2**53, and Optuna's samplers take whole numbers for "
                    f"floats; let it count in larger units"
                )
            return IntDistribution(knob.low, knob.high, log=knob.log, step=knob.step)
        case ChoiceKnob():
            return CategoricalDistribution(knob.values)
    raise AssertionError(knob)


def _suggest(asked: Trial, knob: Knob) -> Value:
    match knob:
        case RealKnob():
            return asked.suggest_float(knob.name, knob.low, knob.high, log=knob.log)
        case IntKnob():
            return asked.suggest_int(knob.name, knob.low, knob.high, log=knob.log, step=knob.step)
        case ChoiceKnob():
            return asked.suggest_categorical(knob.name, knob.values)
    raise AssertionError(knob)
