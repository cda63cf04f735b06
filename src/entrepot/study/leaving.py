"""SIGTERM as an exception, so that a trial which is cut short is handed back."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from entrepot.signals import handling


class Terminated(SystemExit):
    """SIGTERM came. The process ends with the status that one which was not caught would give."""

    def __init__(self) -> None:
        super().__init__(128 + signal.SIGTERM)


@contextmanager
def terminated() -> Iterator[None]:
    """Within it SIGTERM raises Terminated in the main thread, unless somebody handles it already.

    Elsewhere than in the main thread it does nothing, since Python does not let us.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    if before is not signal.SIG_DFL:
        yield
        return

    def end(_number: int, _frame: FrameType | None) -> None:
        # A second one must not cut off the writing that the first began.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise Terminated

    with handling({signal.SIGTERM: end}):
        yield
