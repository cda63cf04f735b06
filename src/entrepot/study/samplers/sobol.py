"""Sobol points, addressed by their number.

The direction numbers are Joe and Kuo's (2008), as scipy has them. The points are scrambled by a
random lower triangular matrix and a shift a knob (Matousek, 1998), which keeps what makes them
even: any 2**k trials in a row that begin at a multiple of 2**k fill equal boxes equally.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from entrepot.errors import ConfigurationError, MissingExtra
from entrepot.study import streams
from entrepot.study.checks import whole
from entrepot.study.samplers.base import History, Sampler
from entrepot.study.space import Point, Space

try:
    from scipy.stats import qmc
except ImportError as error:
    raise MissingExtra(
        "Sobol points need scipy, which is not installed; pip install 'entrepot[study]'"
    ) from error

Words = NDArray[np.uint64]

BITS = 52
"""Binary places of a coordinate."""

_WALKED_BITS = 32
"""Of them, those that scipy gives; the others come with the scrambling."""

MAX_TRIALS = 2**28
"""A sequence is this long; its direction numbers are found by walking it, once, to the power of
two above the highest trial asked for."""

_WALK = 14
"""So far is walked at first, as a power of two: a millisecond or so."""


@dataclass(frozen=True)
class SobolSampler(Sampler):
    """One coordinate a knob, whether the knob is asked for or not."""

    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", whole("seed", self.seed))

    def _ask(self, space: Space, trial: int, _history: History, /) -> Point:
        if trial >= MAX_TRIALS:
            raise ConfigurationError(
                f"trial {trial:,} is beyond the {MAX_TRIALS:,} of a Sobol sequence; take another "
                f"seed, or Sampler.halton"
            )
        engine = _engine(self.seed, len(space), max(_WALK, trial.bit_length()))
        return space.at(engine.at(trial))


class Engine:
    """A scrambled sequence in some dimensions, of ``2**places`` points."""

    def __init__(self, directions: Words, shift: Words) -> None:
        self._directions = directions  # [place, dimension]
        self._shift = shift

    def at(self, number: int) -> list[float]:
        """The coordinates of point ``number``, each from 0 to 1, 1 excluded."""
        code = number ^ (number >> 1)  # Gray's: neighbours differ in one direction number
        places = [place for place in range(code.bit_length()) if code >> place & 1]
        mixed = np.bitwise_xor.reduce(self._directions[places], axis=0) ^ self._shift
        units: list[float] = (mixed * 2.0**-BITS).tolist()
        return units


@lru_cache(maxsize=64)
def _engine(seed: int, dimensions: int, places: int) -> Engine:
    directions = scrambled(directions_of(dimensions, places), seed)
    shift = [streams.words(1, seed, d, "sobol shift")[0] >> (64 - BITS) for d in range(dimensions)]
    return Engine(directions, np.array(shift, np.uint64))


@lru_cache(maxsize=64)
def directions_of(dimensions: int, places: int) -> Words:
    """Direction numbers of ``BITS`` bits: ``[place, dimension]``.

    The sequence is walked to each power of two: between point 2**k and point 2**(k-1), in Gray's
    code, only directions k and k-1 differ.
    """
    walker: Any = qmc.Sobol(dimensions, scramble=False, bits=_WALKED_BITS)
    found: Words = np.zeros((places, dimensions), np.uint64)
    walker.random(1)  # the origin
    walked = 1
    for place in range(places):
        walker.fast_forward(2**place - walked)
        point = (walker.random(1)[0] * 2.0**BITS).astype(np.uint64)
        walked = 2**place + 1
        found[place] = point ^ found[place - 1] if place else point
    return found


def scrambled(directions: Words, seed: int) -> Words:
    """Each dimension's directions, multiplied over GF(2) by a random lower triangular matrix."""
    made = np.empty_like(directions)
    # Row r of the matrix is a word whose bits say which bits of a direction make bit r of the
    # result; from the left, those up to r, and r itself always.
    place = np.uint64(1) << np.arange(BITS - 1, -1, -1, dtype=np.uint64)
    above = ~(place - np.uint64(1)) & np.uint64(2**BITS - 1)
    for dimension in range(directions.shape[1]):
        drawn = np.array(streams.words(BITS, seed, dimension, "sobol"), np.uint64)
        rows = (drawn >> np.uint64(64 - BITS)) & above | place
        odd = np.bitwise_count(rows[:, None] & directions[None, :, dimension]) & 1
        made[:, dimension] = (odd.astype(np.uint64) * place[:, None]).sum(axis=0)
    return made
