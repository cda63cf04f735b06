"""What better means: one score to make small or large, or several at once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from typing import Literal

from entrepot.errors import ConfigurationError

Direction = Literal["min", "max"]

Goal = Direction | Mapping[str, Direction]
"""``"min"``, ``"max"``, or a direction for each of several scores by its name."""

Score = float | Mapping[str, float]
"""What a trial reached: a number, or one for each name of the goal."""


def checked_goal(goal: object) -> Goal:
    """``goal``, or an error where it was typed.

    :raises ConfigurationError: it is neither a direction nor a mapping of names to directions.
    """
    if goal in ("min", "max") and isinstance(goal, str):
        return goal
    if isinstance(goal, Mapping) and goal:
        for name, direction in goal.items():
            if not isinstance(name, str) or not name:
                raise ConfigurationError(f"the goal {goal!r} names a score {name!r}; use text")
            if direction not in ("min", "max"):
                raise ConfigurationError(
                    f"the goal for {name!r} is {direction!r}; it is 'min' or 'max'"
                )
        return dict(goal)
    raise ConfigurationError(
        f"the goal is {goal!r}; it is 'min', 'max', or for several scores "
        f"{{'loss': 'min', 'accuracy': 'max'}}"
    )


def losses(score: object, goal: Goal) -> tuple[float, ...]:
    """``score`` as numbers of which lower is better, in the order of the goal; NaN stays.

    :raises ConfigurationError: it is not a score for that goal.
    """
    if isinstance(goal, str):
        return (_loss(score, goal, "the score"),)
    if not isinstance(score, Mapping) or score.keys() != goal.keys():
        raise ConfigurationError(
            f"the score is {score!r}; the goal has a number for each of {', '.join(goal)}"
        )
    return tuple(_loss(score[name], goal[name], f"the score {name!r}") for name in goal)


def _loss(score: object, direction: Direction, what: str) -> float:
    if isinstance(score, bool) or not isinstance(score, Real):
        raise ConfigurationError(f"{what} is {score!r}; it is a number")
    number = float(score)
    return -number if direction == "max" else number


def dominates(left: tuple[float, ...], right: tuple[float, ...]) -> bool:
    """Whether losses ``left`` are nowhere above ``right`` and somewhere below; NaN is worst."""
    pairs = [(_worst(one), _worst(other)) for one, other in zip(left, right, strict=True)]
    return all(one <= other for one, other in pairs) and any(one < other for one, other in pairs)


def _worst(loss: float) -> float:
    return math.inf if math.isnan(loss) else loss
