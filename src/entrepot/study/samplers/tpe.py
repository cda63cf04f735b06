"""The tree-structured Parzen estimator (Bergstra et al., 2011), over all knobs at once.

The scored trials are split into good ones and others, each pile becomes a density, and of some
points drawn from the good one's that is taken where good outweighs bad the most. What later work
found to matter (Watanabe, 2023) is in it: one density over all knobs, a better trial weighs more
among the good ones, and kernels are narrow among many trials.

A point to be weighed is drawn knob by knob, each from a good trial of its own, and weighed by the
density over all knobs: good trials are crossed, and which of the crosses go together is seen there.
Drawn whole, points stay near the trials that they come from, and one run in 80 near a bad one.

A trial whose score is None is running. Its point joins the pile to keep away from after the split,
so it never changes how many are good: with a made-up bad score, it would make the others look
better than they are, and draw more trials to where it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import ClassVar

import numpy as np

from entrepot.errors import MissingExtra, SpaceError
from entrepot.study import streams
from entrepot.study.checks import number, whole
from entrepot.study.goals import Goal, checked_goal
from entrepot.study.samplers.base import History, Sampler
from entrepot.study.samplers.grid import GridSampler
from entrepot.study.samplers.random import uniform
from entrepot.study.space import Point, Space

try:
    from entrepot.study.samplers.fronts import best_first
    from entrepot.study.samplers.layout import Floats, Layout, layout_of
    from entrepot.study.samplers.parzen import Parzen
    from entrepot.study.samplers.told import Teller
except ImportError as error:
    raise MissingExtra(
        "TPE needs numpy and scipy, which are not installed; pip install 'entrepot[study]'"
    ) from error

MOST_GOOD = 25
"""So many trials are good at most: beyond, more would only blur where it is best."""

MOST_BAD = 1_000
"""So many others are looked at, the last ones: later trials lie closer to where candidates do."""

MOST_LISTED = 10_000
"""Of a space with so few points at most it is found out which were not tried."""

MAX_CANDIDATES = 100_000

# Found on seeds other than those that bench/samplers.py reports.
_GOOD_FLOOR = 1.2
"""Kernels of n good points are at least this over n + 2 wide."""

_GAP = 0.5
"""Beyond it, they are this times the gap to the next point in that knob wide."""

_BAD_WIDTH = 0.4
"""Kernels of n others are this over the root of n wide: narrower, so that what was tried and is
not good is kept away from closely."""

_NARROWEST = 0.01
_CELL = 0.3
"""A kernel over a knob of n values is at least this over n wide."""

_GOOD_STRAY = 7.0
_BAD_STRAY = 0.3
"""How many further kernels' worth of an option goes to all options of a choice: many among the
good ones, so that an option that is not among them yet is tried in time."""


@dataclass(frozen=True)
class TPESampler(Sampler):
    """See :meth:`entrepot.study.Sampler.tpe`."""

    goal: Goal
    startup: int = 10
    candidates: int = 24
    quantile: float = 0.25
    seed: int = 0
    _teller: Teller = field(default_factory=Teller, init=False, repr=False, compare=False)

    looks_back: ClassVar[bool] = True

    def __post_init__(self) -> None:
        checked = {
            "goal": checked_goal(self.goal),
            "startup": whole("startup", self.startup, 0),
            "candidates": whole("candidates", self.candidates, 1, MAX_CANDIDATES),
            "quantile": number("quantile", self.quantile, 1e-9, 1),
            "seed": whole("seed", self.seed),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    def __reduce__(self) -> tuple[type[TPESampler], tuple[object, ...]]:
        # What is kept stays here.
        return type(self), (self.goal, self.startup, self.candidates, self.quantile, self.seed)

    def __hash__(self) -> int:
        return hash(repr(self))

    def _ask(self, space: Space, trial: int, history: History, /) -> Point:
        layout = layout_of(space)
        tried, found, held = self._teller.tell(layout, history, self.goal)
        known = np.flatnonzero(~held & ~np.isnan(found).any(axis=1))
        count = len(known)
        if count < max(self.startup, 2):
            return uniform(space, self.seed, trial)
        good, bad = best_first(found[known], good_count(count, self.quantile))
        for_good = good_density(layout, tried[known[good]])
        others = np.concatenate([known[bad[-MOST_BAD:]], np.flatnonzero(held)])
        for_bad = bad_density(layout, tried[others])
        units = streams.units(self.candidates * 2 * len(space), self.seed, trial, "tpe")
        drawn = layout.snap(for_good.draw_crossed(np.reshape(units, (self.candidates, -1))))
        worth = for_good.log_density(drawn) - for_bad.log_density(drawn)
        order = np.argsort(-worth, kind="stable")
        new = first_new(drawn[order], tried)
        if new is None:  # as in a space of few points
            units = streams.units(self.candidates * len(space), self.seed, trial, "tpe anywhere")
            anywhere = layout.snap(np.reshape(units, (self.candidates, -1)))
            new = first_new(anywhere, tried)
        if new is None:
            everything = all_points(space)
            start = int(units[0] * len(everything))
            new = first_new(np.roll(everything, -start, axis=0), tried)
        return layout.point(drawn[order[0]] if new is None else new)


def good_count(scored: int, quantile: float) -> int:
    """How many of so many trials with a score are good; trials that run are none of them."""
    return max(1, min(math.ceil(quantile * scored), MOST_GOOD, scored - 1))


def good_density(layout: Layout, rows: Floats) -> Parzen:
    """Where it is good. ``rows`` come best first, and weigh the more the better they are."""
    count = len(rows)
    weights = math.log(count + 1) - np.log(np.arange(1, count + 1))
    middles = rows[:, layout.ordered]
    known = np.maximum((~np.isnan(middles)).sum(axis=0), 1)
    widths = clipped(_GAP * gaps(middles), _GOOD_FLOOR / (known + 2), layout)
    return Parzen(
        layout,
        rows,
        weights * (count / weights.sum()),
        widths,
        stray(layout, count, _GOOD_STRAY),
        1.0,
    )


def bad_density(layout: Layout, rows: Floats) -> Parzen:
    """Where it is not, or where others are trying."""
    middles = rows[:, layout.ordered]
    known = np.maximum((~np.isnan(middles)).sum(axis=0), 1)
    width = np.broadcast_to(_BAD_WIDTH / np.sqrt(known), middles.shape)
    widths = clipped(width, np.zeros(len(known)), layout)
    return Parzen(
        layout, rows, np.ones(len(rows)), widths, stray(layout, len(rows), _BAD_STRAY), 1.0
    )


def clipped(widths: Floats, least: Floats, layout: Layout) -> Floats:
    """``[kernel, ordered knob]``, no narrower than makes sense and no wider than the range."""
    floor = np.maximum(np.maximum(least, _NARROWEST), _CELL / layout.cells)
    # NaN, where a point lacks the knob, becomes any width: it is not used.
    return np.nan_to_num(np.clip(widths, floor, np.maximum(floor, 1.0)), nan=1.0)


def gaps(middles: Floats) -> Floats:
    """``[kernel, knob]``: the larger of the distances to the neighbours on either side, among the
    kernels that have the knob; to the further end of the range for one that is alone."""
    found = np.full(middles.shape, np.nan)
    for column, values in enumerate(middles.T):
        known = np.flatnonzero(~np.isnan(values))
        if len(known) == 1:
            found[known, column] = np.maximum(values[known], 1.0 - values[known])
        elif len(known):
            order = known[np.argsort(values[known], kind="stable")]
            steps = np.diff(values[order])
            found[order[0], column], found[order[-1], column] = steps[0], steps[-1]
            found[order[1:-1], column] = np.maximum(steps[:-1], steps[1:])
    return found


def stray(layout: Layout, kernels: int, weight: float) -> Floats:
    """``[unordered knob]``: the share of a kernel that goes to all options evenly."""
    options = weight * np.array(layout.choices, float)
    return options / (kernels + 1 + options)


def first_new(rows: Floats, tried: Floats) -> Floats | None:
    """The first of ``rows`` that is none of ``tried``."""
    for row in rows:
        # Knob by knob, among those that are the same so far: few are, after the first.
        same = np.arange(len(tried))
        for column, value in enumerate(row):
            values = tried[same, column] if column else tried[:, column]
            same = same[np.isnan(values) if math.isnan(value) else values == value]
            if not len(same):
                return np.asarray(row)
    return None


@lru_cache(maxsize=16)
def all_points(space: Space) -> Floats:
    """Every point of a small space as a row; none of one that is not small."""
    options = [knob.options or math.inf for knob in space.knobs]
    if max(options) > MOST_LISTED:
        return np.zeros((0, len(options)))
    grid = GridSampler(max(2, *map(int, options)))
    try:
        total = grid.total(space)
    except SpaceError:
        total = MOST_LISTED + 1
    if total > MOST_LISTED:
        return np.zeros((0, len(options)))
    found = [point for trial in range(total) if (point := grid.ask(space, trial)) is not None]
    return layout_of(space).rows(found)
