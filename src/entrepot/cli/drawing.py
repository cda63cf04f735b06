"""Work that Ctrl-C and SIGTERM end between two steps, and never within one.

An exception that a signal raises may come while a lock is taken or a file is made, and leave it so.
Here the steps are a thread's, and signals are for the main thread, which only waits.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from signal import Signals
from typing import TypeVar

from entrepot.cli.signals import LEAVE_S, Interrupted, exit_code, ignoring
from entrepot.mediums import owned

Item = TypeVar("Item")


@dataclass(frozen=True)
class _End:
    fault: BaseException | None = None


@contextmanager
def drawn(
    source: Generator[Item, None, None], leave_s: float = LEAVE_S
) -> Iterator[Iterator[Item]]:
    """What ``source`` gives, drawn by a thread of its own. For the main thread.

    The first signal lets the step under way come to its end, closes ``source``, and raises
    Interrupted from the block. Who has not left ``leave_s`` later is ended by force; then files
    and shared memory that the process owns are removed.

    :raises Interrupted: one of the signals came.
    """
    made: queue.SimpleQueue[Item | _End] = queue.SimpleQueue()
    told: list[Signals] = []
    enough = threading.Event()
    over = threading.Event()

    def draw() -> None:
        try:
            try:
                for item in source:
                    made.put(item)
                    if enough.is_set():
                        break
            finally:
                source.close()
            made.put(_End())
        except BaseException as fault:
            made.put(_End(fault))

    def stop(number: Signals) -> None:
        told.append(number)
        enough.set()
        made.put(_End())
        if not over.wait(leave_s):
            owned.end_all()
            os._exit(exit_code(number))

    def items() -> Iterator[Item]:
        while not told:
            found = made.get()
            if not isinstance(found, _End):
                yield found
            elif found.fault is None:
                return
            else:
                raise found.fault

    worker = threading.Thread(target=draw, name="entrepot-draw", daemon=True)
    with ignoring(stop):
        try:
            worker.start()
            try:
                yield items()
            finally:
                enough.set()
                worker.join()
            if told:
                raise Interrupted(told[0])
        finally:
            over.set()
