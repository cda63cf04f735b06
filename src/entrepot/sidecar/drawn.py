"""Pictures of numbers as SVG, whose classes the style sheet colours. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 1000.0, 180.0
SPARK_WIDTH, SPARK_HEIGHT = 96.0, 20.0
TICKS = 4


@dataclass(frozen=True)
class Line:
    """One series: its name, the points of its polyline, what it is now and was at most."""

    name: str
    points: str
    now: float
    most: float


@dataclass(frozen=True)
class Chart:
    """Series over time, in a box of :data:`WIDTH` by :data:`HEIGHT`.

    :ivar ticks: heights in the box, and the values that stand there.
    :ivar span_s: seconds from its left to its right.
    """

    lines: tuple[Line, ...]
    ticks: tuple[tuple[float, float], ...]
    span_s: float
    width: float = WIDTH
    height: float = HEIGHT


def chart(
    at: Sequence[float], series: Mapping[str, Sequence[float]], window: tuple[float, float]
) -> Chart:
    """Each series as a line; ``at`` are moments within ``window``, both in seconds."""
    begin, end = window
    span = max(end - begin, 1e-9)
    top = nice(max((max(values, default=0.0) for values in series.values()), default=0.0))
    lines = tuple(
        Line(
            name,
            " ".join(
                f"{WIDTH * (moment - begin) / span:.1f},{HEIGHT * (1 - value / top):.1f}"
                for moment, value in zip(at, values, strict=True)
            ),
            values[-1] if values else 0.0,
            max(values, default=0.0),
        )
        for name, values in series.items()
    )
    ticks = tuple((HEIGHT * (1 - part / TICKS), top * part / TICKS) for part in range(TICKS + 1))
    return Chart(lines, ticks, span)


def nice(most: float) -> float:
    """The least of 4, 8, 20, 40, 80, 200 ... that is not below ``most``: its quarters are whole."""
    if most <= 4:
        return 4.0
    power = 10.0 ** math.floor(math.log10(most / 4))
    return next(4 * power * step for step in (1, 2, 5, 10) if 4 * power * step >= most)


def spark(values: Sequence[float]) -> str:
    """The points of a small line without axes; nothing for fewer than two finite numbers."""
    kept = [(place, value) for place, value in enumerate(values) if math.isfinite(value)]
    if len(kept) < 2:
        return ""
    low, high = min(value for _, value in kept), max(value for _, value in kept)
    span, last = high - low or 1.0, len(values) - 1
    return " ".join(
        f"{SPARK_WIDTH * place / last:.1f},"
        f"{1 + (SPARK_HEIGHT - 2) * (1 - (value - low) / span):.1f}"
        for place, value in kept
    )


def parts(counts: Mapping[str, int], width: float) -> list[tuple[str, float, float]]:
    """Where each part of a bar of ``width`` begins, and how wide it is; those of nothing are left
    out."""
    total = sum(counts.values())
    found: list[tuple[str, float, float]] = []
    begin = 0.0
    for name, count in counts.items():
        if count > 0:
            wide = width * count / total
            found.append((name, begin, wide))
            begin += wide
    return found
