"""Which of several results are better, also when each is several numbers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from entrepot.study.samplers.layout import Floats

Indices = NDArray[np.intp]


def best_first(losses: Floats, count: int) -> tuple[Indices, Indices]:
    """The indices of the ``count`` best rows, best first, and of the others in their own order.

    With several columns the rows that nothing dominates come first, then those that only these
    dominate, and so on; where a front does not fit whole, the rows whose neighbours are furthest
    (the crowding distance of Deb et al., 2002). What is equal keeps its order.

    :param losses: ``[result, goal]``, lower is better; infinite ones may be among them.
    """
    if losses.shape[1] == 1:
        return _lowest_first(losses[:, 0], count)
    left = np.arange(len(losses))
    chosen: list[Indices] = []
    while count:
        front = left[nondominated(losses[left])]
        if len(front) > count:
            spread = crowding(losses[front])
            front = front[np.argsort(-spread, kind="stable")[:count]]
        chosen.append(front)
        count -= len(front)
        left = np.setdiff1d(left, front)
    return np.concatenate([*chosen, left[:0]]), left


def _lowest_first(losses: Floats, count: int) -> tuple[Indices, Indices]:
    """The same for one goal, without sorting all of them."""
    others = np.ones(len(losses), bool)
    if not 0 < count <= len(losses):
        return np.arange(0), np.flatnonzero(others)
    bar = np.partition(losses, count - 1)[count - 1]
    near = np.flatnonzero(losses <= bar)
    best = near[np.argsort(losses[near], kind="stable")[:count]]
    others[best] = False
    return best, np.flatnonzero(others)


def nondominated(losses: Floats) -> NDArray[np.bool_]:
    """``[result]``: whether no other row is nowhere above it and somewhere below."""
    # In this order a row can only be dominated by one before it.
    rows, place = np.unique(losses, axis=0, return_inverse=True)
    place = place.reshape(-1)
    if rows.shape[1] == 2:
        lowest = np.minimum.accumulate(rows[:, 1])
        return np.append(True, rows[1:, 1] < lowest[:-1])[place]
    keep: list[int] = []
    for row in range(len(rows)):
        if not (rows[keep] <= rows[row]).all(axis=1).any():
            keep.append(row)
    return np.isin(place, keep)


def crowding(losses: Floats) -> Floats:
    """``[result]``: how far apart each row's neighbours are, summed over the columns, as parts of
    the range; infinite at the ends."""
    spread = np.zeros(len(losses))
    for column in losses.T:
        order = np.argsort(column, kind="stable")
        values = column[order]
        inner = np.zeros(len(values))
        reach = values[-1] - values[0]
        if 0 < reach < np.inf:
            inner[1:-1] = (values[2:] - values[:-2]) / reach
        inner[[0, -1]] = np.inf
        spread[order] += inner
    return spread
