"""What one supplier holds: orders to make, results to send, and how both outlive a connection."""

from __future__ import annotations

import logging
import math
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence

from entrepot.errors import PatternRefused, ProtocolError, Refused
from entrepot.logs import in_a_line
from entrepot.market import protocol
from entrepot.market.batch import BatchOf, is_full, together
from entrepot.market.connection import Connection
from entrepot.market.protocol import Fault, HelloReply, Reply, Result, WorkItem, encode

logger = logging.getLogger(__name__)

FLUSH_AFTER_S = 0.002
"""How long making may take until results go out that wait for others to go with them. One that is
followed by a slow one goes out with the next beat at the latest."""

RESULT_NBYTES = 24 << 10
"""What one result may have at most: an id of 4,096 characters, and an error in words."""

COMPLAIN_S = 30.0
"""How often it is said in the log that the broker does not let it register."""

TEMPORARY = frozenset({"too_many_peers", "draining", "session_dropped"})
"""Refusals of a HELLO that may be over soon."""

LOOK_S = 0.01
"""Seconds between two looks, by a function that asks whether its order was cancelled."""

_read_work = protocol.reader(protocol.Work)
_read_cancel = protocol.reader(protocol.SupplierCancel)


class Worklist:
    """See the module. The party of a supplier's connection: messages come in under its lock.

    :param batch: most orders that are made together; what the broker is told.
    :param batch_of: which orders those are; None where each is made alone.
    :param settled: results of writes that were under way, by now; does not wait.
    :ivar queue: orders to make, oldest first.
    :ivar draining: whether no more orders are taken; see :meth:`drain`.
    :ivar terminated: whether the broker asked for an end.
    :ivar stopping: set, from any thread, to ask for one here. So does ``stop_event``, once set.
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
        terms: dict[str, str] | None = None,
        timeout_s: float,
        silence_s: float,
        tidy: Callable[[], None],
        settled: Callable[[], list[Result]],
        clock: Callable[[], float],
        batch_of: BatchOf | None = None,
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
        self.draining = False
        self.terminated = False
        self.stopping = False
        self.stop_event: threading.Event | None = None
        self.registered = False
        self._name = name
        self._patterns = list(patterns)
        self._credit = credit
        self._batch = batch
        self._exclusive = exclusive
        self._contracts = contracts
        self._terms = terms or {}
        self._timeout_s = timeout_s
        self._batch_of = batch_of
        self._tidy = tidy
        self._settled = settled
        self._clock = clock
        self._session = os.urandom(16)
        self._in_hand: dict[int, WorkItem] = {}
        """By lease: what is being made, and what is being written."""
        self._void: set[int] = set()
        """Leases in hand that the broker no longer knows."""
        self._revoked: set[int] = set()
        """Leases in hand that were cancelled."""
        self._look_at = -math.inf
        self._ready_owed = False
        self._results: list[Result] = []
        self._at_once = 1
        self._unsent_since = 0.0
        self._waiting_since = 0.0
        # The broker gives no more than `credit` orders ahead of the answers that reached it, so
        # if answers were lost with a connection, they are among the last `credit`.
        self._recent: deque[Result] = deque(maxlen=credit)
        self._denied_since: float | None = None
        self._complained_at: float | None = None

    # --- making -------------------------------------------------------------------------

    def take(self) -> list[WorkItem]:
        """The oldest order, and those that are made together with it, now in hand."""
        batch_of = self._batch_of
        if batch_of is None:
            items = [self.queue.popleft()]
        else:
            items = together(self.queue, batch_of)
            self._waiting_since = self._clock()  # what is left came before
        if not (self._results or self._in_hand):
            self._unsent_since = self._clock()
        for item in items:
            self._in_hand[item.lease] = item
        self.connection.at_work = True
        return items

    @property
    def full(self) -> bool:
        """Whether the broker gives no more before it has results of what is in hand."""
        return len(self._in_hand) >= self._credit

    def is_due(self, gathered: int, since: float) -> bool:
        """Whether so many writes, the first of which waits ``since``, have waited long enough."""
        return (
            not self.queue or gathered * 2 >= self._credit or self._clock() - since >= FLUSH_AFTER_S
        )

    @property
    def gathered(self) -> bool:
        """Whether no order could come that would be made together with the oldest."""
        batch_of, queue = self._batch_of, self.queue
        if batch_of is None or not queue or len(queue) >= self._credit:
            return True
        return is_full(queue, batch_of)

    @property
    def gather_until(self) -> float:
        """Until when the oldest order may wait for others, on the clock."""
        batch = None
        if self._batch_of is not None and self.queue:
            batch = self._batch_of(self.queue[0].product_id)
        wait_s = 0.0 if batch is None else batch.wait_s or 0.0
        return self._waiting_since + wait_s

    def finish(self, made: Sequence[Result]) -> None:
        """What was in hand is made, or failed. It goes out now, or with others soon."""
        in_hand, void, results = self._in_hand, self._void, self._results
        for result in made:
            in_hand.pop(result.lease, None)
            if not void or result.lease not in void:
                results.append(result)
        self.connection.at_work = bool(in_hand)
        if self._revoked:
            self._revoked.intersection_update(in_hand)
        if void:
            void.intersection_update(in_hand)
            self.flush()
            if self._ready_owed and not void:
                self._ready_owed = False
                self.connection.send(protocol.READY, protocol.EMPTY)
            return
        # Half of the credit goes back while the other half is being made, so neither side idles.
        if (
            not self.queue
            or len(made) > 1
            or len(results) * 2 >= self._credit
            or self._clock() - self._unsent_since >= FLUSH_AFTER_S
        ):
            self.flush()
            if in_hand:
                self._unsent_since = self._clock()

    def flush(self) -> None:
        """Send the results that wait, in as many messages as the broker's limit asks for."""
        while self._results:
            some = self._results[: self._at_once]
            if not self.connection.send(protocol.DONE, encode(protocol.Done(some))):
                return
            self._recent.extend(some)
            del self._results[: self._at_once]

    # --- what nobody wants any more -----------------------------------------------------

    def is_revoked(self, lease: int) -> bool:
        """Whether what is in hand under that lease was cancelled. From any thread, without the
        lock: for the function that makes it, as often as it likes."""
        connection, now = self.connection, self._clock()
        if lease not in self._revoked and now >= self._look_at and not connection.forked:
            self._look_at = now + LOOK_S
            if connection.lock.acquire(blocking=False):  # else somebody looks just now
                try:
                    if connection.drain():
                        connection.changed()
                finally:
                    connection.lock.release()
        return lease in self._revoked

    def _cancel(self, leases: set[int]) -> None:
        """Orders not begun are answered for at once; a function at work may ask."""
        self._revoked.update(leases.intersection(self._in_hand))
        dropped = [item for item in self.queue if item.lease in leases]
        if dropped:
            self.queue = deque(item for item in self.queue if item.lease not in leases)
            fault = Fault("Cancelled", "it was cancelled before it was begun")
            self._results += [Result(i.order_id, i.lease, False, error=fault) for i in dropped]
            self.flush()

    # --- the end ------------------------------------------------------------------------

    @property
    def ends(self) -> bool:
        """Whether somebody has asked for an end."""
        event = self.stop_event
        return self.stopping or self.terminated or (event is not None and event.is_set())

    def drain(self) -> None:
        """Take no more orders, and give back those not begun; also those still under way to here.

        Any number of times.
        """
        if not self.draining:
            self.draining = True
            self._ready_owed = False
            logger.info("draining", extra={"supplier": self._name, "back": len(self.queue)})
            self._give_back()
        elif self.queue:
            self._give_back()

    def _give_back(self) -> None:
        """Without a connection they stay: a HELLO that names them may be under way."""
        drain = protocol.SupplierDrain([item.lease for item in self.queue])
        if self.connection.send(protocol.DRAIN, encode(drain)):
            self.queue.clear()

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
                terms=self._terms,
                holds=self._held(),
                cancels=True,
            )
        )

    def _held(self) -> list[int]:
        held = [item.lease for item in self.queue]
        held.extend(lease for lease in self._in_hand if lease not in self._void)
        held.extend(result.lease for result in self._results)
        held.extend(result.lease for result in self._recent)
        return held

    def greeted(self, hello: HelloReply, resumed: bool) -> None:
        self._denied_since = self._complained_at = None
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
        if self.draining:
            self._give_back()
            return
        # A broker that does not know of an order in hand would give another one at once.
        self._ready_owed = bool(self._void)
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
        self._void.update(lease for lease in self._in_hand if not is_ours(lease))

    def denied(self, reply: Reply) -> Exception | None:
        now = self._clock()
        if self._denied_since is None:
            self._denied_since = now
        if reply.code == "stale_hello":  # the session is another process's, or was
            self._session = os.urandom(16)
            return None
        temporary = reply.code in TEMPORARY or (
            # The one before may just be dying, and the broker does not know it yet.
            reply.code == "pattern_taken" and now - self._denied_since < self._timeout_s
        )
        if temporary:
            told_at = self._complained_at
            if told_at is None or now - told_at >= COMPLAIN_S:
                self._complained_at = now
                logger.warning(
                    "waiting to register (%s): %s",
                    in_a_line(reply.code, 80),
                    in_a_line(reply.error),
                    extra={"supplier": self._name, "code": reply.code, "why": reply.error},
                )
            return None
        self._denied_since = self._complained_at = None
        if reply.code.startswith("pattern_"):
            return PatternRefused(reply.code, reply.error)
        return Refused(reply.code, reply.error)

    def replied(self, reply: Reply) -> None:
        if reply.code == "session_dropped":
            self._session = os.urandom(16)
            self.connection.reconnect("the broker dropped the session")
        elif reply.code != "ok":
            logger.warning(
                "the broker refused a message (%s): %s",
                in_a_line(reply.code, 80),
                in_a_line(reply.error),
                extra={"supplier": self._name, "code": reply.code, "why": reply.error},
            )

    def received(self, command: bytes, fields: bytes) -> None:
        if command == protocol.WORK:
            orders = _read_work(fields).orders
            if self._batch_of is not None and not self.queue:
                self._waiting_since = self._clock()
            self.queue.extend(orders)
        elif command == protocol.TERMINATE:
            self.terminated = True
        elif command == protocol.CANCEL:
            self._cancel(set(_read_cancel(fields).leases))
        elif command != protocol.HEARTBEAT:
            raise ProtocolError(f"a supplier is not told {command[:32]!r}")

    def beat(self) -> bytes:
        if self.ends:
            self.drain()
        settled = self._settled()
        if settled:
            self.finish(settled)
        self.flush()
        self._tidy()
        return protocol.EMPTY
