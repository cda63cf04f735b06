"""A history as arrays. What was told before is kept: a history mostly grows at its end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from entrepot.study.goals import Goal, Score, losses
from entrepot.study.samplers.base import History
from entrepot.study.samplers.layout import Floats, Layout
from entrepot.study.space import Point

Pair = tuple[Point, Score | None]


class Told(NamedTuple):
    """:ivar rows: ``[point, knob]``, units; NaN for a knob that is not part of a point.
    :ivar losses: ``[point, goal]``, of which lower is better; NaN where there is none.
    :ivar held: ``[point]``: whether it still runs.
    """

    rows: Floats
    losses: Floats
    held: NDArray[np.bool_]


class Teller:
    """Turns histories into arrays; keeps the last one, of which only what is new is looked at."""

    def __init__(self) -> None:
        self._kept: tuple[Layout, list[Pair], Told] | None = None

    def tell(self, layout: Layout, history: History, goal: Goal) -> Told:
        """
        :raises ConfigurationError: a score is none of the goal's.
        :raises PointError: a point is not one of the space's.
        """
        pairs = list(history)
        if not isinstance(goal, str):
            # The scores are mappings, which whoever has them may change.
            return _told(layout, pairs, goal)
        kept = self._kept
        same = shared(kept[1], pairs) if kept is not None and kept[0] is layout else 0
        if kept is not None and same == len(kept[1]) == len(pairs):
            return kept[2]
        new = pairs[same:]
        told = _told(layout, new, goal)
        if kept is not None and same:
            both = zip(kept[2], told, strict=True)
            told = Told(*(np.concatenate([old[:same], more]) for old, more in both))
        self._kept = (layout, pairs, told) if _is_fixed(new) else None
        return told


def shared(before: list[Pair], now: list[Pair]) -> int:
    """How many pairs at the beginning are the same objects in both, or nearly so many."""
    count = min(len(before), len(now))
    if not count or before[0][0] is not now[0][0]:
        return 0  # all made anew: to find the points equal would cost more than to look at them
    if before[:count] == now[:count]:
        return count
    low, high = 0, count
    while high - low > 1:
        middle = (low + high) // 2
        if before[low:middle] == now[low:middle]:
            low = middle
        else:
            high = middle
    return low


def _is_fixed(pairs: Sequence[Pair]) -> bool:
    """Whether nobody can change them behind our back."""
    return {tuple} >= set(map(type, pairs)) and {Point} >= {type(point) for point, _ in pairs}


def _told(layout: Layout, pairs: Sequence[Pair], goal: Goal) -> Told:
    rows = layout.rows([point for point, _ in pairs])
    scores = [score for _, score in pairs]
    goals = 1 if isinstance(goal, str) else len(goal)
    held = np.zeros(len(scores), bool)
    if isinstance(goal, str) and {float, int} >= set(map(type, scores)):
        found = np.array(scores, float).reshape(-1, 1)  # all at once, where all are plain numbers
        return Told(rows, -found if goal == "max" else found, held)
    found = np.full((len(scores), goals), np.nan)
    for place, score in enumerate(scores):
        if score is None:
            held[place] = True
        else:
            found[place] = losses(score, goal)
    return Told(rows, found, held)
