"""A breakpoint before, within, or after the write of a product, over any medium.

As with one that is set in a debugger, the thread that writes stands still there, and the others of
its process go on: it beats, and says HELLO again. Nothing is put in the place of anything.
"""

from __future__ import annotations

import sys
import threading
from types import FrameType
from typing import Any

import xxhash

WRITES = ("post", "write_checksummed")
"""The methods of a medium that write a product: the first calls the second, or does it itself."""

CHUNKS = 2
"""Chunks of a product that are written when it is held within; it must have more."""


class Breakpoint:
    """Holds the thread that armed it until ``go_on`` is set; once for each time.

    :ivar held: how often a thread came to it.
    :ivar passed: writes that are over since, whatever came of them.
    """

    def __init__(self, go_on: threading.Event) -> None:
        self.held = 0
        self.passed = 0
        self._go_on = go_on
        self._where = ""
        self._chunks = 0

    def arm(self, where: str) -> None:
        """Hold this thread in its next write: ``before`` it, ``within`` it, or ``after`` it."""
        self._where = where
        self._chunks = 0
        sys.setprofile(self._look)

    def _look(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "c_call":
            # Over each medium, a chunk is summed when it has been written.
            if isinstance(getattr(argument, "__self__", None), xxhash.xxh3_64):
                self._chunks += argument.__name__ == "update"
                if self._chunks == CHUNKS and self._where == "within":
                    self._hold()
        elif frame.f_code.co_name in WRITES:
            if event == "call" and self._where == "before":
                self._hold()
            elif event == "return":
                if self._where == "after":
                    self._hold()
                sys.setprofile(None)
                self.passed += 1

    def _hold(self) -> None:
        self._where = ""
        self.held += 1
        self._go_on.wait()
