"""A space as columns of numbers, for samplers that compute with many points at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import cast

import numpy as np
from numpy.typing import NDArray

from entrepot.study.knobs import ChoiceKnob, IntKnob, Knob
from entrepot.study.space import Given, Point, Space
from entrepot.study.text import Value

Floats = NDArray[np.float64]


class Layout:
    """What a density has to know of a space: a column a knob, filled with units.

    :ivar ordered: the columns of knobs whose values have an order.
    :ivar unordered: those of choices.
    :ivar choices: for each of the unordered how many options it has.
    :ivar cells: for each of the ordered how many values it has; infinite for a real one.
    :ivar conditional: whether any knob is asked for in some points only.
    """

    def __init__(self, space: Space) -> None:
        self.space = space
        kinds = [isinstance(knob, ChoiceKnob) for knob in space.knobs]
        self.ordered = np.flatnonzero(~np.array(kinds))
        self.unordered = np.flatnonzero(kinds)
        self.choices = [knob.options or 0 for knob in space.knobs if isinstance(knob, ChoiceKnob)]
        self.cells = np.array(
            [knob.options or math.inf for knob in space.knobs if not isinstance(knob, ChoiceKnob)]
        )
        self.conditional = any(knob.when for knob in space.knobs)
        self._parents = [
            [
                (space.index(parent), [_code(space[parent], value) for value in values])
                for parent, values in knob.when
            ]
            for knob in space.knobs
        ]

    def rows(self, points: Sequence[Point]) -> Floats:
        """Units, a row a point; NaN for a knob that is not part of it.

        :raises PointError: a point is not one of the space's.
        """
        space = self.space
        try:  # what is said below, for points that have been here before, in a tenth of the time
            known = [point._row for point in points if point.space is space]
            packed = b"".join(cast(list[bytes], known))
        except (AttributeError, TypeError):
            known = []
        if len(known) != len(points):
            packed = b"".join([self._own(point).row for point in points])
        return np.frombuffer(packed).reshape(len(points), len(space))

    def _own(self, point: object) -> Point:
        if isinstance(point, Point) and (point.space is self.space or point.space == self.space):
            return point
        return self.space.point(cast(Given, point))

    def point(self, row: Floats) -> Point:
        """The point of one snapped row."""
        return self.space.at(np.nan_to_num(row).tolist())

    def snap(self, rows: Floats) -> Floats:
        """Rows of any units as rows of points: each at the middle of its value, NaN where the knob
        is not asked for."""
        rows = rows.copy()
        for column, knob in enumerate(self.space.knobs):
            if knob.options is not None:
                rows[:, column] = _middles(knob, rows[:, column])
        if self.conditional:
            for column, parents in enumerate(self._parents):
                for parent, codes in parents:
                    held = _codes(self.space.knobs[parent], rows[:, parent])
                    rows[~np.isin(held, codes), column] = np.nan
        return rows


def _code(knob: Knob, value: Value) -> float:
    """Which of its values that is."""
    return float(_codes(knob, np.array([knob.unit(value)]))[0])


def _codes(knob: Knob, units: Floats) -> Floats:
    """Which of the knob's values lies there; NaN where there is none."""
    if isinstance(knob, IntKnob) and knob.log:
        low, high = math.log(knob.low - 0.5), math.log(knob.high + 0.5)
        return np.clip(np.floor(np.exp(low + units * (high - low)) + 0.5), knob.low, knob.high)
    return np.minimum(np.floor(units * (knob.options or 1)), (knob.options or 1) - 1)


def _middles(knob: Knob, units: Floats) -> Floats:
    codes = _codes(knob, units)
    if isinstance(knob, IntKnob) and knob.log:
        low, high = math.log(knob.low - 0.5), math.log(knob.high + 0.5)
        return (np.log(codes) - low) / (high - low)
    return (codes + 0.5) / (knob.options or 1)


@lru_cache(maxsize=64)
def layout_of(space: Space) -> Layout:
    """The layout, kept for the next question."""
    return Layout(space)
