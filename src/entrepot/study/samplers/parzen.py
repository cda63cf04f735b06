"""A density over a space out of points in it: a kernel around each, and one over everything.

A kernel is a product over the knobs. In a knob with an order it is a normal distribution, cut off
at the ends; in a choice, a preference for the point's own option. A knob that the point does not
have is uniform. Where a point to be weighed lacks a knob, that knob says nothing.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from entrepot.study.samplers.layout import Floats, Layout

_ROOT = math.log(math.sqrt(2.0 * math.pi))


class Parzen:
    """:param rows: ``[kernel, knob]``, units; NaN where a point lacks the knob.
    :param weights: ``[kernel]``, of any sum.
    :param widths: ``[kernel, ordered knob]``, standard deviations; of any value where the point
        lacks the knob.
    :param stray: of a choice with so many options, the share that goes to all of them evenly.
    :param prior: the weight of the uniform density over the space, beside those of the kernels.
    """

    def __init__(
        self,
        layout: Layout,
        rows: Floats,
        weights: Floats,
        widths: Floats,
        stray: Floats,
        prior: float,
    ) -> None:
        self._layout = layout
        self._middles = rows[:, layout.ordered]
        self._options = rows[:, layout.unordered]
        self._widths = widths
        self._stray = stray
        shares = np.append(weights, prior)
        self._shares = shares / shares.sum()

    def draw(self, units: Floats) -> Floats:
        """A point for each row of ``units``, ``[point, 1 + knob]`` from 0 to 1: the first says
        which kernel, the others what each knob is. Not yet snapped to values that there are."""
        kernel = np.broadcast_to(self._kernels(units[:, :1]), units[:, 1:].shape)
        return self._drawn(kernel, units[:, 1:])

    def draw_crossed(self, units: Floats) -> Floats:
        """The same, but each knob of a point is drawn from a kernel of its own, which the first
        half of ``units``, ``[point, 2 * knob]``, says."""
        knobs = units.shape[1] // 2
        return self._drawn(self._kernels(units[:, :knobs]), units[:, knobs:])

    def _kernels(self, units: Floats) -> NDArray[np.intp]:
        """Which kernel each unit stands for; one beyond the last is the uniform density."""
        found = np.searchsorted(np.cumsum(self._shares), units.ravel(), "right")
        return np.minimum(found, len(self._middles)).reshape(units.shape)

    def _drawn(self, kernel: NDArray[np.intp], units: Floats) -> Floats:
        uniform = kernel == len(self._middles)
        kernel = np.where(uniform, 0, kernel)
        drawn = units.copy()

        columns = self._layout.ordered
        unit, place = drawn[:, columns], (kernel[:, columns], np.arange(len(columns)))
        middle, width = self._middles[place], self._widths[place]
        low, high = ndtr(-middle / width), ndtr((1.0 - middle) / width)
        near = middle + width * ndtri(low + unit * (high - low))
        drawn[:, columns] = np.where(uniform[:, columns] | np.isnan(near), unit, near)

        columns = self._layout.unordered
        unit = drawn[:, columns]
        own = self._options[kernel[:, columns], np.arange(len(columns))]
        anywhere = uniform[:, columns] | np.isnan(own)
        # The lowest units stray, and are spread over all the options again.
        keep = (unit >= self._stray) & ~anywhere
        spread = np.where(anywhere, unit, unit / self._stray)
        drawn[:, columns] = np.where(keep, own, spread)
        return np.clip(drawn, 0.0, 1.0)

    def log_density(self, rows: Floats) -> Floats:
        """``[point]``: the logarithm of the density at each of the snapped ``rows``."""
        logs = self._log_normals(rows[:, self._layout.ordered])
        options = rows[:, self._layout.unordered]
        for column, stray in enumerate(self._stray):
            own, asked = self._options[:, column], options[:, column]
            other = math.log(stray)
            same = math.log(stray + self._layout.choices[column] * (1.0 - stray))
            said = np.where(own[:, None] == asked, same, other)
            if self._layout.conditional:
                said[np.isnan(own)] = 0.0
                said[:, np.isnan(asked)] = 0.0
            logs += said
        top = np.maximum(logs.max(axis=0, initial=0.0), 0.0)
        summed = self._shares[:-1] @ np.exp(logs - top) + self._shares[-1] * np.exp(-top)
        return np.asarray(np.log(summed) + top)

    def _log_normals(self, values: Floats) -> Floats:
        """``[kernel, point]``: the logarithm of each kernel's part that is over ordered knobs.

        ``-(value - middle)**2 / 2 / width**2 + norm`` is a sum of products of what belongs to the
        kernel with what belongs to the point, and so one product of matrices.
        """
        middles, widths = self._middles, self._widths
        inverse = 1.0 / widths
        scaled = middles * inverse
        norm = -np.log(widths * (ndtr(inverse - scaled) - ndtr(-scaled))) - _ROOT
        kernel = np.concatenate([inverse**2, scaled * inverse, norm - scaled**2 / 2], axis=1)
        point = np.concatenate([values**2 / -2, values, np.ones_like(values)], axis=1)
        if self._layout.conditional:
            kernel[np.tile(np.isnan(middles), 3)] = 0.0
            point[np.tile(np.isnan(values), 3)] = 0.0
        return np.asarray(kernel @ point.T)
