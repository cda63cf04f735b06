"""One party's line to the broker: a socket, the HELLO on it, and what comes back.

ZeroMQ reconnects by itself, but then the broker does not know who that is, and what was queued is
in doubt. So a connection that closed, one that is silent, and one whose broker says
``hello_first`` are all the same here: a new socket whose first message is HELLO with the same
session. The party puts right what may have been lost when the answer comes.
"""

from __future__ import annotations

import logging
import math
import time
import weakref
from collections.abc import Callable

import zmq

from entrepot.errors import ConfigurationError, ProtocolError
from entrepot.logs import in_a_line
from entrepot.market.dealer import EVENTS, Dealer
from entrepot.market.party import Party
from entrepot.market.protocol import HELLO, HELLO_NBYTES, PROTOCOL, REPLY, Reply, reader
from entrepot.market.sockets import POLLIN
from entrepot.market.turns import Turns
from entrepot.market.wake import Wake

logger = logging.getLogger(__name__)

IDLE = 0
GREETING = 1
OPEN = 2
CLOSED = 3

DRAIN_AT_MOST = 512
"""Messages handled before whoever waits is asked whether it still does."""

FIRST_BEAT_S = 0.25
"""Until the broker says how often it wants to hear a beat; and between two hasty connections."""

_read_reply = reader(Reply)


class Line:
    """See the module. All methods but :meth:`beat_soon` and ``poke`` want :attr:`lock` to be held.

    :param silence_s: silence of the broker, in seconds, after which a new connection is made.
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
        name: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.state = IDLE
        self.endpoint = endpoint
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
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._dealer: Dealer
        self._beat_wake: Wake | None = None
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

    # --- messages -----------------------------------------------------------------------

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
                "the broker at %s sent something malformed: %s",
                self.endpoint,
                in_a_line(str(fault)),
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

    # --- connections --------------------------------------------------------------------

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
        hello = party.hello(self._hello_seq)
        if len(hello) <= HELLO_NBYTES:
            dealer.send(HELLO, hello)
        else:  # a broker that does not take it would close the connection without a word
            self._denial = ConfigurationError(
                f"{self._name} has {len(hello):,} bytes to say in HELLO, and no broker has to take "
                f"more than {HELLO_NBYTES:,}; register fewer patterns or shorter ones, or share "
                f"the open orders among several clients"
            )
        # Who sleeps, sleeps on the old one.
        self._rouse()
        self.changed()

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
            self._rouse()  # the rate may be another now
            party.greeted(hello, resumed)

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

    def _retry_soon(self) -> None:
        self._retry = True
        self._beat_at = self.clock() + FIRST_BEAT_S
        self._rouse()

    # --- the beat -----------------------------------------------------------------------

    def beat_soon(self) -> None:
        """Beat at once instead of in its time. From any thread or signal handler; wants no lock."""
        self._beat_at = -math.inf
        self._rouse()

    def _rouse(self) -> None:
        wake = self._beat_wake
        if wake is not None:
            wake.set()
