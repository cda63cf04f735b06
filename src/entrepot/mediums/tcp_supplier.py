"""A supplier's end of a TCP medium: connections to one owner, shared by its orders."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

import xxhash

from entrepot.errors import Closed, MediumError, MediumGone
from entrepot.mediums.spare import Spare
from entrepot.mediums.tcp_connection import (
    DEAD,
    Connection,
    Hangup,
    Network,
    Terms,
    connect,
)

if TYPE_CHECKING:
    from entrepot.mediums.tcp_post import TCPPost

IDLE_LINES = 4
"""Connections to one owner that are kept while they are not used."""

LOOK_S = 1.0
"""How long a connection that was just used is taken to be good."""

Result = TypeVar("Result")


class Lines:
    """Connections to the owner at one host and port. From any number of threads.

    :param idle_s: seconds that a connection is kept without being used.
    :param networks: where the owner may be; anywhere if empty.
    """

    def __init__(
        self,
        terms: Terms,
        host: str,
        port: int,
        *,
        idle_s: float,
        networks: tuple[Network, ...] = (),
    ) -> None:
        self.terms = terms
        self.closed = False
        self._host = host
        self._port = port
        self._idle_s = idle_s
        self._networks = networks
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._used_at = terms.clock()
        self._spare = Spare()
        self.posts: weakref.WeakSet[TCPPost] = weakref.WeakSet()
        self._all: weakref.WeakSet[Connection] = weakref.WeakSet()
        weakref.finalize(self, close_all, self._idle)
        _alive.add(self)

    # --- what a medium asks for ---------------------------------------------------------

    def check(self, token: bytes) -> tuple[int, int]:
        """Offset and length of what ``token`` allows.

        :raises MediumGone: the owner is not there, or knows no such token.
        """
        line = self.take()
        if line is not None:
            try:
                return self._used(line, lambda line: line.check(token))
            except Hangup:
                pass
        line, granted = self.connected(token)
        self.give(line)
        return granted

    def write(
        self,
        token: bytes,
        lease: int,
        offset: int,
        limit: int,
        parts: Sequence[memoryview],
        running: xxhash.xxh3_64 | None,
    ) -> None:
        """Put ``parts`` at ``offset``, one after the other, and into ``running``."""

        def write(line: Connection) -> None:
            if running is not None:
                running.reset()
            line.write(token, lease, offset, limit, parts, running)

        self._with_line(token, write)

    def read(self, token: bytes, offset: int, nbytes: int) -> memoryview:
        """``nbytes`` bytes from ``offset``, in memory that is used again once nobody has it."""
        target = self._spare.take(nbytes)
        self._with_line(token, lambda line: line.read(token, offset, target))
        return target

    def worth_keeping(self) -> bool:
        """Whether there is a connection, or was one a moment ago; closes those not used."""
        now = self.terms.clock()
        if now - self._used_at < LOOK_S:
            return True
        with self._lock:
            kept = []
            for line in self._idle:
                if now - line.used_at < self._idle_s and not line.was_closed():
                    kept.append(line)
                else:
                    line.close()
            self._idle[:] = kept
            return bool(kept) or any(post.under_way for post in list(self.posts))

    def close(self) -> None:
        """Close what is not in use now; the rest when it is given back."""
        with self._lock:
            self.closed = True
            close_all(self._idle)

    # --- lines --------------------------------------------------------------------------

    def _with_line(self, token: bytes, use: Callable[[Connection], Result]) -> Result:
        """``use`` a connection; once more, on a new one, if one that was kept is dead."""
        line = self.take()
        if line is not None:
            try:
                return self._used(line, use)
            except Hangup:
                pass
        line, _ = self.connected(token)
        try:
            return self._used(line, use)
        except Hangup:
            raise self.hung_up() from None

    def connected(self, token: bytes) -> tuple[Connection, tuple[int, int]]:
        """A new connection, and what ``token`` allows."""
        line = connect(self.terms, self._host, self._port, self._networks)
        self._all.add(line)
        try:
            return line, self.asked(line, lambda line: line.check(token))
        except Hangup:
            line.close()
            raise self.hung_up() from None
        except BaseException:
            line.close()
            raise

    def hung_up(self) -> MediumGone:
        return MediumGone(
            f"{self.terms.place} closed the connection: its owner has ended, or has taken the "
            f"order's address back"
        )

    def _used(self, line: Connection, use: Callable[[Connection], Result]) -> Result:
        try:
            return self.asked(line, use)
        finally:
            self.give(line)

    def asked(self, line: Connection, use: Callable[[Connection], Result]) -> Result:
        """What ``use`` gives.

        :raises Hangup: the owner has closed the connection.
        """
        line.stained = True
        try:
            return use(line)
        except MediumError:
            raise
        except (BlockingIOError, TimeoutError):
            raise self.terms.nothing_came() from None
        except OSError as error:
            if error.errno in DEAD:
                raise Hangup from error
            raise MediumError(f"the connection to {self.terms.place} failed: {error}") from error

    def take(self) -> Connection | None:
        with self._lock:
            if self.closed:
                raise Closed(f"{self.terms.place} was closed on this side; attach again")
            return self._idle.pop() if self._idle else None

    def give(self, line: Connection) -> None:
        """Keep it for another, unless something is left under way on it."""
        self._used_at = line.used_at = self.terms.clock()
        with self._lock:
            if not (line.stained or self.closed or len(self._idle) >= IDLE_LINES):
                self._idle.append(line)
                return
        line.close()

    def let_go_in_child(self) -> None:
        """A forked child must not speak on its parent's connections, nor keep them open."""
        self._lock = threading.Lock()
        close_all(list(self._all))
        self._idle.clear()
        for post in list(self.posts):
            post.let_go_in_child()


def close_all(lines: list[Connection]) -> None:
    """Close them, and have the list empty."""
    while lines:
        lines.pop().close()


_alive: weakref.WeakSet[Lines] = weakref.WeakSet()


def _let_go_in_child() -> None:
    with suppress(OSError):
        for lines in list(_alive):
            lines.let_go_in_child()


os.register_at_fork(after_in_child=_let_go_in_child)
