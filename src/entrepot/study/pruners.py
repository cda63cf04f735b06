"""Whether a trial is worth going on with, judged from what it reported.

A verdict is a sentence or None, and stops nothing: the loop stops. NaN among the reports is a
verdict under every scheme.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import SupportsFloat

from entrepot.errors import ConfigurationError
from entrepot.study.checks import number, whole
from entrepot.study.curves import (
    RUNGS,
    Tail,
    best_so_far,
    better_of,
    numbers_of,
    tail,
)
from entrepot.study.goals import Direction, Goal

Others = Iterable[Tail | Sequence[float]]
"""The curves of other trials, whole or as tails; of a pruned one up to where it stopped."""


class Pruner(ABC):
    """Call :meth:`verdict` after each report."""

    goal: Direction | None = None

    def verdict(
        self,
        reports: Iterable[SupportsFloat],
        others: Others = (),
        goal: Goal | None = None,
    ) -> str | None:
        """Why the trial with these ``reports`` should stop, or None.

        :param reports: all that it reported so far, in order.
        :param others: what other trials reported; a trial is never judged against itself.
        :param goal: what the reports should become, ``"min"`` or ``"max"``; the pruner's own
            where it has one.
        :raises ConfigurationError: a report is not a number, nobody said the goal, or it is not
            the pruner's, or has several scores.
        """
        direction = self._direction(goal)
        numbers = numbers_of(reports)
        for report, value in enumerate(numbers, 1):
            if math.isnan(value):
                return f"report {report} is NaN"
        if not numbers:
            return None
        return self._judge(numbers, others, direction)

    def _direction(self, goal: Goal | None) -> Direction | None:
        if goal is not None:
            goal = _checked_direction(goal)
            if self.goal is not None and goal != self.goal:
                raise ConfigurationError(
                    f"the pruner was made for {self.goal!r}, and the goal is {goal!r}; leave the "
                    f"pruner's out"
                )
        return goal or self.goal

    @abstractmethod
    def _judge(
        self, numbers: list[float], others: Others, goal: Direction | None, /
    ) -> str | None: ...

    @staticmethod
    def percentile(
        percent: float, *, warmup: int = 0, startup: int = 1, goal: Direction | None = None
    ) -> Pruner:
        """Stops what is not among the best ``percent`` of the trials that came as far.

        The best so far is compared with that of the others after as many reports; a tie goes on.

        :param warmup: nothing is stopped before more than so many reports.
        :param startup: nor before so many others came as far.
        """
        return PercentilePruner(percent, warmup, startup, goal)

    @staticmethod
    def median(*, warmup: int = 0, startup: int = 1, goal: Direction | None = None) -> Pruner:
        """``percentile(50)``: stops what is worse than the median."""
        return PercentilePruner(50.0, warmup, startup, goal)

    @staticmethod
    def threshold(lower: float | None = None, upper: float | None = None) -> Pruner:
        """Stops a trial whose latest report is below ``lower`` or above ``upper``."""
        return ThresholdPruner(lower, upper)

    @staticmethod
    def patience(steps: int, min_delta: float = 0.0, *, goal: Direction | None = None) -> Pruner:
        """Stops a trial that has not become better by more than ``min_delta`` for ``steps``
        reports."""
        return PatiencePruner(steps, min_delta, goal)

    @staticmethod
    def diverged() -> Pruner:
        """Stops a trial that reports NaN, which every pruner does, and nothing else."""
        return DivergedPruner()

    @staticmethod
    def asha(eta: int = 4, first: int = 1, *, goal: Direction | None = None) -> Pruner:
        """Asynchronous successive halving: after ``first`` reports, ``first * eta``, ``first *
        eta**2`` and so on, stops what is not in the best 1/``eta`` of all that came as far."""
        return AshaPruner(eta, first, goal)


@dataclass(frozen=True)
class PercentilePruner(Pruner):
    percent: float
    warmup: int = 0
    startup: int = 1
    goal: Direction | None = None

    def __post_init__(self) -> None:
        number("percent", self.percent, 0, 100)
        whole("warmup", self.warmup, 0)
        whole("startup", self.startup, 1)
        _own_goal(self.goal)

    def _judge(self, numbers: list[float], others: Others, goal: Direction | None, /) -> str | None:
        goal = _needed(goal)
        if len(numbers) <= self.warmup:
            return None
        reached = _others_at(len(numbers), others, goal)
        if len(reached) < self.startup:
            return None
        mine = best_so_far(numbers, goal)[-1]
        share = self.percent / 100
        bar = quantile(sorted(reached), share if goal == "min" else 1 - share)
        if better_of(bar, mine, goal) == mine or mine == bar:
            return None
        return (
            f"{mine:.6g} is the best of {len(numbers)} reports; {self.percent:g} % of the "
            f"{len(reached)} others had {bar:.6g} or better by then"
        )


@dataclass(frozen=True)
class ThresholdPruner(Pruner):
    lower: float | None = None
    upper: float | None = None

    def __post_init__(self) -> None:
        bounds = [
            number(name, bound)
            for name, bound in (("lower", self.lower), ("upper", self.upper))
            if bound is not None
        ]
        if not bounds:
            raise ConfigurationError("a threshold has a lower bound, an upper one, or both")
        if bounds != sorted(bounds):
            raise ConfigurationError(f"lower {self.lower!r} is above upper {self.upper!r}")

    def _judge(
        self, numbers: list[float], _others: Others, _goal: Direction | None, /
    ) -> str | None:
        latest = numbers[-1]
        if self.lower is not None and latest < self.lower:
            return f"report {len(numbers)} is {latest:.6g}, below {self.lower:g}"
        if self.upper is not None and latest > self.upper:
            return f"report {len(numbers)} is {latest:.6g}, above {self.upper:g}"
        return None


@dataclass(frozen=True)
class PatiencePruner(Pruner):
    steps: int
    min_delta: float = 0.0
    goal: Direction | None = None

    def __post_init__(self) -> None:
        whole("steps", self.steps, 1)
        number("min_delta", self.min_delta, 0)
        _own_goal(self.goal)

    def _judge(
        self, numbers: list[float], _others: Others, goal: Direction | None, /
    ) -> str | None:
        sign = -1.0 if _needed(goal) == "max" else 1.0
        best, since = sign * numbers[0], 1
        for report, value in enumerate(numbers[1:], 2):
            if sign * value < best - self.min_delta:
                best, since = sign * value, report
        if len(numbers) - since < self.steps:
            return None
        return f"nothing better than {sign * best:.6g}, report {since}, in {self.steps} reports"


@dataclass(frozen=True)
class DivergedPruner(Pruner):
    def _judge(
        self, _numbers: list[float], _others: Others, _goal: Direction | None, /
    ) -> str | None:
        return None


@dataclass(frozen=True)
class AshaPruner(Pruner):
    """The stopping form: who is in the best share of those that are there already goes on.

    A rung beyond 24 reports is compared at the step that tails keep before it.
    """

    eta: int = 4
    first: int = 1
    goal: Direction | None = None

    def __post_init__(self) -> None:
        whole("eta", self.eta, 2)
        whole("first", self.first, 1)
        _own_goal(self.goal)

    def _judge(self, numbers: list[float], others: Others, goal: Direction | None, /) -> str | None:
        goal = _needed(goal)
        rung = self.first
        while rung < len(numbers):
            rung *= self.eta
        if rung != len(numbers):
            return None
        mine = best_so_far(numbers[: RUNGS[bisect_right(RUNGS, rung) - 1]], goal)[-1]
        reached = _others_at(rung, others, goal)
        ahead = sum(
            1 for other in reached if other != mine and better_of(mine, other, goal) != mine
        )
        kept = max(1, (len(reached) + 1) // self.eta)
        if ahead < kept:
            return None
        return (
            f"{mine:.6g} is place {ahead + 1} of the {len(reached) + 1} that made {rung} "
            f"reports; the best {kept} go on"
        )


def quantile(ordered: Sequence[float], share: float) -> float:
    """The value below which ``share`` of the sorted values lie, interpolated linearly."""
    place = share * (len(ordered) - 1)
    below = min(math.floor(place), len(ordered) - 1)
    low, high = ordered[below], ordered[min(below + 1, len(ordered) - 1)]
    part = place - below
    if low == high or part == 0:  # which infinities need
        return low
    return low * (1 - part) + high * part


def _others_at(reports: int, others: Others, goal: Direction) -> list[float]:
    """The best so far, by then, of those that came as far."""
    tails = (one if isinstance(one, Tail) else tail(one, goal) for one in others)
    return [best for one in tails if (best := one.at(reports)) is not None]


def _needed(goal: Direction | None) -> Direction:
    if goal is None:
        raise ConfigurationError("nobody said whether reports should become small; goal='min'")
    return goal


def _checked_direction(goal: object) -> Direction:
    if goal not in ("min", "max"):
        raise ConfigurationError(
            f"the goal is {goal!r}; a pruner judges one number, to make 'min' or 'max'"
        )
    return goal


def _own_goal(goal: object) -> None:
    if goal is not None:
        _checked_direction(goal)
