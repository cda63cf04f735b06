"""Where a value lies on an axis, and which values an axis names. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from entrepot.study.influence import is_number
from entrepot.study.text import Value

LOG_FROM = 50.0
"""An axis is logarithmic from this ratio of its highest value to its lowest on."""

T = TypeVar("T")


@dataclass(frozen=True)
class Scale:
    """An axis of numbers.

    :ivar low: its lowest.
    :ivar high: its highest, above ``low``.
    :ivar log: equal distances are equal ratios.
    """

    low: float
    high: float
    log: bool

    def at(self, value: float) -> float:
        """Where the value lies, 0 to 1; what is beyond an end lies on it."""
        if value <= self.low:
            return 0.0
        if value >= self.high:
            return 1.0
        if self.log:
            # Differences of logarithms, since a ratio of two floats may be beyond what one holds.
            low = math.log(self.low)
            return min(1.0, (math.log(value) - low) / (math.log(self.high) - low))
        # Halves, since the difference of two floats may be beyond what one holds.
        return (value / 2 - self.low / 2) / (self.high / 2 - self.low / 2)

    def ticks(self, most: int = 6) -> list[tuple[float, str]]:
        """Round values on the axis: where they lie, and their text."""
        values = self._decades(most) if self.log else []
        if len(values) < 2:
            values = self._steps(most)
        return [(self.at(value), number_text(value)) for value in values]

    def _decades(self, most: int) -> list[float]:
        first = math.ceil(math.log10(self.low) - 1e-9)
        last = math.floor(math.log10(self.high) + 1e-9)
        if last - first < 2:
            return [
                value
                for power in range(first - 1, last + 1)
                for times in (1, 2, 5)
                if self.low <= (value := times * 10.0**power) <= self.high
            ]
        step = max(1, math.ceil((last - first) / (most - 1)))
        return [10.0**power for power in range(first, last + 1, step)]

    def _steps(self, most: int) -> list[float]:
        rough = self.high / most - self.low / most
        power = 10.0 ** math.floor(math.log10(rough)) if rough > 0 else 0.0
        if not power or not math.isfinite(power):
            return [self.low, self.high]
        step = next(power * times for times in (1, 2, 5, 10) if power * times >= rough * 0.999)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        if not 0 <= last - first <= 2 * most:  # the step is lost in the digits of the ends
            return [self.low, self.high]
        return [place * step for place in range(first, last + 1)]


def scale_of(values: Iterable[float]) -> Scale:
    """An axis for the values; those that are not finite are left out."""
    finite = [value for value in values if math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=1.0)
    if low == high:
        room = abs(low) / 2 or 0.5
        low, high = max(low - room, -1.7e308), min(high + room, 1.7e308)
        if low == high:  # of the smallest numbers there is no half
            low, high = low - 0.5, high + 0.5
        return Scale(low, high, False)
    return Scale(low, high, low > 0 and high / low >= LOG_FROM)


@dataclass(frozen=True)
class Axis:
    """An axis of whatever a knob may be: numbers, or categories in alphabetical order.

    :ivar scale: of numbers.
    :ivar words: the categories as text; empty where all values are numbers.
    :ivar only: the one number that there is.
    """

    scale: Scale
    words: tuple[str, ...] = ()
    only: float | None = None

    def at(self, value: Value) -> float:
        """Where the value lies, 0 to 1."""
        if not self.words:
            return self.scale.at(float(value or 0.0))
        return self.scale.at(self.words.index(str(value)))

    def ticks(self, most: int = 5) -> list[tuple[float, str]]:
        """What the axis names. Of numbers its ends, too."""
        if self.words:
            step = max(1, math.ceil(len(self.words) / (2 * most)))
            return [
                (self.scale.at(place), word)
                for place, word in enumerate(self.words)
                if place % step == 0
            ]
        if self.only is not None:
            return [(self.at(self.only), number_text(self.only))]
        ends = [(0.0, number_text(self.scale.low)), (1.0, number_text(self.scale.high))]
        inner = [tick for tick in self.scale.ticks(most) if 0.12 < tick[0] < 0.88]
        return [ends[0], *inner, ends[1]]


def axis_of(values: Sequence[Value]) -> Axis:
    """An axis for the values of a knob."""
    numbers = [float(value) for value in values if is_number(value) and value is not None]
    if len(numbers) == len(values):
        one = numbers[0] if len(set(numbers)) == 1 else None
        return Axis(scale_of(numbers), only=one)
    words = tuple(sorted(set(map(str, values))))
    return Axis(Scale(0.0, max(1.0, len(words) - 1.0), False), words)


def number_text(value: float) -> str:
    """A round number as people write it: ``0.001``, ``50,000``, ``1e-5``."""
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        said = f"{value:,.6f}".rstrip("0").rstrip(".")
        if abs(value) < 1000:
            said = f"{value:.4g}"
        return said
    digits, _, power = f"{value:.3g}".partition("e")
    return f"{digits}e{int(power)}" if power else digits


def thinned(items: Sequence[T], most: int) -> list[T]:
    """At most ``most`` of the items, evenly spread, the first and the last among them."""
    if len(items) <= most:
        return list(items)
    if most < 2:
        return list(items[-most:]) if most else []
    return [items[place * (len(items) - 1) // (most - 1)] for place in range(most)]
