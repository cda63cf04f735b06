"""What samplers are tried on: functions whose lowest value is known. Each gives the regret, which
is 0 at the best point there is.

Branin and Hartmann6 are the usual ones (Surjanovic and Bingham's collection has both). ``mixed`` is
made up: knobs of every kind, of which the best values depend on each other. ``conditional`` is the
tree of Jenatton et al. (2017), in which a leaf's knob is asked for on one of four paths and a
shared one on two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from entrepot.study import Space

Landscape = Callable[[Mapping[str, Any]], float]

_ROWS = (
    (10.0, 3.0, 17.0, 3.5, 1.7, 8.0),
    (0.05, 10.0, 17.0, 0.1, 8.0, 14.0),
    (3.0, 3.5, 1.7, 10.0, 17.0, 8.0),
    (17.0, 8.0, 0.05, 10.0, 0.1, 14.0),
)
_CENTRES = (
    (0.1312, 0.1696, 0.5569, 0.0124, 0.8283, 0.5886),
    (0.2329, 0.4135, 0.8307, 0.3736, 0.1004, 0.9991),
    (0.2348, 0.1451, 0.3522, 0.2883, 0.3047, 0.6650),
    (0.4047, 0.8828, 0.8732, 0.5743, 0.1091, 0.0381),
)
_HEIGHTS = (1.0, 1.2, 3.0, 3.2)


def branin(point: Mapping[str, Any]) -> float:
    x, y = point["x"], point["y"]
    bent = y - 5.1 / (4 * math.pi**2) * x**2 + 5 / math.pi * x - 6
    return float(bent**2 + 10 * (1 - 1 / (8 * math.pi)) * math.cos(x) + 10 - 0.39788735772973816)


def hartmann6(point: Mapping[str, Any]) -> float:
    place = [point[f"x{axis}"] for axis in range(6)]
    total = 3.322368011391339
    for height, row, centre in zip(_HEIGHTS, _ROWS, _CENTRES, strict=True):
        distance = sum(a * (x - c) ** 2 for a, x, c in zip(row, place, centre, strict=True))
        total -= height * math.exp(-distance)
    return total


def mixed(point: Mapping[str, Any]) -> float:
    best_lr = {"adam": -3.0, "sgd": -1.5, "rmsprop": -3.5}[point["opt"]]
    loss: float = 0.5 * (math.log10(point["lr"]) - best_lr) ** 2
    loss += {"adam": 0.0, "sgd": 0.1, "rmsprop": 0.15}[point["opt"]]
    loss += ((point["depth"] - 4) / 4) ** 2 + (math.log2(point["width"] / 192) / 4) ** 2
    loss += 4 * (point["dropout"] - 0.1 - 0.05 * (point["depth"] - 4)) ** 2
    return loss if point["norm"] else loss + 0.2


def conditional(point: Mapping[str, Any]) -> float:
    if point["x1"] == "left":
        leaf = point["x4"] ** 2 if point["x2"] == "left" else point["x5"] ** 2 + 0.1
        return float(leaf + point["r8"])
    leaf = point["x6"] ** 2 + 0.2 if point["x3"] == "left" else point["x7"] ** 2 + 0.3
    return float(leaf + point["r9"])


def _cube(axes: int) -> Space:
    space = Space()
    for axis in range(axes):
        space = space.real(f"x{axis}", 0.0, 1.0)
    return space


_SIDES = ("left", "right")

LANDSCAPES: dict[str, tuple[Space, Landscape]] = {
    "branin": (Space().real("x", -5.0, 10.0).real("y", 0.0, 15.0), branin),
    "hartmann6": (_cube(6), hartmann6),
    "mixed": (
        Space()
        .real("lr", 1e-5, 1.0, log=True)
        .int("depth", 1, 8)
        .int("width", 16, 1024, log=True)
        .choice("opt", ["adam", "sgd", "rmsprop"])
        .real("dropout", 0.0, 0.7)
        .bool("norm"),
        mixed,
    ),
    "conditional": (
        Space()
        .choice("x1", _SIDES)
        .choice("x2", _SIDES, when={"x1": "left"})
        .choice("x3", _SIDES, when={"x1": "right"})
        .real("x4", -1.0, 1.0, when={"x2": "left"})
        .real("x5", -1.0, 1.0, when={"x2": "right"})
        .real("x6", -1.0, 1.0, when={"x3": "left"})
        .real("x7", -1.0, 1.0, when={"x3": "right"})
        .real("r8", 0.0, 1.0, when={"x1": "left"})
        .real("r9", 0.0, 1.0, when={"x1": "right"}),
        conditional,
    ),
}
