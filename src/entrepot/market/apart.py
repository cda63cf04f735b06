"""What serves in a thread of its own ends with the program: it finishes what it has begun first.

A thread that the interpreter waits for would keep a script alive whose last line was reached, or
that failed, and let it serve on with nobody there to stop it.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import weakref
from typing import Protocol

from entrepot.errors import EntrepotError

logger = logging.getLogger(__name__)


class Stoppable(Protocol):
    """Serves in a daemon thread of its own."""

    def stop(self, timeout_s: float | None = None) -> None: ...


_serving: weakref.WeakSet[Stoppable] = weakref.WeakSet()


def ends_with_program(server: Stoppable) -> None:
    """Have it stopped when the program ends, unless it was before."""
    _serving.add(server)
    atexit.unregister(_stop_all)
    atexit.register(_stop_all)  # the last comes first: before connections are closed


def _stop_all() -> None:
    left = list(_serving)
    for server in left:
        with contextlib.suppress(EntrepotError):
            server.stop(0.0)  # all begin to end before the first is waited for
    for server in left:
        try:
            server.stop()
        except EntrepotError as error:
            logger.warning("%s", error)
