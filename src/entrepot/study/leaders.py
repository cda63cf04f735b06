"""The best few of many trials, without a table of all of them. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from heapq import nsmallest

from entrepot.errors import ConfigurationError
from entrepot.study.fronts import front
from entrepot.study.goals import Goal, losses
from entrepot.study.trials import DONE, Attempt


def leaders(attempts: Iterable[Attempt], goal: Goal | None, most: int) -> list[Attempt]:
    """Of those that are done the ``most`` best, the best first; of several goals the Pareto front,
    whole. Without a goal, those with the highest numbers.

    Those whose score is none of the goal's are left out.
    """
    done = [one for one in attempts if one.meta.state == DONE]
    if goal is None:
        return nsmallest(most, done, key=lambda one: -one.trial)
    if isinstance(goal, str):
        sign = -1.0 if goal == "max" else 1.0
        scored = [
            (sign * score, one.trial, one)
            for one in done
            if (score := _number(one.meta.score)) is not None
        ]
        return [one for _, _, one in nsmallest(most, scored)]
    reached: list[tuple[float, ...]] = []
    kept: list[Attempt] = []
    for one in done:
        try:
            reached.append(losses(one.score, goal))
        except (ConfigurationError, ValueError):
            continue
        kept.append(one)
    return [kept[place] for place in front(reached)]


def _number(said: str) -> float | None:
    """A score's text as a number that has a place in an order; it is read a hundred thousand times
    at once."""
    try:
        number = float(said)
    except ValueError:
        return None
    return None if math.isnan(number) else number
