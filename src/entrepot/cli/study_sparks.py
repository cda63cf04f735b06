"""A curve in a few characters."""

from __future__ import annotations

import math
from collections.abc import Sequence

LEVELS = "▁▂▃▄▅▆▇█"
NONE = "·"
"""Stands for NaN and infinities."""

WIDTH = 24


def spark(curve: Sequence[float], width: int = WIDTH) -> str:
    """The curve from its lowest to its highest, each at most ``width`` characters. Of a longer one
    every character is the last report of its share."""
    if len(curve) > width:
        curve = [curve[(place + 1) * len(curve) // width - 1] for place in range(width)]
    finite = [one for one in curve if math.isfinite(one)]
    if not finite:
        return NONE * len(curve)
    low, high = min(finite), max(finite)
    return "".join(_level(one, low, high) for one in curve)


def _level(value: float, low: float, high: float) -> str:
    if not math.isfinite(value):
        return NONE
    # Halves, since the difference of two floats may be beyond what one holds.
    span = high / 2 - low / 2
    if not span:
        return LEVELS[3]
    share = (value / 2 - low / 2) / span
    return LEVELS[min(len(LEVELS) - 1, int(share * len(LEVELS)))]
