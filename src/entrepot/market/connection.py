"""One party's connection to the broker: who may touch the socket, and what silence means.

**Threads.** There is no thread between a user and the socket. Whoever waits becomes the *leader*:
it sleeps on the socket's descriptor, not in ZeroMQ, and without the lock, so that others can take
the lock and send meanwhile. Other waiters *follow*: they sleep on a lock of their own, and the
leader wakes the one whose wish came true. A ZeroMQ descriptor is edge-triggered and a send may
swallow its edge, so who sends while a leader sleeps looks whether something came, and pokes it
awake. One more thread, the *beat*, sleeps nearly always: it says HEARTBEAT, reads what nobody
else reads, and notices at once when the connection closes.

**Connections.** ZeroMQ reconnects by itself, but then the broker does not know who that is, and
what was queued is in doubt. So a closed connection, a silent one, and one whose broker says
``hello_first`` are all the same here: a new socket whose first message is HELLO with the same
session. The party puts right what may have been lost when the answer comes.
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
from typing import Protocol

import zmq
from zmq.utils.monitor import recv_monitor_message

from entrepot.errors import (
    BrokerUnavailable,
    Closed,
    ConfigurationError,
    ProtocolError,
    UsedAfterFork,
)
from entrepot.market.protocol import (
    EMPTY,
    GOODBYE,
    HEARTBEAT,
    HELLO,
    PROTOCOL,
    REPLY,
    HelloReply,
    Reply,
    reader,
)

logger = logging.getLogger(__name__)

IDLE = 0
GREETING = 1
OPEN = 2
CLOSED = 3

MAX_MESSAGE_NBYTES = 16 << 20
"""Largest message taken from the broker."""

HIGH_WATER = 1 << 17
"""Messages that ZeroMQ queues in one direction, at most."""

DRAIN_AT_MOST = 512
"""Messages handled before whoever waits is asked whether it still does."""

FIRST_BEAT_S = 0.25
"""Until the broker says how often it wants to hear a beat."""

MAX_SLEEP_S = 1.0
"""Longest sleep without looking at the clock: a bound, should a wake-up ever be lost."""

LINGER_MS = 300
"""How long the last messages may take to leave at an orderly close."""

CLOSE_S = 5.0
"""How long ``close`` waits for another thread to let go."""

_OPTIONS = (
    (zmq.LINGER, 0),
    (zmq.SNDTIMEO, 0),
    (zmq.SNDHWM, HIGH_WATER),
    (zmq.RCVHWM, HIGH_WATER),
    (zmq.MAXMSGSIZE, MAX_MESSAGE_NBYTES),
    (zmq.RECONNECT_IVL, 50),
    (zmq.RECONNECT_IVL_MAX, 1000),
    (zmq.TCP_KEEPALIVE, 1),
    (zmq.TCP_KEEPALIVE_IDLE, 30),
)

# The plain methods underneath pyzmq's Python ones take a third of the time, and plain numbers
# spare a look into an enumeration.
_POLLIN = int(zmq.POLLIN)
_EVENTS = int(zmq.EVENTS)
_FD = int(zmq.FD)
_NOBLOCK = int(zmq.NOBLOCK)
_SEND_MORE = int(zmq.SNDMORE | zmq.NOBLOCK)
_get: Callable[[zmq.Socket[bytes], int], int] = zmq.backend.Socket.get  # type: ignore[assignment]
_send = zmq.backend.Socket.send
_recv = zmq.backend.Socket.recv

_read_reply = reader(Reply)


class Party(Protocol):
    """What a connection asks of the client or supplier it belongs to, always under the lock."""

    def hello(self, seq: int) -> bytes:
        """The fields of a HELLO."""

    def greeted(self, hello: HelloReply, resumed: bool) -> None:
        """HELLO was answered; ``resumed``: by a broker that knew the session."""

    def denied(self, reply: Reply) -> Exception | None:
        """HELLO was refused: what to raise to whoever waits, or None to try again soon."""

    def replied(self, reply: Reply) -> None:
        """Any other REPLY."""

    def received(self, command: bytes, fields: bytes) -> None:
        """Anything but REPLY. May raise ProtocolError."""

    def beat(self) -> bytes:
        """The fields of a HEARTBEAT; called once in ``beat_s``, also to tidy up."""


class Connection:
    """The socket of one party, shared by its threads.

    All methods but :meth:`poke`, :meth:`check` and :meth:`close` want :attr:`lock` to be held.

    :param silence_s: silence of the broker, in seconds, after which a new connection is made.
    :param timeout_s: seconds without an answer after which BrokerUnavailable is raised.
    :param clock: seconds, going up.
    :ivar lock: guards this object and everything of its party.
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
        self.lock = threading.Lock()
        self.state = IDLE
        self.endpoint = endpoint
        self.timeout_s = timeout_s
        self.clock = clock
        self.reconnects = 0
        self.malformed = 0
        # Weak: a party that is dropped without close() must not live on because of its beat.
        self._party = weakref.ref(party)
        self._silence_s = silence_s
        self._name = name
        self._pid = os.getpid()
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._socket: zmq.Socket[bytes]
        self._monitor: zmq.Socket[bytes]
        self._poller: select.poll
        self._wake_fd = -1
        self._beat_fd = -1
        self._beat_thread: threading.Thread | None = None
        self._beat_s = FIRST_BEAT_S
        self._beat_at = 0.0
        self._leading = False
        self._followers: list[tuple[Callable[[], bool], threading.Lock]] = []
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
        """Refuse to be used where that cannot work.

        :raises UsedAfterFork: in a forked child.
        :raises Closed: after ``close``.
        """
        if os.getpid() != self._pid:
            raise UsedAfterFork(
                f"{self._name} was made in process {self._pid} and is used in its forked child "
                f"{os.getpid()}, where its connection cannot work; make a new one there"
            )
        if self.state == CLOSED:
            raise Closed(f"{self._name} was closed; make a new one")

    @property
    def forked(self) -> bool:
        """Whether this is a forked child, where nothing of the parent's may be touched."""
        return os.getpid() != self._pid

    def start(self) -> None:
        """Begin to connect, without waiting.

        :raises ConfigurationError: the endpoint cannot be one.
        """
        if self.state != IDLE:
            return
        self._context = zmq.Context()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._beat_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._down_since = self.clock()
        try:
            self._connect()
        except BaseException:
            self._context.term()
            os.close(self._wake_fd)
            os.close(self._beat_fd)
            self._wake_fd = -1
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
        try:
            while self.state != OPEN:
                self._check_open()
                if self._denial is not None:
                    raise self._denial
                if not self._leading and self.drain():
                    continue
                if self.clock() >= limit:
                    raise BrokerUnavailable(self.endpoint, self.clock() - began, "saying HELLO")
                self._sleep(self._is_settled, limit)
        finally:
            self._hand_over()

    @property
    def down_since(self) -> float | None:
        """Since when there is no connection; None while there is one."""
        return None if self.state == OPEN else self._down_since

    def wait(
        self, done: Callable[[], bool], deadline: float | None, *, patient: bool = False
    ) -> bool:
        """Handle messages until ``done()``; False when ``deadline`` came before.

        :param patient: stay, however long there is no connection.
        :raises BrokerUnavailable: there was none for ``timeout_s``.
        :raises Closed: it was closed meanwhile.
        """
        try:
            while not done():
                self._check_open()
                if not self._leading and self.drain():
                    continue
                limit = deadline
                if self.state != OPEN:
                    limit = self._limit_of_outage(deadline, patient)
                if deadline is not None and self.clock() >= deadline:
                    return False
                self._sleep(done, limit)
            return True
        finally:
            if self._followers:
                self._hand_over()

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
        socket = self._socket
        try:
            _send(socket, command, _SEND_MORE)
            _send(socket, fields, _NOBLOCK)
        except zmq.Again:
            self.reconnect("the broker does not read")
            return False
        if self._leading and _get(socket, _EVENTS) & _POLLIN:
            self.poke()  # the send may have swallowed what the leader sleeps for
        return True

    def drain(self) -> int:
        """Handle what has arrived, without waiting; how many messages that was."""
        if self.state not in (GREETING, OPEN):
            return 0
        socket = self._socket
        handled = 0
        while handled < DRAIN_AT_MOST and _get(socket, _EVENTS) & _POLLIN:
            self._receive(socket)
            handled += 1
            if socket is not self._socket:
                break
        if handled:
            self._heard_at = self.clock()
            if self._followers:
                self._wake_followers()
        return handled

    def changed(self) -> None:
        """Something that somebody may wait for happened without a message."""
        if self._followers:
            self._wake_followers()
        if self._leading:
            self.poke()

    def poke(self) -> None:
        """Have the leader look again. From any thread or signal handler; wants no lock."""
        if self._wake_fd >= 0:
            os.eventfd_write(self._wake_fd, 1)

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

    def close(self, *, goodbye: bool = True) -> None:
        """Say GOODBYE, if there is a connection, and let go of everything. Any number of times."""
        if os.getpid() != self._pid:
            return
        with self.lock:
            was, said = self.state, False
            if was == CLOSED:
                return
            if goodbye:
                said = self.send(GOODBYE, EMPTY)
            self.state = CLOSED
            if was == IDLE:
                return
            _alive.discard(self)
            for _, waiter in self._followers:
                waiter.release()
            self._followers.clear()
            self.poke()
            os.eventfd_write(self._beat_fd, 1)
        beat = self._beat_thread
        if beat is not None and beat is not threading.current_thread():
            beat.join(CLOSE_S)
        limit = time.monotonic() + CLOSE_S
        with self.lock:
            while self._leading and time.monotonic() < limit:  # it sleeps on what is closed now
                self._follow(_never, 0.01)
            self._drop_socket(LINGER_MS if said else 0)
            if self._context is not None:
                self._context.term()
            wake_fd, self._wake_fd = self._wake_fd, -1
            os.close(wake_fd)
            os.close(self._beat_fd)

    # --- waiting ------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self.state == CLOSED:
            raise Closed(f"{self._name} was closed while it was in use")

    def _is_settled(self) -> bool:
        return self.state == OPEN or self._denial is not None

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
        return down_until if deadline is None else min(deadline, down_until)

    def _sleep(self, done: Callable[[], bool], limit: float | None) -> None:
        timeout_s = MAX_SLEEP_S
        if limit is not None:
            timeout_s = min(max(limit - self.clock(), 0.0), MAX_SLEEP_S)
        if self._leading:
            self._follow(done, timeout_s)
        else:
            self._lead(timeout_s)

    def _lead(self, timeout_s: float) -> None:
        """Sleep on the socket, without the lock, until something may have come."""
        poller = self._poller
        self._leading = True
        self.lock.release()
        try:
            ready = poller.poll(math.ceil(timeout_s * 1000))
        finally:
            self.lock.acquire()
            self._leading = False
        for fd, _ in ready:
            if fd == self._wake_fd:
                with suppress(BlockingIOError):
                    os.eventfd_read(fd)
                self._wake_followers()

    def _follow(self, done: Callable[[], bool], timeout_s: float) -> None:
        """Sleep until the leader sees that ``done()``, or hands over."""
        waiter = threading.Lock()
        waiter.acquire()
        me = (done, waiter)
        self._followers.append(me)
        self.lock.release()
        try:
            waiter.acquire(timeout=timeout_s)
        finally:
            self.lock.acquire()
            if me in self._followers:
                self._followers.remove(me)

    def _wake_followers(self) -> None:
        woken = [follower for follower in self._followers if follower[0]()]
        for follower in woken:
            self._followers.remove(follower)
            follower[1].release()

    def _hand_over(self) -> None:
        """Whoever stops leading leaves the socket to somebody who still waits."""
        if self._followers and not self._leading:
            self._followers.pop(0)[1].release()

    # --- the socket ---------------------------------------------------------------------

    def _connect(self) -> None:
        """A new socket, with HELLO as its first message."""
        party, context = self._party(), self._context
        if party is None or context is None:
            return
        if self.state != IDLE:
            self._drop_socket(0)
        self._socket = context.socket(zmq.DEALER)
        for option, value in _OPTIONS:
            self._socket.setsockopt(option, value)
        # The host at the other end may vanish without a word.
        silence_ms = max(2, int(self._silence_s * 1000))
        self._socket.setsockopt(zmq.HEARTBEAT_IVL, silence_ms // 2)
        self._socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, silence_ms)
        if "[" in self.endpoint:
            self._socket.setsockopt(zmq.IPV6, 1)
        self._monitor = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        try:
            self._socket.connect(self.endpoint)
        except zmq.ZMQError as error:
            self._drop_socket(0)
            raise ConfigurationError(
                f"{self.endpoint!r} is not an endpoint to connect to ({error}); give "
                f"tcp://host:port or ipc:///path"
            ) from error
        self._poller = select.poll()
        self._poller.register(_get(self._socket, _FD), select.POLLIN)
        self._poller.register(self._wake_fd, select.POLLIN)
        self.state = GREETING
        self._denial = None
        self._retry = False
        self._heard_at = self.clock()
        self._hello_seq = self.next_seq()
        _send(self._socket, HELLO, _SEND_MORE)
        _send(self._socket, party.hello(self._hello_seq), _NOBLOCK)
        # Who sleeps, sleeps on the old one.
        os.eventfd_write(self._beat_fd, 1)
        self.changed()

    def _retry_soon(self) -> None:
        self._retry = True
        self._beat_at = self.clock() + FIRST_BEAT_S
        os.eventfd_write(self._beat_fd, 1)

    def _drop_socket(self, linger_ms: int) -> None:
        self._socket.disable_monitor()
        self._monitor.close(0)
        self._socket.close(linger_ms)

    def _receive(self, socket: zmq.Socket[bytes]) -> None:
        """Handle one message, of which some frame has arrived: ZeroMQ delivers all or none."""
        command = _recv(socket, _NOBLOCK)
        try:
            fields = _recv(socket, _NOBLOCK)
        except zmq.Again:
            self._reject("a message of one frame", socket)
            if self.state == GREETING:
                self._denial = ProtocolError(
                    f"what answers at {self.endpoint} does not speak version {PROTOCOL} of the "
                    f"market's protocol; upgrade the broker"
                )
            return
        party = self._party()
        if party is None:
            return
        try:
            if command == REPLY:
                self._replied(party, _read_reply(fields))
            elif self.state == OPEN:
                party.received(command, fields)
        except ProtocolError as fault:
            self._reject(str(fault), socket)

    def _reject(self, fault: str, socket: zmq.Socket[bytes]) -> None:
        """Count a message that makes no sense, and find the beginning of the next."""
        self.malformed += 1
        logger.warning(
            "the broker sent something malformed",
            extra={"party": self._name, "endpoint": self.endpoint, "fault": fault},
        )
        while not socket.closed and _get(socket, zmq.RCVMORE):
            _recv(socket, _NOBLOCK)

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
        watched.register(_get(self._monitor, _FD), select.POLLIN)
        watched.register(self._beat_fd, select.POLLIN)
        left_s = min(max(self._beat_at - self.clock(), 0.0), MAX_SLEEP_S)
        return watched, math.ceil(left_s * 1000)

    def _beat(self, party: Party) -> None:
        with suppress(BlockingIOError):
            os.eventfd_read(self._beat_fd)
        if self.drain() and self._leading:
            self.poke()
        while _get(self._monitor, _EVENTS) & _POLLIN:
            recv_monitor_message(self._monitor)
            self.reconnect("the connection closed")
        now = self.clock()
        if now - self._heard_at >= self._silence_s and not self._retry:
            # Silence of the broker, or of this process: what has arrived was looked at above.
            self.reconnect("the broker is silent")
        if now < self._beat_at:
            return
        if self._retry:
            self._connect()
        self._beat_at = now + (self._beat_s if self.state == OPEN else FIRST_BEAT_S)
        fields = party.beat()
        self.send(HEARTBEAT, fields)


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


def _never() -> bool:
    return False


_alive: weakref.WeakSet[Connection] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """A process that ends without ``close`` says GOODBYE all the same."""
    for connection in list(_alive):
        connection.close()
