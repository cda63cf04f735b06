"""What a trial reported, and the short form of it that a record carries.

A *tail* has the best so far of a curve at :data:`RUNGS`, 64 numbers of reports that are the same
for every curve: each up to 24, then a third further each time. Curves can so be compared at any
number of reports without being fetched.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import SupportsFloat

from entrepot.errors import ConfigurationError
from entrepot.study.goals import Direction


def _rungs() -> tuple[int, ...]:
    rungs = list(range(1, 25))
    while len(rungs) < 64:
        rungs.append(rungs[-1] * 4 // 3)
    return tuple(rungs)


RUNGS = _rungs()
"""Numbers of reports; the last is about two million, and stands for what comes after it too."""


@dataclass(frozen=True, slots=True)
class Tail:
    """:ivar length: how many reports the curve has.
    :ivar best: the best so far at each of :data:`RUNGS` that the curve reached. Before the first
        number that is not NaN it is infinite, as bad as can be.
    :ivar last: the best so far after all the reports; none when there are none.
    """

    length: int
    best: tuple[float, ...]
    last: float | None

    def at(self, reports: int) -> float | None:
        """The best so far at the last rung that is not beyond ``reports``; none for a curve that
        does not reach ``reports``."""
        if not 1 <= reports <= self.length:
            return None
        return self.best[bisect_right(RUNGS, reports) - 1]

    def __str__(self) -> str:
        """``length:last:best,best,...``, every number by ``repr``."""
        if self.last is None:
            return "0"
        return f"{self.length}:{self.last!r}:{','.join(map(repr, self.best))}"

    @classmethod
    def read(cls, said: str) -> Tail:
        """The inverse of ``str``.

        :raises ConfigurationError: it was not written by it.
        """
        if said == "0":
            return cls(0, (), None)
        try:
            length, last, best = said.split(":")
            made = cls(int(length), tuple(map(float, best.split(","))), float(last))
        except ValueError:
            made = None
        if made is None or len(made.best) != bisect_right(RUNGS, made.length) or made.length < 1:
            raise ConfigurationError(f"{said[:60]!r} is not the tail of a curve")
        return made


def tail(reports: Iterable[SupportsFloat], goal: Direction) -> Tail:
    """The tail of a whole curve.

    :raises ConfigurationError: a report is not a number.
    """
    numbers = numbers_of(reports)
    so_far = best_so_far(numbers, goal)
    best = tuple(so_far[rung - 1] for rung in RUNGS[: bisect_right(RUNGS, len(so_far))])
    return Tail(len(numbers), best, so_far[-1] if so_far else None)


def longer(tail: Tail, report: SupportsFloat, goal: Direction) -> Tail:
    """``tail`` after one more report.

    :raises ConfigurationError: the report is not a number.
    """
    last = worst(goal) if tail.last is None else tail.last
    last = better_of(last, number_of(report), goal)
    length = tail.length + 1
    reached = len(tail.best) < len(RUNGS) and RUNGS[len(tail.best)] == length
    return Tail(length, (*tail.best, last) if reached else tail.best, last)


def best_so_far(numbers: Sequence[float], goal: Direction) -> list[float]:
    """At each report the best of those up to it; NaN is passed over."""
    found: list[float] = []
    best = worst(goal)
    for number in numbers:
        best = better_of(best, number, goal)
        found.append(best)
    return found


def better_of(best: float, number: float, goal: Direction) -> float:
    if goal == "max":
        return number if number > best else best
    return number if number < best else best


def worst(goal: Direction) -> float:
    return -math.inf if goal == "max" else math.inf


def numbers_of(reports: Iterable[SupportsFloat]) -> list[float]:
    """Reports as floats.

    :raises ConfigurationError: one is not a number.
    """
    return [number_of(report) for report in reports]


def number_of(report: SupportsFloat) -> float:
    """One report as a float; what has one number in it, such as a tensor, will do.

    :raises ConfigurationError: it is not a number.
    """
    try:
        if isinstance(report, str | bytes | bool):
            raise TypeError
        return float(report)
    except OverflowError:
        raise ConfigurationError(f"a report is {report!r:.60}, beyond what a float holds") from None
    except (TypeError, ValueError, RuntimeError):  # torch raises a RuntimeError
        raise ConfigurationError(
            f"a report is {report!r:.60}; report one number, such as loss.item()"
        ) from None
