"""Wait for what is, never for a time."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
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


def until_stopped(pid: int) -> None:
    """Wait until all threads of a process stand still, after a SIGSTOP that it was sent."""
    until(lambda: _states(pid), lambda states: states == {"T"})


def _states(pid: int) -> set[str]:
    found = set()
    for thread in Path(f"/proc/{pid}/task").iterdir():
        # One that ends between two looks is nobody's.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found.add((thread / "stat").read_text().rpartition(")")[2][1])
    return found
