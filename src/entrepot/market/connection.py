"""One party's connection to the broker: who waits on it, how it beats, and how it ends.

A user's thread reads and writes the socket itself (see ``turns.py``). One more thread, the *beat*,
sleeps nearly always: it says HEARTBEAT, reads what nobody else reads, and notices at once when the
connection closes.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import select
import threading
import time
import weakref
from collections.abc import Callable, Sequence

import zmq

from entrepot.errors import BrokerUnavailable, Closed, UsedAfterFork
from entrepot.market.line import CLOSED, FIRST_BEAT_S, GREETING, IDLE, OPEN, Line
from entrepot.market.party import Party
from entrepot.market.protocol import EMPTY, GOODBYE, HEARTBEAT
from entrepot.market.wake import Wake

__all__ = ["CLOSED", "FIRST_BEAT_S", "GREETING", "IDLE", "OPEN", "Connection"]

logger = logging.getLogger(__name__)

MAX_SLEEP_S = 1.0
"""Longest sleep without looking at the clock: a bound, should a wake-up ever be lost."""

LINGER_MS = 300
"""How long the last messages may take to leave at an orderly close."""

CLOSE_S = 5.0
"""How long ``close`` waits for another thread to let go."""


class Connection(Line):
    """What the threads of one party share.

    All methods but :meth:`poke`, :meth:`beat_soon`, :meth:`check` and :meth:`close` want
    :attr:`lock` to be held.

    :param silence_s: silence of the broker, in seconds, after which a new connection is made.
    :param timeout_s: seconds without an answer after which BrokerUnavailable is raised.
    :param clock: seconds, going up.
    :ivar at_work: set by the party while it may write to what GOODBYE would hand to another: it
        leaves without a word then.
    """

    def __init__(
        self,
        party: Party,
        endpoint: str,
        *,
        silence_s: float,
        timeout_s: float,
        name: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(party, endpoint, silence_s=silence_s, name=name, clock=clock)
        self.at_work = False
        self.timeout_s = timeout_s
        self._pid = os.getpid()
        self._forks = _Forks.count
        self._beat_thread: threading.Thread | None = None

    # --- for the party ------------------------------------------------------------------

    def check(self) -> None:
        """Refuse to be used where that cannot work. Before the lock is taken, each time.

        :raises UsedAfterFork: in a forked child.
        :raises Closed: after ``close``.
        """
        self.check_process()
        if self.state == CLOSED:
            raise Closed(f"{self._name} was closed; make a new one")

    def check_process(self) -> None:
        """In a forked child the lock may be held by a thread that is not there.

        :raises UsedAfterFork: in a forked child.
        """
        if _Forks.count != self._forks:
            raise UsedAfterFork(
                f"{self._name} was made in process {self._pid} and is used in its forked child "
                f"{os.getpid()}, where its connection cannot work; make a new one there"
            )

    @property
    def forked(self) -> bool:
        """Whether this is a forked child, where nothing of the parent's may be touched."""
        return _Forks.count != self._forks

    @property
    def down_since(self) -> float | None:
        """Since when there is no connection; None while there is one."""
        return None if self.state == OPEN else self._down_since

    def start(self) -> None:
        """Begin to connect, without waiting.

        :raises ConfigurationError: the endpoint cannot be one.
        """
        if self.state != IDLE:
            return
        self._context = zmq.Context()
        self._turns.open()
        self._beat_wake = Wake()
        self._down_since = self.clock()
        try:
            self._connect()
        except BaseException:  # Ctrl-C as well, with a socket half made
            self.state = IDLE
            self._context.destroy(0)
            self._turns.close()
            self._beat_wake = None
            raise
        self._beat_thread = threading.Thread(
            target=_beat_until_closed, args=(self,), name=f"{self._name} beat", daemon=True
        )
        self._beat_thread.start()
        _alive.add(self)

    def open(self, deadline: float | None = None) -> None:
        """Connect if need be, and wait until the broker has answered HELLO.

        :param deadline: on the clock; at most ``timeout_s`` from now, and that without one.
        :raises BrokerUnavailable: it did not. The next call goes on where this one stopped.
        """
        if self.state == OPEN:
            return
        self.start()
        if self._denial is not None:  # somebody was told; now it is asked again
            self._connect()
        began = self.clock()
        limit = began + self.timeout_s
        if deadline is not None and deadline < limit:
            limit = deadline
        if not self.wait(self._is_open, limit, patient=True):
            raise BrokerUnavailable(self.endpoint, self.clock() - began, "saying HELLO")

    def wait(
        self,
        done: Callable[[], bool],
        deadline: float | None,
        *,
        patient: bool = False,
        also: Sequence[int] = (),
    ) -> bool:
        """Handle messages until ``done()``; False when ``deadline`` came before.

        ``done`` is called by whichever thread handles messages, and only looks.

        :param patient: stay, however long there is no connection.
        :param also: descriptors; ``done`` is asked again when one of them can be read, unless
            another thread is the one that sleeps on them.
        :raises BrokerUnavailable: there was none for ``timeout_s``.
        :raises Closed: it was closed meanwhile.
        """
        turns = self._turns
        came = False
        try:
            while not done():
                if self.state == CLOSED:
                    raise Closed(f"{self._name} was closed while it was in use")
                if not turns.led and self.drain(done, came):
                    came = False
                    continue
                limit = deadline
                if self.state != OPEN:
                    limit = self._limit_of_outage(deadline, patient)
                timeout_s = MAX_SLEEP_S
                if limit is not None:
                    timeout_s = min(limit - self.clock(), MAX_SLEEP_S)
                    if timeout_s <= 0:
                        if limit is deadline:
                            return False
                        continue
                poller = self._dealer.poller
                for fd in also:
                    poller.register(fd, select.POLLIN)
                try:
                    came = turns.sleep(poller, done, timeout_s)
                finally:
                    for fd in also:
                        poller.unregister(fd)
            return True
        finally:
            turns.hand_over()

    def _limit_of_outage(self, deadline: float | None, patient: bool) -> float | None:
        """Until when to wait for a connection that is down."""
        if self._denial is not None:
            raise self._denial
        if patient:
            return deadline
        down_until = self._down_since + self.timeout_s
        now = self.clock()
        if now >= down_until:
            raise BrokerUnavailable(self.endpoint, now - self._down_since, "connecting again")
        return down_until if deadline is None or down_until < deadline else deadline

    def _is_open(self) -> bool:
        return self.state == OPEN

    def close(self) -> None:
        """Say GOODBYE, if there is a connection, and let go of everything. Any number of times.

        A party that is :attr:`at_work` leaves without it.
        """
        if self.forked:
            return
        turns = self._turns
        with self.lock:
            was = self.state
            if was == CLOSED:
                return
            if not self.at_work:
                self.send(GOODBYE, EMPTY)
            linger_ms = LINGER_MS if self.state == OPEN else 0
            self.state = CLOSED
            if was == IDLE:
                return
            _alive.discard(self)
            turns.wake_all()
            self._rouse()
        beat = self._beat_thread
        if beat is not None and beat is not threading.current_thread():
            beat.join(CLOSE_S)
        limit = time.monotonic() + CLOSE_S
        while turns.led and time.monotonic() < limit:
            time.sleep(0.001)  # it was woken, and must not find its descriptors closed
        with self.lock:
            self._dealer.close(linger_ms)
            if self._context is not None:
                self._context.destroy(0)  # with a socket that Ctrl-C left, term would wait for it
            turns.close()
            self._beat_wake = None

    # --- the beat -----------------------------------------------------------------------

    def _watch(self) -> tuple[select.poll, int]:
        """What the beat sleeps on, and for how many milliseconds."""
        watched = select.poll()
        watched.register(self._dealer.monitor_fd, select.POLLIN)
        assert self._beat_wake is not None
        watched.register(self._beat_wake.fd, select.POLLIN)
        left_s = min(max(self._beat_at - self.clock(), 0.0), MAX_SLEEP_S)
        return watched, math.ceil(left_s * 1000)

    def _beat(self, party: Party) -> None:
        if self._beat_wake is not None:
            self._beat_wake.clear()
        if self.drain() and self._turns.led:
            self.poke()
        if self._dealer.was_closed():
            self.reconnect("the connection closed")
        now = self.clock()
        if now - self._heard_at >= self._silence_s:
            # Silence of the broker, or of this process: what has arrived was looked at above.
            self.reconnect("the broker is silent")
        if now < self._beat_at:
            return
        if self._retry:
            self._connect()
        self._beat_at = now + (self._beat_s if self.state == OPEN else FIRST_BEAT_S)
        self.send(HEARTBEAT, party.beat())


def _beat_until_closed(connection: Connection) -> None:
    """What the beat thread does. It ends with the connection, or with a party that was dropped."""
    while True:
        with connection.lock:
            if connection.state == CLOSED:
                return
            watched, timeout_ms = connection._watch()
        watched.poll(timeout_ms)
        party = connection._party()
        if party is None:
            connection.close()
            return
        try:
            with connection.lock:
                if connection.state == CLOSED:
                    return
                connection._beat(party)
        except Exception:
            logger.exception("a beat failed", extra={"party": connection._name})
        del party


class _Forks:
    """How often the process that this one was forked from had been forked itself; costs no call."""

    count = 0

    @classmethod
    def add(cls) -> None:
        cls.count += 1


os.register_at_fork(after_in_child=_Forks.add)

_alive: weakref.WeakSet[Connection] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """A process that ends without ``close`` says GOODBYE all the same."""
    for connection in list(_alive):
        connection.close()
