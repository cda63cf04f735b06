"""Halton points (Halton, 1960), with digits scrambled linearly (Matousek, 1998)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import count

from entrepot.study import streams
from entrepot.study.checks import whole
from entrepot.study.samplers.base import History, Sampler
from entrepot.study.space import Point, Space

_MOST = 2**53
"""Digits are added until they tell apart as much as a float does."""


@dataclass(frozen=True)
class HaltonSampler(Sampler):
    """The trial's number in the base of a prime a knob, mirrored at the point."""

    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", whole("seed", self.seed))

    def _ask(self, space: Space, trial: int, _history: History, /) -> Point:
        return space.at(
            [_mirrored(trial, *_scramble(self.seed, index)) for index in range(len(space))]
        )


def _mirrored(number: int, base: int, scramble: tuple[tuple[int, int], ...]) -> float:
    digits = 0
    for factor, shift in scramble:
        number, digit = divmod(number, base)
        digits = digits * base + (factor * digit + shift) % base
    places: int = base ** len(scramble)
    return min(digits / places, 1.0 - 2.0**-53)


@lru_cache(maxsize=4_096)
def _scramble(seed: int, dimension: int) -> tuple[int, tuple[tuple[int, int], ...]]:
    """The base, and for each place by what a digit is multiplied and what is then added."""
    base = primes(dimension + 1)[dimension]
    places = next(places for places in count(1) if base**places >= _MOST)
    drawn = streams.words(2 * places, seed, dimension, "halton")
    pairs = zip(drawn[::2], drawn[1::2], strict=True)
    return base, tuple((1 + one % (base - 1), other % base) for one, other in pairs)


@lru_cache(maxsize=1)
def primes(least: int) -> tuple[int, ...]:
    """At least the first ``least`` primes."""
    found: list[int] = []
    for number in count(2):
        if all(number % prime for prime in found if prime * prime <= number):
            found.append(number)
            if len(found) >= max(least, 64):
                return tuple(found)
    raise AssertionError
