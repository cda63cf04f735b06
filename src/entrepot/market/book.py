"""All open orders of one client: what the user takes, and what each message does to them."""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Sequence

from entrepot.arguments import shown
from entrepot.errors import (
    BrokerUnavailable,
    Closed,
    CorruptProduct,
    MediumError,
    OrderFailed,
    OrderTimeout,
    ProtocolError,
    Refused,
)
from entrepot.logs import in_a_line, why_of
from entrepot.market import protocol
from entrepot.market.connection import Connection
from entrepot.market.order import ENDED, TAKEN, WANTED, Entry
from entrepot.market.placing import ORDERS_NBYTES, Placing
from entrepot.market.product import Product
from entrepot.market.protocol import HelloReply, Reply, encode
from entrepot.market.slots import WAITING, Slot
from entrepot.mediums.base import Medium

logger = logging.getLogger(__name__)

ACKNOWLEDGE_AFTER = 1024
"""Pushes after which the broker is told that it may forget them, if no beat did so before. A broker
keeps that many more than a client may have orders open, so that it drops none that only is fast."""

ACKNOWLEDGE_NBYTES = 1 << 20
"""The same, in bytes."""

_read_fulfilled = protocol.reader(protocol.Fulfilled)
_read_failed = protocol.reader(protocol.Failed)
_read_lost = protocol.reader(protocol.Lost)
_read_heartbeat = protocol.reader(protocol.BrokerHeartbeat)


class Book(Placing):
    """The party of a client's connection: messages come in under its lock."""

    def __init__(
        self,
        endpoint: str,
        medium: Medium,
        *,
        name: str,
        contract: str | None,
        explain: Callable[[str], str],
        session: bytes,
        timeout_s: float,
        silence_s: float,
        max_corrupt: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(medium, name, timeout_s, clock)
        self.connection = Connection(
            self,
            endpoint,
            silence_s=silence_s,
            timeout_s=timeout_s,
            name=f"client {name}",
            clock=clock,
        )
        self.lock = self.connection.lock
        self._contract = contract
        self._explain = explain
        self._session = session
        self._max_corrupt = max_corrupt
        self._last_push = 0
        self._acknowledged = 0
        self._seen_nbytes = 0
        self._gap_at = -1
        self._in_doubt = False
        self._named: set[str] = set()
        self._answers: dict[int, Reply | None] = {}

    # --- taking -------------------------------------------------------------------------

    def look(self, entry: Entry) -> bool:
        """Whether ``entry`` is over, by what has arrived so far."""
        if entry.state == WANTED:
            self.connection.check()
            with self.lock:
                if self.connection.drain():
                    self.connection.changed()
        return entry.state != WANTED

    def result(self, entry: Entry, timeout_s: float | None) -> Product:
        """See :meth:`Order.result`."""
        connection = self.connection
        connection.check()
        deadline = None if timeout_s is None else self.clock() + timeout_s
        while True:
            with self.lock:
                if self.released or self.dropped:
                    self.collect()
                if entry.state == WANTED and not connection.wait(entry.is_over, deadline):
                    raise OrderTimeout(
                        f"order {entry.order_id} for {entry.product_id!r} has no product after "
                        f"{timeout_s:g} s; it stays open: wait again or cancel it, and see "
                        f"whether a supplier makes this product (stats())"
                    )
                slot = self._claim(entry)
            product = self._verified(entry, slot)
            if product is not None:
                return product

    def wait_any(self, sink: deque[Entry], timeout_s: float | None) -> bool:
        """Wait until one of the orders that were placed with ``sink`` is over."""
        self.connection.check()
        deadline = None if timeout_s is None else self.clock() + timeout_s
        with self.lock:
            return self.connection.wait(lambda: bool(sink), deadline)

    def _claim(self, entry: Entry) -> Slot:
        """Lend the slot of a product that arrived, to this caller and no other."""
        if entry.state == ENDED:
            assert entry.error is not None
            raise entry.error.with_traceback(None)
        if entry.state == TAKEN:
            raise Closed(
                f"the product of order {entry.order_id} was taken before; keep it, or order again"
            )
        slot = entry.slot
        assert slot is not None
        if slot.ticket != entry.ticket or not self.table.lend(slot):
            entry.end(entry.cancelled("discarded"))
            self._drop_input(entry)
            raise entry.cancelled("discarded")
        entry.state = TAKEN
        return slot

    def _verified(self, entry: Entry, slot: Slot) -> Product | None:
        """The product, if the bytes are those that were sent; without the lock: it takes long.

        None when they are not, and the order was placed anew.
        """
        delivery = entry.delivery
        assert delivery is not None
        if self._is_whole(slot, delivery):
            if slot.generation != self.table.generation:
                self.release(slot, entry.ticket)
                raise entry.cancelled("discarded")
            if entry.input_slot is not None:
                self.release(*entry.input_slot)
            return Product(self, entry, slot, delivery)
        with self.lock:
            self._corrupt(entry, slot)
        return None

    def _is_whole(self, slot: Slot, delivery: protocol.Delivery) -> bool:
        """Whether what is in the slot is what the supplier says that it wrote."""
        medium: Medium = slot.arena.medium
        if delivery.nbytes > medium.slot_nbytes:
            return False
        if medium.fences and medium.written(slot.offset) != delivery.lease:
            return False
        try:
            return medium.checksum_written(slot.offset, delivery.nbytes) == delivery.checksum
        except MediumError as error:
            logger.warning(
                "a slot cannot be read: %s",
                why_of(error),
                extra={"client": self._name, "why": error},
            )
            return False

    def _corrupt(self, entry: Entry, slot: Slot) -> None:
        self.figures["corrupt"] += 1
        logger.warning(
            "what came for order %s, %s, is not what its checksum says",
            entry.order_id,
            shown(entry.product_id),
            extra={"order_id": entry.order_id, "product_id": entry.product_id},
        )
        # Whoever wrote there after the supplier was done may do so again.
        self.table.retire(slot, entry.ticket)
        entry.corrupt += 1
        if slot.generation != self.table.generation:
            entry.end(entry.cancelled("discarded"))
        elif entry.corrupt >= self._max_corrupt:
            entry.end(
                CorruptProduct(
                    f"order {entry.order_id} for {entry.product_id!r}: what arrived was not what "
                    f"its supplier sent, {entry.corrupt} times in a row; does another program "
                    f"write to {slot.arena.medium.address}?"
                )
            )
        else:
            self._begin_anew(entry)
            self._place_parked()
            return
        self._drop_input(entry)

    # --- asking -------------------------------------------------------------------------

    def ask(self, command: bytes, request: Callable[[int], bytes], timeout_s: float) -> Reply:
        """Send ``request(seq)`` and wait for its answer; asked again on a new connection.

        :raises Refused: the broker said no.
        :raises BrokerUnavailable: it said nothing.
        """
        connection = self.connection
        connection.check()
        deadline = self.clock() + timeout_s
        with self.lock:
            while True:
                connection.open(deadline)
                seq = connection.next_seq()
                self._answers[seq] = None
                try:
                    made = connection.reconnects
                    connection.send(command, request(seq))
                    answered = connection.wait(
                        lambda seq=seq, made=made: (  # type: ignore[misc]
                            self._answers[seq] is not None or connection.reconnects != made
                        ),
                        deadline,
                    )
                finally:
                    answer = self._answers.pop(seq)
                if answer is not None:
                    if answer.code != "ok":
                        raise Refused(answer.code, answer.error)
                    return answer
                if not answered:
                    raise BrokerUnavailable(
                        connection.endpoint, timeout_s, f"asking for {command.decode()}"
                    )

    # --- what the broker says -----------------------------------------------------------

    def hello(self, seq: int) -> bytes:
        open_orders = self.table.open_orders
        self._named = set(open_orders)
        return encode(
            protocol.ClientHello(
                seq=seq,
                protocol=protocol.PROTOCOL,
                session=self._session,
                name=self._name,
                contract=self._contract,
                last_push=self._last_push,
                open_orders=open_orders,
            )
        )

    def greeted(self, hello: HelloReply, resumed: bool) -> None:
        self._orders_nbytes = min(ORDERS_NBYTES, hello.limits.message_nbytes // 4)
        if resumed:
            self.figures["resumed"] += 1
            self._resume(set(hello.missing))
        else:
            self._start_over()

    def _resume(self, missing: set[str]) -> None:
        """The broker has the session. Put right what was under way when the connection went."""
        table = self.table
        self._acknowledged = self._last_push
        table.settled(missing)
        again = []
        for wire_id, entry in self._entries.items():
            # Not there, or made while HELLO was on its way.
            if wire_id in missing or wire_id not in self._named:
                if table.slot_of(wire_id) is None:
                    entry.moves = False  # parked here, and new to the broker
                else:
                    again.append(entry)  # it never arrived, so nobody was told of its slot
        again.sort(key=_by_number)
        self._send_orders(again)
        for wire_id in table.quarantined:
            self._send_cancel(wire_id)
        # Whether the broker has seen the MOVEs is known when it has sent its pushes again: one of
        # them may say that the slot, too, was lost.
        self._in_doubt = True
        self._place_parked()

    def _start_over(self) -> None:
        """The broker knows nothing of what was ordered. All of it again, in other slots."""
        self._last_push = self._acknowledged = 0
        self._gap_at = -1
        self._in_doubt = False
        self._sent.clear()
        forsaken = [self._entries[wire_id] for wire_id in self.table.forsaken()]
        self._entries.clear()
        if forsaken:
            self.figures["restarted"] += 1
            logger.info("placing all orders again", extra={"client": self._name})
        for entry in sorted(forsaken, key=_by_number):
            self._begin_anew(entry)
        self._place_parked()

    def denied(self, reply: Reply) -> Exception | None:
        if reply.code == "stale_hello":  # the session is another process's, or was
            self._session = os.urandom(16)
            return None
        return Refused(reply.code, reply.error)

    def replied(self, reply: Reply) -> None:
        if reply.seq in self._answers:
            self._answers[reply.seq] = reply
            return
        if reply.untouched or reply.touched:
            self.table.settled(reply.untouched)
            self.table.settled(reply.touched)
        sent = self._sent.get(reply.seq)
        if reply.code == "ok":
            return
        if reply.code == "session_dropped":
            self._session = os.urandom(16)
            self.connection.reconnect("the broker dropped the session")
        elif reply.refused or sent is not None:
            refused = reply.refused or [order.order_id for order in sent or ()]
            why = reply.error + (self._explain(reply.terms) if reply.terms else "")
            self._refused(refused, Refused(reply.code, why))
        elif reply.code != "unknown_order":  # CANCEL or MOVE of what has ended meanwhile
            logger.warning(
                "the broker refused a request (%s): %s",
                in_a_line(reply.code, 80),
                in_a_line(reply.error),
                extra={"client": self._name, "code": reply.code, "why": reply.error},
            )

    def _refused(self, wire_ids: Sequence[str], error: Refused) -> None:
        for wire_id in wire_ids:
            if self.table.failed(wire_id, 0):
                self._end(wire_id, error)

    def received(self, command: bytes, fields: bytes) -> None:
        if command == protocol.FULFILLED:
            fulfilled = _read_fulfilled(fields)
            if self._is_next(fulfilled.push, len(fields)):
                for delivery in fulfilled.orders:
                    slot = self.table.fulfilled(delivery.order_id, delivery.lease)
                    if slot is None:
                        self.figures["unexpected"] += 1
                    else:
                        self._entries.pop(delivery.order_id).arrived(slot, delivery)
        elif command == protocol.FAILED:
            failed = _read_failed(fields)
            if self._is_next(failed.push, len(fields)):
                self._failed(failed)
        elif command == protocol.LOST:
            lost = _read_lost(fields)
            if self._is_next(lost.push, len(fields)) and self.table.lost(lost.order_id, lost.lease):
                self._entries[lost.order_id].moves = True
                self._place_parked()
        elif command == protocol.HEARTBEAT:
            self._beaten(_read_heartbeat(fields).push)
        else:
            raise ProtocolError(f"a client is not told {command[:32]!r}")

    def _is_next(self, push: int, nbytes: int) -> bool:
        """Take note of a push's number; False for one that was seen, or that is too early."""
        if push == self._last_push + 1:
            self._last_push = push
            self._seen_nbytes += nbytes
            if (
                push - self._acknowledged >= ACKNOWLEDGE_AFTER
                or self._seen_nbytes >= ACKNOWLEDGE_NBYTES
            ):
                self.connection.send(protocol.HEARTBEAT, self._acknowledgement())
            return True
        if push > self._last_push:
            self._gap()
        else:
            self.figures["unexpected"] += 1
        return False

    def _gap(self) -> None:
        """Pushes are missing. The broker keeps them; if it cannot send them, nothing is sure."""
        if self._gap_at == self._last_push:
            self._session = os.urandom(16)
        self._gap_at = self._last_push
        self.connection.reconnect(f"no message {self._last_push + 1}")

    def _failed(self, failed: protocol.Failed) -> None:
        wire_id = failed.order_id
        if not self.table.failed(wire_id, failed.lease):
            return
        entry = self._entries[wire_id]
        error: Exception
        if failed.reason == "cancelled":
            error = entry.cancelled("cancelled by the broker")
        else:
            attempts = [f"{a.supplier}: {a.type}: {a.message}" for a in failed.attempts]
            error = OrderFailed(entry.order_id, entry.product_id, failed.reason, attempts)
        self._end(wire_id, error)

    def _end(self, wire_id: str, error: Exception) -> None:
        entry = self._entries.pop(wire_id)
        self._drop_input(entry)
        entry.end(error)

    def _beaten(self, push: int) -> None:
        if push > self._last_push:
            self._gap()
        elif self._in_doubt:
            self._in_doubt = False
            for wire_id in self.table.moved:
                slot = self.table.slot_of(wire_id)
                if slot is not None and slot.state == WAITING:
                    self._send_move(wire_id, slot)

    # --- the beat -----------------------------------------------------------------------

    def beat(self) -> bytes:
        self.collect()
        return self._acknowledgement()

    def _acknowledgement(self) -> bytes:
        self._acknowledged = self._last_push
        self._seen_nbytes = 0
        return encode(protocol.ClientHeartbeat(self._last_push))

    # --- the end ------------------------------------------------------------------------

    def close(self) -> None:
        """Leave the broker and let go of all memory; lent products stay good."""
        if self.connection.forked:
            return
        self.connection.close()
        with self.lock:
            for arena in self.table.arenas:
                arena.medium.close()


def _by_number(entry: Entry) -> int:
    return entry.number
