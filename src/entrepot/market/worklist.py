"""What one supplier holds: orders to make, results to send, and how both outlive a connection."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Sequence

from entrepot.errors import PatternRefused, ProtocolError, Refused
from entrepot.market import protocol
from entrepot.market.connection import Connection
from entrepot.market.protocol import HelloReply, Reply, Result, WorkItem, encode

logger = logging.getLogger(__name__)

FLUSH_AFTER_S = 0.002
"""How long making may take until results go out that wait for others to go with them. One that is
followed by a slow one goes out with the next beat at the latest."""

RESULT_NBYTES = 24 << 10
"""What one result may have at most: an id of 4,096 characters, and an error in words."""

TEMPORARY = frozenset({"too_many_peers", "draining", "session_dropped"})
"""Refusals of a HELLO that may be over soon."""

_read_work = protocol.reader(protocol.Work)


class Worklist:
    """See the module. The party of a supplier's connection: messages come in under its lock.

    :ivar queue: orders to make, oldest first.
    :ivar terminated: whether the broker asked for an end.
    :ivar registered: whether a broker ever took the patterns.
    """

    def __init__(
        self,
        endpoint: str,
        patterns: Sequence[str],
        *,
        name: str,
        credit: int,
        batch: int,
        exclusive: bool,
        contracts: dict[str, str],
        timeout_s: float,
        silence_s: float,
        tidy: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        self.connection = Connection(
            self,
            endpoint,
            silence_s=silence_s,
            timeout_s=timeout_s,
            name=f"supplier {name}",
            clock=clock,
        )
        self.queue: deque[WorkItem] = deque()
        self.terminated = False
        self.registered = False
        self._name = name
        self._patterns = list(patterns)
        self._credit = credit
        self._batch = batch
        self._exclusive = exclusive
        self._contracts = contracts
        self._timeout_s = timeout_s
        self._tidy = tidy
        self._clock = clock
        self._session = os.urandom(16)
        self._in_hand: WorkItem | None = None
        self._in_hand_is_void = False
        self._ready_owed = False
        self._results: list[Result] = []
        self._at_once = 1
        self._unsent_since = 0.0
        # The broker gives no more than `credit` orders ahead of the answers that reached it, so
        # if answers were lost with a connection, they are among the last `credit`.
        self._recent: deque[Result] = deque(maxlen=credit)
        self._denied_since: float | None = None

    # --- making -------------------------------------------------------------------------

    def take(self) -> WorkItem:
        """The oldest order, now in hand."""
        item = self._in_hand = self.queue.popleft()
        self.connection.at_work = True
        if not self._results:
            self._unsent_since = self._clock()
        return item

    def finish(self, result: Result) -> None:
        """The order in hand is made, or failed. Its result goes out now, or with others soon."""
        self._in_hand = None
        self.connection.at_work = False
        if self._in_hand_is_void:
            self._in_hand_is_void = False
            if self._ready_owed:
                self._ready_owed = False
                self.connection.send(protocol.READY, protocol.EMPTY)
            return
        results = self._results
        results.append(result)
        # Half of the credit goes back while the other half is being made, so neither side idles.
        if (
            not self.queue
            or len(results) * 2 >= self._credit
            or self._clock() - self._unsent_since >= FLUSH_AFTER_S
        ):
            self.flush()

    def flush(self) -> None:
        """Send the results that wait, in as many messages as the broker's limit asks for."""
        while self._results:
            some = self._results[: self._at_once]
            if not self.connection.send(protocol.DONE, encode(protocol.Done(some))):
                return
            self._recent.extend(some)
            del self._results[: self._at_once]

    # --- what the broker says -----------------------------------------------------------

    def hello(self, seq: int) -> bytes:
        return encode(
            protocol.SupplierHello(
                seq=seq,
                protocol=protocol.PROTOCOL,
                session=self._session,
                name=self._name,
                product_ids=self._patterns,
                credit=self._credit,
                batch=self._batch,
                exclusive=self._exclusive,
                contracts=self._contracts,
                holds=self._held(),
            )
        )

    def _held(self) -> list[int]:
        held = [item.lease for item in self.queue]
        if self._in_hand is not None and not self._in_hand_is_void:
            held.append(self._in_hand.lease)
        held.extend(result.lease for result in self._results)
        held.extend(result.lease for result in self._recent)
        return held

    def greeted(self, hello: HelloReply, resumed: bool) -> None:
        self._denied_since = None
        self._at_once = max(1, hello.limits.message_nbytes // RESULT_NBYTES)
        if not self.registered:
            self.registered = True
            logger.info("registered", extra={"supplier": self._name, "patterns": self._patterns})
        if resumed:
            self._forget(set(hello.missing))
        else:
            self._forget(None)
        again = [*self._recent, *self._results]
        self._recent.clear()
        self._results = again
        self.flush()
        # A broker that does not know of the order in hand would give another one at once.
        self._ready_owed = self._in_hand is not None and self._in_hand_is_void
        if not self._ready_owed:
            self.connection.send(protocol.READY, protocol.EMPTY)

    def _forget(self, leases: set[str] | None) -> None:
        """Drop what the broker does not have with us: ``leases``, or, with None, all."""

        def is_ours(lease: int) -> bool:
            return leases is not None and str(lease) not in leases

        self.queue = deque(item for item in self.queue if is_ours(item.lease))
        self._results = [result for result in self._results if is_ours(result.lease)]
        recent = [result for result in self._recent if is_ours(result.lease)]
        self._recent.clear()
        self._recent.extend(recent)
        if self._in_hand is not None and not is_ours(self._in_hand.lease):
            self._in_hand_is_void = True

    def denied(self, reply: Reply) -> Exception | None:
        now = self._clock()
        if self._denied_since is None:
            self._denied_since = now
        temporary = reply.code in TEMPORARY or (
            # The one before may just be dying, and the broker does not know it yet.
            reply.code == "pattern_taken" and now - self._denied_since < self._timeout_s
        )
        if temporary:
            logger.warning(
                "the broker refused to register; trying again",
                extra={"supplier": self._name, "code": reply.code, "why": reply.error},
            )
            return None
        self._denied_since = None
        if reply.code.startswith("pattern_"):
            return PatternRefused(reply.code, reply.error)
        return Refused(reply.code, reply.error)

    def replied(self, reply: Reply) -> None:
        if reply.code == "session_dropped":
            self._session = os.urandom(16)
            self.connection.reconnect("the broker dropped the session")
        elif reply.code != "ok":
            logger.warning(
                "the broker refused a message",
                extra={"supplier": self._name, "code": reply.code, "why": reply.error},
            )

    def received(self, command: bytes, fields: bytes) -> None:
        if command == protocol.WORK:
            self.queue.extend(_read_work(fields).orders)
        elif command == protocol.TERMINATE:
            self.terminated = True
        elif command != protocol.HEARTBEAT:
            raise ProtocolError(f"a supplier is not told {command[:32]!r}")

    def beat(self) -> bytes:
        self.flush()
        self._tidy()
        return protocol.EMPTY
