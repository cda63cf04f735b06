"""Ctrl-C and SIGTERM in time, whatever the main thread is doing.

A Python signal handler runs between two instructions of the main thread. A signal that comes just
before a system call begins to sleep, such as the wait for a lock, is handled when the call returns,
which may be never. But the interpreter writes the number of each signal to a pipe, as it comes; a
thread reads the pipe, and may wait and lock like any other.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

STOPS = (signal.SIGINT, signal.SIGTERM)

Handler = Callable[[int, FrameType | None], None]

LATE_S = 0.01
"""Seconds after which a handler that has not run is late."""

AGAIN = 9
"""How often a signal is sent again whose handler is late; each time after twice as long, so that
the last is 5 s after the first."""


@contextmanager
def heard(
    call: Callable[[signal.Signals], None],
    numbers: Sequence[int] = STOPS,
    *,
    unless_others: bool = False,
) -> Iterator[bool]:
    """While the block runs, ``call`` is made for each of ``numbers``, in a thread of its own.

    Handlers stay what they are; signals that Python does not handle are not heard. For the main
    thread.

    :param unless_others: leave it to somebody else who hears of signals already.
    :returns: whether signals are heard here.
    """
    reading, writing = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(writing, False)
    over = False

    def listen() -> None:
        while not over:
            for number in os.read(reading, 64):
                if number in numbers:
                    call(signal.Signals(number))

    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    if before != -1 and unless_others:
        signal.set_wakeup_fd(before, warn_on_full_buffer=False)
        os.close(reading)
        os.close(writing)
        yield False
        return
    thread = threading.Thread(target=listen, name="entrepot-signals", daemon=True)
    thread.start()
    try:
        yield True
    finally:
        signal.set_wakeup_fd(before)
        over = True
        with suppress(BlockingIOError):  # there is plenty to read
            os.write(writing, b"\0")
        thread.join()
        os.close(reading)
        os.close(writing)


@contextmanager
def handled(handlers: Mapping[int, Handler]) -> Iterator[None]:
    """While the block runs, signals are handled so. For the main thread.

    In a process that is forked meanwhile they are handled as before: it has nothing of ours to
    finish, and no thread that sees to it that a handler runs in time.
    """
    before = {number: signal.signal(number, each) for number, each in handlers.items()}
    one = (handlers, before)
    try:
        _blocks.append(one)
        yield
    finally:
        if one in _blocks:
            _blocks.remove(one)
        for number, handler in before.items():
            signal.signal(number, handler)


_blocks: list[tuple[Mapping[int, Handler], dict[int, Any]]] = []
"""What is handled in the blocks that run, and what was before; the innermost last."""


def _forget_in_child() -> None:
    """What is sent to a forked child is not for us to hear; the pipe is the parent's as well."""
    signal.set_wakeup_fd(-1)
    while _blocks:
        handlers, before = _blocks.pop()
        for number, handler in before.items():
            if signal.getsignal(number) is handlers[number]:  # else it is somebody else's by now
                signal.signal(number, handler)


os.register_at_fork(after_in_child=_forget_in_child)


@contextmanager
def handling(
    handlers: Mapping[int, Handler], call: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """While the block runs, signals are handled so, in the main thread, and in time.

    One whose handler is late is sent again: a sleep that has begun is interrupted by it. Where
    somebody else hears of signals, as commands do, they see to that. For the main thread.

    :param call: made in another thread, at once and for each signal that is heard here.
    """
    main = threading.main_thread().ident
    assert main is not None
    over = threading.Event()
    sending = threading.Lock()
    came = ran = again = 0
    doubled = False

    def run_by(handler: Handler) -> Handler:
        def run(number: int, frame: FrameType | None) -> None:
            nonlocal ran, doubled
            if doubled and ran >= came:
                # It was sent again as its handler began after all. Should it be another that has
                # just come, it is sent again when it is late.
                doubled = False
                return
            ran += 1
            handler(number, frame)

        return run

    def hear(number: signal.Signals) -> None:
        nonlocal came, again, doubled
        if again:
            again -= 1  # it is one of those that were sent from here
            return
        came += 1
        call()
        for turn in range(AGAIN):
            if over.wait(LATE_S * 2**turn) or ran >= came:
                return
            with sending:
                if over.is_set():
                    return
                again += 1
                doubled = True
                signal.pthread_kill(main, number)

    in_time = {number: run_by(each) for number, each in handlers.items()}
    with heard(hear, tuple(handlers), unless_others=True), handled(in_time):
        try:
            yield
        finally:
            # None is on its way after this: it would meet a handler that is not ours, which may be
            # the end of the process.
            with sending:
                over.set()
