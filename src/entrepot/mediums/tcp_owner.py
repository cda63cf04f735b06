"""The owner's end of a TCP medium: listens, and lets suppliers write into the slots.

One thread, the *porter*, accepts connections and reads their first request, without ever waiting
for any of them. A connection whose token is good becomes a *line*, with a thread of its own that
receives products straight into their slots: one call to the kernel for all of a product, so that
the interpreter's lock is wanted twice, not once for each packet. What proves nothing in time, and
what says anything else, is closed.
"""

from __future__ import annotations

import errno
import logging
import os
import selectors
import socket
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress

from entrepot.mediums.tcp_grants import Grants, Refusal
from entrepot.mediums.tcp_line import STOP_S, Line, answer_of, stop
from entrepot.mediums.tcp_wire import (
    ANSWER,
    BUSY,
    CHECK,
    GONE,
    GRANTED,
    GREETING,
    MAGIC,
    MALFORMED,
    OK,
    REQUEST,
)

logger = logging.getLogger(__name__)

MAX_STRANGERS = 64
"""Connections that have proved nothing yet. The oldest goes when another comes."""

NO_MORE_FILES_S = 0.1
"""How long no connections are accepted when there are no descriptors left."""

_NO_MORE_FILES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Owner:
    """See the module. It knows nothing of its medium's object, whose end is its own end.

    :param listener: a socket that listens.
    :param memory: what the slots are in.
    :param timeout_s: seconds that the other end may take to do its next part.
    :param idle_s: seconds that a connection may be unused.
    :param slowest_nbytes_s: bytes a second that a transfer must make, after ``timeout_s``.
    :param max_lines: suppliers connected at once.
    :ivar lock: guards ``grants``.
    :ivar changed: of ``lock``: an input was filled, or something was taken back.
    :ivar forked: whether this is a forked child, which has none of its threads.
    """

    def __init__(
        self,
        listener: socket.socket,
        memory: memoryview,
        *,
        timeout_s: float,
        idle_s: float,
        slowest_nbytes_s: int,
        max_lines: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = f"slots at port {listener.getsockname()[1]}"
        self.grants: Grants[Line] = Grants()
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        self.memory = memory
        self.timeout_s = timeout_s
        self.idle_s = idle_s
        self.slowest_nbytes_s = slowest_nbytes_s
        self.clock = clock
        self.forked = False
        self._max_lines = max_lines
        self._listening = True
        self._ended = False
        self._deaf = threading.Event()
        self._listener = listener
        listener.setblocking(False)
        self._lines: set[Line] = set()
        self._strangers: dict[socket.socket, _Stranger] = {}
        self._retry_at: float | None = None
        with _fork_guard:
            self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            self._selector = selectors.DefaultSelector()
            self._selector.register(listener, selectors.EVENT_READ)
            self._selector.register(self._wake_fd, selectors.EVENT_READ)
            _alive.add(self)
        self._porter = threading.Thread(target=self._run, name=self.name, daemon=True)
        self._porter.start()

    # --- for the medium -----------------------------------------------------------------

    def grant(
        self, token: bytes, offset: int, nbytes: int, readonly: bool, filled: bool = True
    ) -> None:
        """Let whoever has ``token`` write, or read, there; and nobody else from now on.

        :param filled: whether what is to be read is there; who reads waits for :meth:`filled`.
        """
        with self.lock:
            stopped = self.grants.add(token, offset, nbytes, readonly, filled)
        if stopped:
            stop(stopped)

    def filled(self, offset: int) -> None:
        """What is to be read there has been written."""
        with self.lock:
            self.grants.fill(offset)
            self.changed.notify_all()

    def revoke(self, offset: int) -> None:
        """Let nobody write or read there from now on."""
        with self.lock:
            stopped = self.grants.remove(offset)
        if stopped:
            stop(stopped)

    @property
    def listening(self) -> bool:
        """Whether suppliers can still find it."""
        return self._listening

    def stop_listening(self) -> None:
        """Accept no more connections; who has one keeps it."""
        self._listening = False
        self._wake()
        if threading.current_thread() is not self._porter:
            self._deaf.wait(STOP_S)

    def end(self) -> None:
        """Close everything. Any number of times, from any thread; takes no lock of ours."""
        self._ended = True
        self._listening = False
        self._wake()
        # A collector that ends a medium may run in any thread, also in one of these.
        current = threading.current_thread()
        if current is not self._porter and all(
            line.thread is not current for line in list(self._lines)
        ):
            self._porter.join(STOP_S)

    def _wake(self) -> None:
        with _fork_guard:
            if self._wake_fd != -1:
                os.eventfd_write(self._wake_fd, 1)

    # --- for the lines ------------------------------------------------------------------

    def check(self, token: bytes) -> bytes:
        """The answer to CHECK.

        :raises Refusal: it is not a good token, or the address was taken away.
        """
        with self.lock:
            grant = self.grants.find(token)
        if not self._listening:
            raise Refusal(GONE, "its owner has taken the address away")
        return ANSWER.pack(OK, GRANTED.size) + GRANTED.pack(grant.offset, grant.nbytes)

    def forget(self, line: Line) -> None:
        """The thread of ``line`` ends."""
        with _fork_guard:
            self._lines.discard(line)
            line.sock.close()

    # --- the porter ---------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._ended:
                for key, _ in self._selector.select(self._sleep_s()):
                    if key.fd == self._wake_fd:
                        os.eventfd_read(self._wake_fd)
                    elif key.data is None:
                        self._accept()
                    elif key.data.sock in self._strangers:
                        self._hear(key.data)
                self._look_at_the_clock()
                if not self._listening:
                    self._close_listener()
        except Exception:
            logger.exception("a TCP medium ended", extra={"medium": self.name})
        finally:
            self._close()

    def _sleep_s(self) -> float | None:
        ends = [stranger.until for stranger in self._strangers.values()]
        if self._retry_at is not None:
            ends.append(self._retry_at)
        return max(0.0, min(ends) - self.clock()) if ends else None

    def _look_at_the_clock(self) -> None:
        now = self.clock()
        if self._retry_at is not None and now >= self._retry_at:
            self._retry_at = None
            self._selector.register(self._listener, selectors.EVENT_READ)
        for stranger in [s for s in self._strangers.values() if now >= s.until]:
            self._drop(stranger)

    def _accept(self) -> None:
        with _fork_guard:
            try:
                sock, _ = self._listener.accept()
            except OSError as error:
                if error.errno in _NO_MORE_FILES:
                    self._selector.unregister(self._listener)
                    self._retry_at = self.clock() + NO_MORE_FILES_S
                return
            sock.setblocking(False)
            stranger = _Stranger(sock, self.clock() + self.timeout_s)
            self._strangers[sock] = stranger
            self._selector.register(sock, selectors.EVENT_READ, stranger)
        try:
            sock.send(GREETING, socket.MSG_NOSIGNAL)
        except OSError:
            self._drop(stranger)
        if len(self._strangers) > MAX_STRANGERS:
            self._drop(next(iter(self._strangers.values())))

    def _hear(self, stranger: _Stranger) -> None:
        """Read some of a stranger's first request; it is a line, or goes, once all is there."""
        try:
            more = stranger.sock.recv(REQUEST.size - len(stranger.said))
        except BlockingIOError:
            return
        except OSError:
            more = b""
        stranger.said += more
        if not more or not stranger.said.startswith(MAGIC[: len(stranger.said)]):
            self._drop(stranger)
        elif len(stranger.said) == REQUEST.size:
            self._judge(stranger)

    def _judge(self, stranger: _Stranger) -> None:
        sock = stranger.sock
        _, op, token, *_ = REQUEST.unpack(stranger.said)
        try:
            if op != CHECK:
                raise Refusal(MALFORMED, "a connection begins with CHECK")
            answer = self.check(token)
            self._make_room()
        except Refusal as refusal:
            with suppress(OSError):
                sock.send(answer_of(refusal), socket.MSG_NOSIGNAL)
            self._drop(stranger)
            return
        line = Line(self, sock, answer)
        with _fork_guard:
            self._selector.unregister(sock)
            del self._strangers[sock]
            self._lines.add(line)
        try:
            line.thread.start()
        except RuntimeError:  # no more threads
            self.forget(line)

    def _make_room(self) -> None:
        """Hang up the line that was not used for longest, if there are too many."""
        lines = [line for line in list(self._lines) if not line.hung_up]
        if len(lines) < self._max_lines:
            return
        idle = [line for line in lines if not line.busy.locked()]
        if not idle:
            raise Refusal(
                BUSY, f"{len(lines)} suppliers are connected, and all of them are writing"
            )
        min(idle, key=lambda line: line.used_at).hang_up()

    def _drop(self, stranger: _Stranger) -> None:
        with _fork_guard:
            if self._strangers.pop(stranger.sock, None) is not None:
                self._selector.unregister(stranger.sock)
                stranger.sock.close()

    def _close_listener(self) -> None:
        """Be deaf from now on."""
        if self._deaf.is_set():
            return
        with _fork_guard:
            if self._retry_at is None:
                self._selector.unregister(self._listener)
            self._retry_at = None
            self._listener.close()
        for stranger in list(self._strangers.values()):
            self._drop(stranger)
        self._deaf.set()

    def _close(self) -> None:
        self._ended = True
        self._listening = False
        self._close_listener()
        lines = list(self._lines)
        for line in lines:
            line.hang_up()
        for line in lines:
            line.thread.join(STOP_S)
        with _fork_guard:
            _alive.discard(self)
            self._selector.close()
            os.close(self._wake_fd)
            self._wake_fd = -1
        self.memory = memoryview(b"")

    def let_go_in_child(self) -> None:
        """A forked child has none of the threads; its copies must not keep connections open."""
        self.forked = True
        self._ended = True
        self._listening = False
        self._listener.close()
        for sock in self._strangers:
            sock.close()
        for line in self._lines:
            line.sock.close()
        self._selector.close()
        os.close(self._wake_fd)
        self._wake_fd = -1


class _Stranger:
    """A connection that has not said all of its first request."""

    __slots__ = ("said", "sock", "until")

    def __init__(self, sock: socket.socket, until: float) -> None:
        self.sock = sock
        self.until = until
        self.said = b""


# Keeps a fork in another thread from falling between a descriptor and its being noted.
_fork_guard = threading.RLock()
_alive: weakref.WeakSet[Owner] = weakref.WeakSet()


def _let_go_in_child() -> None:
    for owner in list(_alive):
        owner.let_go_in_child()
    _alive.clear()
    _fork_guard.release()


os.register_at_fork(
    before=_fork_guard.acquire,
    after_in_parent=_fork_guard.release,
    after_in_child=_let_go_in_child,
)
