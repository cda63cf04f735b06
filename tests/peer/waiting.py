"""Wait for what is, never for a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

LIMIT_S = 30.0
"""How long anything expected may take on a busy machine."""


def until(
    value: Callable[[], T], holds: Callable[[T], object] = bool, limit_s: float = LIMIT_S
) -> T:
    """The first ``value()`` for which ``holds``; AssertionError with the last one otherwise."""
    give_up = time.monotonic() + limit_s
    while True:
        last = value()
        if holds(last):
            return last
        assert time.monotonic() < give_up, f"not within {limit_s:g} s; the last value: {last!r}"
        time.sleep(0.01)
