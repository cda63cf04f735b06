"""Connections of those who ask, and how long one may hold what others need.

uvicorn waits for ever for the rest of a request, and for whoever takes no answer. Each is a file
descriptor, and without one left nobody is let in.
"""

from __future__ import annotations

import asyncio
import resource
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_S = 10.0
"""Until a request has come as far as its end of headers."""

TAKE_S = 30.0
"""Until an answer that waits to be taken goes on."""

MOST = 1_000
SPARE = 100
"""File descriptors for broker, store and the listener."""

BACKLOG = 32
"""Connections let in at one go: asyncio counts them only afterwards."""


def most() -> int:
    """As many connections as this process has file descriptors for."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MOST
    return max(1, min(MOST, soft - SPARE - BACKLOG))


class Line(H11Protocol):
    """One connection. Where there are too many, one that asks nothing is cut for it; if all are
    being answered, the new one is.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._asking: asyncio.TimerHandle | None = None
        self._untaken: asyncio.TimerHandle | None = None
        self._since = self.loop.time()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._note()
        if len(self.connections) > most():
            self._longest_silent().cut()

    def connection_lost(self, exc: Exception | None) -> None:
        _end(self._asking)
        self._asking = None
        _end(self._untaken)
        self._untaken = None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._note()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._since = self.loop.time()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._untaken is None:
            self._untaken = self.loop.call_later(TAKE_S, self.cut)

    def resume_writing(self) -> None:
        super().resume_writing()
        _end(self._untaken)
        self._untaken = None

    @property
    def silent(self) -> bool:
        """No request of theirs is being answered."""
        cycle: Any = self.cycle  # None until the first request, whatever its type says
        return cycle is None or bool(cycle.response_complete)

    def cut(self) -> None:
        """End it at once, whatever is on its way."""
        if self in self.connections:
            self.connections.discard(self)  # so that the next is not cut for this one
            self.transport.abort()

    def _note(self) -> None:
        if not self.silent:
            _end(self._asking)
            self._asking = None
        elif self._asking is None:
            self._asking = self.loop.call_later(HEAD_S, self._late)

    def _late(self) -> None:
        self._asking = None
        if self.silent:
            self.cut()

    def _longest_silent(self) -> Line:
        silent = [one for one in self.connections if isinstance(one, Line) and one.silent]
        return min(silent, key=lambda one: one._since, default=self)


def _end(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
