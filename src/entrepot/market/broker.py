"""The broker: two sockets, one thread, and the ledger between them.

It poll()s, decodes, applies, and sends; every rule is the ledger's. It sees names and places,
never a product's bytes.
"""

from __future__ import annotations

import logging
import math
import os
import select
import struct
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType

import zmq

from entrepot.arguments import checked_callable, checked_kind, checked_text
from entrepot.errors import Closed, ConfigurationError, UsedAfterFork
from entrepot.market import events as ev
from entrepot.market.desk import Desk
from entrepot.market.ledger import Ledger
from entrepot.market.port import Port
from entrepot.market.post import Post
from entrepot.market.wake import Wake
from entrepot.settings import BrokerSettings, read_settings

log = logging.getLogger("entrepot.broker")

_BURST = 64
"""Messages taken from one socket before the other has its turn."""

_RETRY_S = 0.005
"""How soon a connection that would take no more is tried again."""


def random_leases(entropy: Callable[[int], bytes] = os.urandom) -> Iterator[int]:
    """Random 64-bit numbers, never 0."""
    while True:
        yield from filter(None, struct.unpack("<512Q", entropy(4096)))


class Broker:
    """Brings orders and suppliers together.

    ``frontend`` and ``backend`` are where clients and suppliers connect; port 0 takes a free one,
    and the attributes of the same names then say which. Use it as a context manager, or call
    ``run`` in a thread of your own. ``clock`` gives monotonic seconds, ``entropy`` random bytes.
    Settings are the environment's when none are given.

    Raises ConfigurationError when an argument cannot be one, and that and EndpointInUse when it is
    started.
    """

    def __init__(
        self,
        frontend: str | None = None,
        backend: str | None = None,
        *,
        settings: BrokerSettings | None = None,
        clock: Callable[[], float] = time.monotonic,
        entropy: Callable[[int], bytes] = os.urandom,
    ) -> None:
        if settings is None:
            settings = read_settings().broker
        checked_kind("settings", settings, BrokerSettings, "read_settings().broker makes them")
        checked_callable("clock", clock)
        checked_callable("entropy", entropy)
        self._settings = settings
        self.frontend = checked_text("frontend", frontend or settings.frontend)
        self.backend = checked_text("backend", backend or settings.backend)
        if self.frontend == self.backend and not self.frontend.endswith((":0", ":*")):
            raise ConfigurationError(
                f"clients and suppliers cannot both connect to {self.frontend}: give frontend and "
                f"backend an endpoint each"
            )
        self.instance = entropy(8)
        self._clock = clock
        self._entropy = entropy
        self._ledger = Ledger(self._settings, random_leases(entropy).__next__)
        self._pid = os.getpid()
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._joining: set[int] = set()
        self._state = "new"
        self._wake: Wake | None = None

    # --- life ---------------------------------------------------------------------------

    def __enter__(self) -> Broker:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Binds both endpoints and serves in a thread of its own."""
        self._bind()
        thread = threading.Thread(target=self._serve, name="entrepot-broker", daemon=True)
        thread.start()
        self._thread = thread  # not before: a signal handler that stops could not join it

    def run(self) -> None:
        """Binds both endpoints and serves in the calling thread until ``stop``."""
        self._bind()
        self._serve()

    def stop(self) -> None:
        """Ends ``run`` or the thread. May be called from any thread, or a signal handler."""
        if os.getpid() != self._pid:
            raise UsedAfterFork("a forked child does not have its parent's broker")
        self._stopping = True
        wake = self._wake
        if wake is not None:
            wake.set()
        thread, me = self._thread, threading.get_ident()
        # A signal handler that interrupts this very wait must not wait inside it.
        if thread is not None and thread.ident != me and me not in self._joining:
            try:
                self._joining.add(me)
                thread.join()
            finally:
                self._joining.discard(me)

    def _bind(self) -> None:
        if self._state != "new":
            raise Closed("a broker serves once; make a new one to serve again")
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, 65_536)
        front = Port(self._context, b"c")
        back = Port(self._context, b"s")
        self._ports = (back, front)
        try:
            self.frontend = front.bind(self.frontend, self._settings)
            self.backend = back.bind(self.backend, self._settings)
        except BaseException:
            self._close()
            raise
        self._post = Post(front, back, self._settings)
        self._desk = Desk(
            self._ledger, self._post, self._settings, self.instance, self._clock, self._entropy
        )
        self._wake = wake = Wake()
        self._sleeper = select.epoll()
        self._sleeper.register(wake.fd, select.EPOLLIN)
        for port in self._ports:
            self._sleeper.register(port.socket.fileno(), select.EPOLLIN)
            self._sleeper.register(port.monitor.fileno(), select.EPOLLIN)
        self._state = "bound"

    def _close(self) -> None:
        for port in self._ports:
            port.close()
        self._context.term()

    def _serve(self) -> None:
        back, front = self._ports
        monitors = {port.monitor.fileno(): port for port in self._ports}
        sockets = {port.socket.fileno(): port for port in self._ports}
        now = self._clock()
        self._beat_at = due = now + self._settings.beat_s
        self._awake_at = now
        log.info("clients at %s, suppliers at %s", self.frontend, self.backend)
        try:
            while not self._stopping:
                if back.quiet and front.quiet:
                    wait_s = max(0.0, due - now)
                    for fd, _ in self._sleeper.poll(math.ceil(wait_s * 1000) / 1000):
                        if fd in sockets:
                            sockets[fd].wake()
                        elif fd in monitors:
                            monitors[fd].drain_monitor()
                if not back.quiet or back.closing:
                    self._serve_port(back)
                if not front.quiet or front.closing:
                    self._serve_port(front)
                self._post.flush()
                now = self._clock()
                due = self._keep_time(now)
        finally:
            self._state = "closed"
            self._wake = None
            self._sleeper.close()
            self._close()

    def _serve_port(self, port: Port) -> None:
        if port.drain(self._desk.receive, _BURST) and port.closing:
            for peer in port.take_closed():
                port.forget(peer)
                self._desk.apply(ev.Disconnected(peer.session))

    def _keep_time(self, now: float) -> float:
        """Does what is due, and says when something is due next."""
        # No sleep is longer than a beat: what is, was the machine's, or a SIGSTOP.
        slept_s = now - self._awake_at
        self._awake_at = now
        if slept_s > 2 * self._settings.beat_s:
            log.warning("the broker stood still for %.1f s", slept_s)
            self._desk.apply(ev.Paused(slept_s))
        due = min(self._beat_at, self._ledger.wake_at(now))
        if now >= due:
            # By the look at the clock that says how long it stood still: it may again meanwhile.
            self._desk.apply(ev.Ticked(), now)
            if now >= self._beat_at:
                self._beat_at = now + self._settings.beat_s
                self._post.beat()
            self._post.flush()
            due = min(self._beat_at, max(self._ledger.wake_at(now), now + _RETRY_S))
        for port in self._ports:
            if port.blocked:
                port.flush_blocked()
                due = min(due, now + _RETRY_S)
            if port.closing:
                due = now
        return due
