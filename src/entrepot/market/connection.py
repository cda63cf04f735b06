"""One party's connection to the broker: who it is there, and what silence means.

ZeroMQ reconnects by itself, but then the broker does not know who that is, and what was queued is
in doubt. So a connection that closed, one that is silent, and one whose broker says
``hello_first`` are all the same here: a new socket whose first message is HELLO with the same
session. The party puts right what may have been lost when the answer comes.

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
from collections.abc import Callable
from contextlib import suppress

import zmq

from entrepot.errors import (
    BrokerUnavailable,
    Closed,
    ProtocolError,
    UsedAfterFork,
)
from entrepot.market.dealer import EVENTS, Dealer
from entrepot.market.party import Party
from entrepot.market.protocol import (
    EMPTY,
    GOODBYE,
    HEARTBEAT,
    HELLO,
    PROTOCOL,
    REPLY,
    Reply,
    reader,
)
from entrepot.market.sockets import POLLIN
from entrepot.market.turns import Turns

logger = logging.getLogger(__name__)

IDLE = 0
GREETING = 1
OPEN = 2
CLOSED = 3

DRAIN_AT_MOST = 512
"""Messages handled before whoever waits is asked whether it still does."""

FIRST_BEAT_S = 0.25
"""Until the broker says how often it wants to hear a beat; and between two hasty connections."""

MAX_SLEEP_S = 1.0
"""Longest sleep without looking at the clock: a bound, should a wake-up ever be lost."""

LINGER_MS = 300
"""How long the last messages may take to leave at an orderly close."""

CLOSE_S = 5.0
"""How long ``close`` waits for another thread to let go."""

_read_reply = reader(Reply)


class Connection:
    """What the threads of one party share.

    All methods but :meth:`poke`, :meth:`check` and :meth:`close` want :attr:`lock` to be held.

    :param silence_s: silence of the broker, in seconds, after which a new connection is made.
    :param timeout_s: seconds without an answer after which BrokerUnavailable is raised.
    :param clock: seconds, going up.
    :ivar lock: guards this object and everything of its party.
    :ivar at_work: set by the party while it may write to what GOODBYE would hand to another: it
        leaves without a word then.
    :ivar state: IDLE, GREETING (HELLO is not answered yet), OPEN or CLOSED.
    :ivar reconnects: connections made after the first.
    :ivar malformed: messages from the broker that could not be understood.
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
        self.state = IDLE
        self.at_work = False
        self.endpoint = endpoint
        self.timeout_s = timeout_s
        self.clock = clock
        self.reconnects = 0
        self.malformed = 0
        self._turns = Turns()
        self.lock = self._turns.lock
        self.poke = self._turns.poke
        self.changed = self._turns.changed
        # Weak: a party that is dropped without close() must not live on because of its beat.
        self._party = weakref.ref(party)
        self._silence_s = silence_s
        self._name = name
        self._pid = os.getpid()
        self._forks = _Forks.count
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._dealer: Dealer
        self._beat_fd = -1
        self._beat_thread: threading.Thread | None = None
        self._beat_s = FIRST_BEAT_S
        self._beat_at = 0.0
        self._seq = 0
        self._hello_seq = 0
        self._instance = b""
        self._heard_at = 0.0
        self._opened_at = 0.0
        self._down_since = 0.0
        self._retry = False
        self._denial: Exception | None = None

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
        self._beat_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._down_since = self.clock()
        try:
            self._connect()
        except BaseException:
            self._context.term()
            self._turns.close()
            os.close(self._beat_fd)
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
        self, done: Callable[[], bool], deadline: float | None, *, patient: bool = False
    ) -> bool:
        """Handle messages until ``done()``; False when ``deadline`` came before.

        ``done`` is called by whichever thread handles messages, and only looks.

        :param patient: stay, however long there is no connection.
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
                came = turns.sleep(self._dealer.poller, done, timeout_s)
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

    def next_seq(self) -> int:
        """A number for a request."""
        self._seq += 1
        return self._seq

    def send(self, command: bytes, fields: bytes) -> bool:
        """Send, if the connection is open; never waits.

        False when it is not. Nothing is queued then: the answer to the next HELLO says what the
        broker lacks. A broker that takes nothing any more is as good as gone.
        """
        if self.state != OPEN:
            return False
        dealer = self._dealer
        if not dealer.send(command, fields):
            self.reconnect("the broker does not read")
            return False
        if self._turns.led and dealer.events(EVENTS) & POLLIN:
            self.poke()  # the send may have swallowed the change that the leader sleeps for
        return True

    def drain(self, done: Callable[[], bool] | None = None, came: bool = False) -> int:
        """Handle what has arrived, without waiting; how many messages that was.

        :param done: says when it is enough; asked after each message.
        :param came: something is there as it seems: to look first would be to look twice.
        """
        if self.state not in (GREETING, OPEN):
            return 0
        dealer = self._dealer
        handled = 0
        while handled < DRAIN_AT_MOST and (came or dealer.events(EVENTS) & POLLIN):
            came = False
            message = dealer.receive()
            if message is None:
                continue
            self._handle(dealer, *message)
            handled += 1
            if dealer is not self._dealer or (done is not None and done()):
                break
        if handled:
            self._heard_at = self.clock()
            self._turns.wake()
        return handled

    def reconnect(self, why: str) -> None:
        """Give this connection up, and say HELLO on another.

        At once after one that worked for a while, else with the next beat: two sides that do not
        get along must not spin.
        """
        if self.state not in (GREETING, OPEN) or self._retry:
            return
        logger.info(
            "connecting again",
            extra={"party": self._name, "endpoint": self.endpoint, "why": why},
        )
        self.reconnects += 1
        now = self.clock()
        worked = self.state == OPEN and now - self._opened_at >= FIRST_BEAT_S
        if self.state == OPEN:
            self._down_since = now
        self.state = GREETING
        if worked:
            self._connect()
        else:
            self._retry_soon()

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
            said = not self.at_work and self.send(GOODBYE, EMPTY)
            self.state = CLOSED
            if was == IDLE:
                return
            _alive.discard(self)
            turns.wake_all()
            os.eventfd_write(self._beat_fd, 1)
        beat = self._beat_thread
        if beat is not None and beat is not threading.current_thread():
            beat.join(CLOSE_S)
        limit = time.monotonic() + CLOSE_S
        while turns.led and time.monotonic() < limit:
            time.sleep(0.001)  # it was woken, and must not find its descriptors closed
        with self.lock:
            self._dealer.close(LINGER_MS if said else 0)
            if self._context is not None:
                self._context.term()
            turns.close()
            os.close(self._beat_fd)

    # --- the socket ---------------------------------------------------------------------

    def _connect(self) -> None:
        """A new socket, with HELLO as its first message."""
        party, context = self._party(), self._context
        if party is None or context is None:
            return
        if self.state != IDLE:
            self._dealer.close(0)
        self._dealer = dealer = Dealer(context, self.endpoint, self._silence_s, self._turns.wake_fd)
        self.state = GREETING
        self._denial = None
        self._retry = False
        self._heard_at = self.clock()
        self._hello_seq = self.next_seq()
        dealer.send(HELLO, party.hello(self._hello_seq))
        # Who sleeps, sleeps on the old one.
        os.eventfd_write(self._beat_fd, 1)
        self.changed()

    def _retry_soon(self) -> None:
        self._retry = True
        self._beat_at = self.clock() + FIRST_BEAT_S
        os.eventfd_write(self._beat_fd, 1)

    def _handle(self, dealer: Dealer, command: bytes, fields: bytes | None) -> None:
        """Handle one message that has arrived."""
        party = self._party()
        if party is None:
            return
        try:
            if fields is None:
                self._one_frame()
            elif command == REPLY:
                self._replied(party, _read_reply(fields))
            elif self.state == OPEN:
                party.received(command, fields)
        except ProtocolError as fault:
            self.malformed += 1
            logger.warning(
                "the broker sent something malformed",
                extra={"party": self._name, "endpoint": self.endpoint, "fault": fault},
            )
            # Frames may have been taken for what they are not: begin with the next message.
            dealer.skip()

    def _one_frame(self) -> None:
        if self.state == GREETING:  # version 1 answers like that
            self._denial = ProtocolError(
                f"what answers at {self.endpoint} does not speak version {PROTOCOL} of the "
                f"market's protocol; upgrade the broker"
            )
        raise ProtocolError("a message of one frame")

    def _replied(self, party: Party, reply: Reply) -> None:
        if self.state == GREETING:
            if reply.seq == self._hello_seq and not self._retry:
                self._greeted(party, reply)
        elif reply.code == "hello_first":
            self.reconnect("the broker does not know this connection")
        else:
            party.replied(reply)

    def _greeted(self, party: Party, reply: Reply) -> None:
        hello = reply.hello
        if hello is None:
            self._denial = party.denied(reply)
            if self._denial is None:
                self._retry_soon()
        elif hello.protocol < PROTOCOL:
            self._denial = ProtocolError(
                f"the broker at {self.endpoint} speaks version {hello.protocol} of the market's "
                f"protocol, and {self._name} version {PROTOCOL}; upgrade the broker"
            )
        else:
            resumed = hello.resumed and hello.instance == self._instance
            self._instance = hello.instance
            self._beat_s = min(max(hello.beat_s, 0.01), 60.0)
            self._opened_at = self.clock()
            self._beat_at = self._opened_at + self._beat_s
            self.state = OPEN
            os.eventfd_write(self._beat_fd, 1)  # the rate may be another now
            party.greeted(hello, resumed)

    # --- the beat -----------------------------------------------------------------------

    def _watch(self) -> tuple[select.poll, int]:
        """What the beat sleeps on, and for how many milliseconds."""
        watched = select.poll()
        watched.register(self._dealer.monitor_fd, select.POLLIN)
        watched.register(self._beat_fd, select.POLLIN)
        left_s = min(max(self._beat_at - self.clock(), 0.0), MAX_SLEEP_S)
        return watched, math.ceil(left_s * 1000)

    def _beat(self, party: Party) -> None:
        with suppress(BlockingIOError):
            os.eventfd_read(self._beat_fd)
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
