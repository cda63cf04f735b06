"""Ctrl-C and SIGTERM, as a call instead of an exception in the middle of something."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

STOPS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def on_stop(call: Callable[[signal.Signals], None]) -> Iterator[None]:
    """While the block runs, ``call`` is made in the main thread for each of ``STOPS``."""

    def handle(number: int, _frame: FrameType | None) -> None:
        call(signal.Signals(number))

    before = {number: signal.signal(number, handle) for number in STOPS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def exit_code(number: signal.Signals) -> int:
    """What a shell expects of a command that a signal stopped: 130 for Ctrl-C, 143 for SIGTERM."""
    return 128 + number
