"""Ctrl-C and SIGTERM, told to a thread instead of in the middle of something.

A Python signal handler runs between two instructions of the main thread, whatever that holds: one
that sets an Event may want the very lock that the interrupted wait has just taken, and then the
process hangs. So handlers do nothing here: a thread hears of signals, see ``entrepot.signals``.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from types import FrameType

from entrepot.signals import STOPS, Handler, handled, heard

__all__ = [
    "AGAIN_S",
    "LEAVE_S",
    "STOPS",
    "Interrupted",
    "exit_code",
    "heard",
    "ignoring",
    "interrupt",
    "interrupting",
    "on_stop",
    "told",
    "unbroken",
]

AGAIN_S = 1.0
"""Seconds after a first signal from which another one is a second: people press twice."""

LEAVE_S = 2.0
"""Seconds to leave in order after a second signal. Who has not left by then is not asked again."""


LOST_S = 0.01
"""Seconds after which an exception that a destructor swallowed is raised again."""

_leaving = False
"""Whether an Interrupted was raised."""


class Interrupted(BaseException):
    """A signal, on its way through whatever was going on to the exit."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(f"stopped by {number.name}")
        self.number = number


@contextmanager
def ignoring(call: Callable[[signal.Signals], None]) -> Iterator[None]:
    """:func:`heard`, and for as long nothing else happens at ``STOPS``."""
    with heard(call), _handled(lambda _number, _frame: None):
        yield


@contextmanager
def on_stop(
    call: Callable[[signal.Signals], None], clock: Callable[[], float] = time.monotonic
) -> Iterator[None]:
    """:func:`heard`, and for as long nothing else happens at ``STOPS``.

    Unless they are repeated: what has not ended after ``AGAIN_S`` is ended by another signal, as by
    :func:`interrupting`.
    """
    last_at: float | None = None

    def is_second() -> bool:
        nonlocal last_at
        now = clock()
        if last_at is not None and now - last_at < AGAIN_S:
            return False
        second, last_at = last_at is not None, now  # leaving takes its time as well
        return second

    with told(call, is_second, again_s=AGAIN_S, clock=clock):
        yield


@contextmanager
def interrupting(leave_s: float = LEAVE_S) -> Iterator[None]:
    """While the block runs, the first of ``STOPS`` raises Interrupted in the main thread.

    Those that follow do not disturb the leaving.
    """
    was_told = False

    def is_first() -> bool:
        nonlocal was_told
        first, was_told = not was_told, True
        return first

    with told(lambda _: None, is_first, again_s=None, leave_s=leave_s):
        yield


@contextmanager
def told(
    call: Callable[[signal.Signals], None],
    raises: Callable[[], bool],
    *,
    again_s: float | None,
    leave_s: float = LEAVE_S,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[None]:
    """:func:`heard`; and those of ``STOPS`` for which ``raises()`` raise Interrupted.

    One that is lost in a destructor is raised again. But an exception at any moment may also find
    a lock taken. So what has not ended ``leave_s`` after a signal is ended by force: a signal that
    came ``again_s`` after the first one or, with None, that one.
    """
    over = threading.Event()
    raised: Interrupted | None = None
    lost = False

    def handle(number: int, _frame: FrameType | None) -> None:
        global _leaving
        nonlocal raised, lost
        if _shield.depth:
            _shield.waiting = partial(handle, number, None)
            return
        if lost or raises():
            lost = False
            _leaving = True
            raised = Interrupted(signal.Signals(number))
            raise raised

    def lose(fault: Interrupted) -> None:
        nonlocal lost
        lost = True
        # From another thread, and a moment later: here it would be lost once more.
        threading.Thread(target=_tell_main, args=(fault.number, over), daemon=True).start()

    with heard(_insisting(call, over, again_s, leave_s, clock)):
        try:
            with _handled(handle), _found(lambda fault: fault is raised, lose):
                yield
        except Exception as fault:
            if raised is None:
                raise
            raise raised from fault  # what it broke on its way out is not why the block ended
        finally:
            over.set()


def _insisting(
    call: Callable[[signal.Signals], None],
    over: threading.Event,
    again_s: float | None,
    leave_s: float,
    clock: Callable[[], float],
) -> Callable[[signal.Signals], None]:
    """``call``; and the end of the process, if ``over`` is not set in time."""
    first_at: float | None = None

    def hear(number: signal.Signals) -> None:
        nonlocal first_at
        now = clock()
        insists = again_s is None if first_at is None else now - first_at >= (again_s or 0.0)
        if first_at is None:
            first_at = now
        if insists and not over.wait(leave_s):
            _let_go()
            os._exit(exit_code(number))
        call(number)

    return hear


@contextmanager
def _found(
    is_ours: Callable[[object], bool], lose: Callable[[Interrupted], None]
) -> Iterator[None]:
    """While the block runs, ``lose`` is told of exceptions that a destructor swallows and
    ``is_ours``."""
    before = sys.unraisablehook

    def hook(swallowed: sys.UnraisableHookArgs, /) -> None:
        fault = swallowed.exc_value
        if isinstance(fault, Interrupted) and is_ours(fault):
            lose(fault)
        else:
            before(swallowed)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before


def _tell_main(number: signal.Signals, over: threading.Event) -> None:
    """The signal once more, unless the block has ended by then."""
    if not over.wait(LOST_S):
        with suppress(ProcessLookupError):
            signal.pthread_kill(threading.main_thread().ident or 0, number)


def _let_go() -> None:
    """Remove what lies in ``/dev/shm`` for this process, if it has come to make anything there.

    Not by an import: the main thread may be stuck in one.
    """
    owned = sys.modules.get("entrepot.mediums.owned")
    if owned is not None:
        owned.end_all()


def interrupt(_number: int, _frame: FrameType | None) -> None:
    """For Ctrl-C outside of these blocks: what Python does, unless the process is leaving."""
    if not _leaving:
        raise KeyboardInterrupt


def _handled(handle: Handler) -> AbstractContextManager[None]:
    return handled(dict.fromkeys(STOPS, handle))


class _Shield:
    """How many blocks the main thread is in that no signal may cut short, and what waits for it."""

    def __init__(self) -> None:
        self.depth = 0
        self.waiting: Callable[[], None] | None = None


_shield = _Shield()


@contextmanager
def unbroken() -> Iterator[None]:
    """What a signal would raise in the block is raised at its end. For the main thread.

    Around what makes something and then notes that it has: broken in between, nobody would know of
    it. It has to be short.
    """
    _shield.depth += 1
    try:
        yield
    finally:
        _shield.depth -= 1
        if not _shield.depth:
            waiting, _shield.waiting = _shield.waiting, None
            if waiting is not None:
                waiting()


def exit_code(number: signal.Signals) -> int:
    """What a shell expects of a command that a signal stopped: 130 for Ctrl-C, 143 for SIGTERM."""
    return 128 + number
