"""Random numbers that are a function of where they are used, and of nothing else.

Each stream begins at the hash of (seed, trial, purpose, knob): any machine draws the same for the
same trial, in any order, and what is drawn for one trial or knob says nothing about another. The
numbers are those of SHAKE128 (FIPS 202), which no release of any library changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from hashlib import shake_128
from struct import unpack

_UNIT = 2.0**-53


def words(count: int, seed: int, trial: int, purpose: str, knob: str = "") -> tuple[int, ...]:
    """``count`` numbers of 64 random bits. Asking for more gives the same ones first."""
    # The name comes last: it is the only part that may contain the separator.
    key = f"entrepot 1\n{seed}\n{trial}\n{purpose}\n{knob}"
    return unpack(f"<{count}Q", shake_128(key.encode()).digest(8 * count))


def unit(word: int) -> float:
    """A word as a number from 0 to 1, 1 excluded, with all the 53 bits of a float."""
    return (word >> 11) * _UNIT


def units(count: int, seed: int, trial: int, purpose: str, knob: str = "") -> list[float]:
    """``count`` numbers from 0 to 1, 1 excluded."""
    return [(word >> 11) * _UNIT for word in words(count, seed, trial, purpose, knob)]


@lru_cache(maxsize=2_048)
def permutation(size: int, seed: int, trial: int, purpose: str, knob: str = "") -> Sequence[int]:
    """The numbers below ``size``, each once, in an order of the stream's; kept for the next."""
    drawn = words(size, seed, trial, purpose, knob)
    return sorted(range(size), key=drawn.__getitem__)
