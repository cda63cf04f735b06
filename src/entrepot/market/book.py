"""All open orders of one client, their slots, and what each message of the broker does to them."""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from entrepot.errors import (
    BrokerUnavailable,
    Closed,
    CorruptProduct,
    MediumError,
    NoFreeSlot,
    OrderFailed,
    OrderTimeout,
    ProtocolError,
    Refused,
)
from entrepot.market import protocol
from entrepot.market.connection import CLOSED, Connection
from entrepot.market.order import ARRIVED, ENDED, TAKEN, WANTED, Entry
from entrepot.market.product import Product
from entrepot.market.protocol import HelloReply, Reply, encode
from entrepot.market.slots import WAITING, Slot, SlotTable
from entrepot.mediums.base import Medium

logger = logging.getLogger(__name__)

ACKNOWLEDGE_AFTER = 1024
"""Pushes after which the broker is told that it may forget them, if no beat did so before."""

ORDERS_NBYTES = 1 << 20
"""Fields of one ORDERS, at most, about: a quarter of what a broker takes by default."""

RENEW_AGAIN_S = 1.0
"""Seconds until new memory is asked for again when there was none."""

SENT_KEPT = 64
"""ORDERS messages that are remembered, in case the broker refuses one as a whole."""

_read_fulfilled = protocol.reader(protocol.Fulfilled)
_read_failed = protocol.reader(protocol.Failed)
_read_lost = protocol.reader(protocol.Lost)
_read_heartbeat = protocol.reader(protocol.BrokerHeartbeat)


class Book:
    """See the module. The party of a client's connection: messages come in under its lock.

    :ivar released: slots that were given back and are not free yet, with their tickets. Appended
        to without the lock, also by the garbage collector, whatever its thread holds just then.
    :ivar dropped: orders whose handle is gone; likewise.
    :ivar figures: what went wrong, counted.
    """

    def __init__(
        self,
        endpoint: str,
        medium: Medium,
        *,
        name: str,
        contract: str | None,
        session: bytes,
        timeout_s: float,
        silence_s: float,
        max_corrupt: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.medium = medium
        self.table = SlotTable(medium, *_slots_of(medium))
        self.connection = Connection(
            self,
            endpoint,
            silence_s=silence_s,
            timeout_s=timeout_s,
            name=f"client {name}",
            clock=clock,
        )
        self.lock = self.connection.lock
        self.clock = clock
        self.timeout_s = timeout_s
        self.released: deque[tuple[Slot, int]] = deque()
        self.dropped: deque[Entry] = deque()
        self.slot_waiters = 0
        self.figures = {"corrupt": 0, "unexpected": 0, "resumed": 0, "restarted": 0, "arenas": 1}
        self._name = name
        self._contract = contract
        self._session = session
        self._max_corrupt = max_corrupt
        # Names of orders differ between clients, also between those of one session's owner.
        self._prefix = f"{os.urandom(6).hex()}-"
        self._entries: dict[str, Entry] = {}
        self._number = 0
        self._last_push = 0
        self._acknowledged = 0
        self._gap_at = -1
        self._in_doubt = False
        self._orders_nbytes = 1
        self._sent: dict[int, list[str]] = {}
        self._named: set[str] = set()
        self._renew_at = 0.0
        self._answers: dict[int, Reply | None] = {}

    # --- placing ------------------------------------------------------------------------

    def place(
        self,
        product_ids: Sequence[str],
        *,
        priority: int = 0,
        deadline_s: float | None = None,
        inputs: Sequence[Any] | None = None,
        timeout_s: float | None = None,
        sink: deque[Entry] | None = None,
    ) -> list[Entry]:
        """Order them all, in one message where it holds them; waits until there are slots.

        :raises NoFreeSlot: there were not that many in ``timeout_s``; none was ordered.
        :raises BrokerUnavailable: no broker answered in that time.
        """
        connection = self.connection
        connection.check()
        deadline = None if timeout_s is None else self.clock() + timeout_s
        wanted = len(product_ids) * (1 if inputs is None else 2)
        with self.lock:
            connection.open(deadline)
            self.collect()
            if len(self.table.current.free) < wanted:
                self._wait_for_slots(wanted, deadline)
            due = None if deadline_s is None else self.clock() + deadline_s
            entries = []
            for index, product_id in enumerate(product_ids):
                self._number = number = self._number + 1
                entry = Entry(number, f"{self._prefix}{number}", product_id, priority, due, sink)
                if inputs is not None:
                    self._put_input(entry, inputs[index])
                entries.append(entry)
            for entry in entries:
                self._entries[entry.wire_id] = entry
                self._take_slot(entry)
            self._send_orders(entries)
            return entries

    def _take_slot(self, entry: Entry) -> Slot:
        """A slot for the order, which must be there; and the right to write to it."""
        slot = self.table.take(entry.wire_id)
        assert slot is not None
        medium: Medium = slot.arena.medium
        slot.address = medium.grant(slot.offset, medium.slot_nbytes)
        entry.slot = slot
        return slot

    def room(self) -> int:
        """Slots that are free now."""
        with self.lock:
            self.collect()
            return len(self.table.current.free)

    def _wait_for_slots(self, wanted: int, deadline: float | None) -> None:
        table = self.table
        began = self.clock()
        if deadline is None:
            deadline = began + self.timeout_s

        def something_was_freed() -> bool:
            return bool(
                self.released
                or self.dropped
                or len(table.current.free) >= wanted
                or self._may_renew()
            )

        self.slot_waiters += 1
        try:
            while True:
                self.collect()
                if self._may_renew():
                    self._renew()
                if len(table.current.free) >= wanted:
                    return
                if wanted > len(table.current.slots) or not self.connection.wait(
                    something_was_freed, deadline
                ):
                    raise NoFreeSlot(self._describe_slots(wanted, self.clock() - began))
        finally:
            self.slot_waiters -= 1

    def _describe_slots(self, wanted: int, waited_s: float) -> str:
        counts = self.table.current.counts
        return (
            f"{wanted} slots were wanted and {counts[0]} of {self.medium.slots} are free after "
            f"{waited_s:.3g} s ({counts[1]} wait for their products, {counts[2]} products were not "
            f"taken, {counts[3]} not released, {counts[4]} cancelled but still with a supplier, "
            f"{counts[5]} retired); release products, order fewer at once, or give the client a "
            f"medium with more slots"
        )

    def _put_input(self, entry: Entry, data: Any) -> None:
        slot = self.table.borrow()
        assert slot is not None
        entry.input_slot = (slot, slot.ticket)
        medium: Medium = slot.arena.medium
        try:
            medium.revoke(slot.offset)
            nbytes = medium.write(slot.offset, data, medium.slot_nbytes)
            address = medium.grant(slot.offset, nbytes, readonly=True)
        except Exception:
            self._drop_input(entry)
            raise
        entry.input = protocol.Region(address, slot.offset, nbytes)

    def _drop_input(self, entry: Entry) -> None:
        if entry.input_slot is not None:
            slot, ticket = entry.input_slot
            if self.table.release(slot, ticket):
                slot.arena.medium.revoke(slot.offset)
            entry.input_slot = None

    def _send_orders(self, entries: Sequence[Entry]) -> None:
        """ORDERS, in as many messages as their size asks for; each entry has its slot."""
        asked: list[protocol.Order] = []
        nbytes = 0
        for entry in entries:
            slot = self.table.slot_of(entry.wire_id)
            if slot is None:
                continue
            medium: Medium = slot.arena.medium
            remaining_s = None
            if entry.deadline_at is not None:
                remaining_s = max(entry.deadline_at - self.clock(), 1e-3)
            asked.append(
                protocol.Order(
                    entry.wire_id,
                    entry.product_id,
                    slot.address,
                    slot.offset,
                    medium.slot_nbytes,
                    entry.input,
                    entry.priority,
                    remaining_s,
                )
            )
            nbytes += 256 + 4 * len(entry.product_id)
            if nbytes >= self._orders_nbytes:
                self._send_asked(asked)
                asked, nbytes = [], 0
        if asked:
            self._send_asked(asked)

    def _send_asked(self, asked: list[protocol.Order]) -> None:
        connection = self.connection
        seq = connection.next_seq()
        sent = self._sent
        sent[seq] = [order.order_id for order in asked]
        if len(sent) > SENT_KEPT:
            del sent[next(iter(sent))]
        connection.send(protocol.ORDERS, encode(protocol.Orders(asked, seq)))

    def _may_renew(self) -> bool:
        return self.table.wants_arena and self.clock() >= self._renew_at

    def _renew(self) -> None:
        """New memory for the orders to come."""
        try:
            medium = self.medium.renew()
        except MediumError as error:
            self._renew_at = self.clock() + RENEW_AGAIN_S
            logger.warning("no memory for more slots", extra={"client": self._name, "why": error})
            return
        self.figures["arenas"] += 1
        self.medium = medium
        self.table.add_arena(medium, *_slots_of(medium))

    def _place_parked(self) -> None:
        """Give orders that lost their slots others, the oldest first."""
        table = self.table
        fresh = []
        while table.parked:
            if self._may_renew():
                self._renew()
            if not table.current.free:
                break
            wire_id = next(iter(table.parked))
            entry = self._entries[wire_id]
            slot = self._take_slot(entry)
            if entry.moves:
                entry.moves = False
                self._send_move(wire_id, slot)
            else:
                fresh.append(entry)
        self._send_orders(fresh)

    def _send_move(self, wire_id: str, slot: Slot) -> None:
        seq = self.connection.next_seq()
        move = protocol.Move(wire_id, slot.address, slot.offset, seq)
        self.connection.send(protocol.MOVE, encode(move))

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
            return medium.checksum(slot.offset, delivery.nbytes) == delivery.checksum
        except MediumError as error:
            logger.warning("a slot cannot be read", extra={"client": self._name, "why": error})
            return False

    def _corrupt(self, entry: Entry, slot: Slot) -> None:
        self.figures["corrupt"] += 1
        logger.warning(
            "a product is not what its checksum says",
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

    def _begin_anew(self, entry: Entry) -> None:
        """Under another name, so that no late message about the old one can mean it."""
        self._number += 1
        entry.wire_id = f"{self._prefix}{self._number}"
        entry.state = WANTED
        entry.slot = None
        entry.moves = False
        self._entries[entry.wire_id] = entry
        self.table.park(entry.wire_id)

    # --- giving back --------------------------------------------------------------------

    def release(self, slot: Slot, ticket: int) -> None:
        """A product, or an input, is not looked at any more. Wants no lock, and takes none."""
        medium = slot.arena.medium
        if medium.poison and not medium.closed and not self.connection.forked:
            medium.poison_slot(slot.index)
        self.released.append((slot, ticket))
        if self.slot_waiters:
            self.connection.poke()

    def collect(self) -> None:
        """Make free what was released, and cancel what was dropped."""
        table = self.table
        while self.released:
            table.release(*self.released.popleft())
        while self.dropped:
            self._cancel(self.dropped.popleft())
        if table.parked:
            self._place_parked()
        if len(table.arenas) > 1:
            for arena in table.drop_drained():
                arena.medium.close()

    def give_up(self, entries: Sequence[Entry]) -> None:
        """Cancel what is open of ``entries``: now, or, where somebody has the lock, soon."""
        self.dropped.extend(entries)
        if not self.connection.forked and self.lock.acquire(blocking=False):
            try:
                if self.connection.state != CLOSED:
                    self.collect()
            finally:
                self.lock.release()

    def cancel(self, entry: Entry) -> bool:
        """See :meth:`Client.cancel`."""
        self.connection.check()
        with self.lock:
            if self._cancel(entry):
                self.connection.changed()
                return True
            return False

    def _cancel(self, entry: Entry) -> bool:
        if entry.state == WANTED:
            self.table.cancel(entry.wire_id)
            self._entries.pop(entry.wire_id, None)
            self._send_cancel(entry.wire_id)
        elif entry.state == ARRIVED:
            assert entry.slot is not None
            self.table.release(entry.slot, entry.ticket)
        else:
            return False
        self._drop_input(entry)
        entry.end(entry.cancelled("cancelled"))
        return True

    def _send_cancel(self, wire_id: str) -> None:
        cancel = protocol.Cancel(wire_id, self.connection.next_seq())
        self.connection.send(protocol.CANCEL, encode(cancel))

    def discard(self) -> int:
        """See :meth:`Client.discard`."""
        connection = self.connection
        connection.check()
        with self.lock:
            self.collect()
            dropped, full = self.table.discard()
            for wire_id in dropped:
                entry = self._entries.pop(wire_id)
                self._drop_input(entry)
                entry.end(entry.cancelled("discarded"))
            connection.send(protocol.DISCARD, encode(protocol.Discard(connection.next_seq())))
            connection.changed()
            return len(dropped) + full

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
            self._refused(reply.refused or sent or [], Refused(reply.code, reply.error))
        elif reply.code != "unknown_order":  # CANCEL or MOVE of what has ended meanwhile
            logger.warning(
                "the broker refused a request",
                extra={"client": self._name, "code": reply.code, "why": reply.error},
            )

    def _refused(self, wire_ids: Sequence[str], error: Refused) -> None:
        for wire_id in wire_ids:
            if self.table.failed(wire_id, 0):
                self._end(wire_id, error)

    def received(self, command: bytes, fields: bytes) -> None:
        if command == protocol.FULFILLED:
            fulfilled = _read_fulfilled(fields)
            if self._is_next(fulfilled.push):
                for delivery in fulfilled.orders:
                    self._fulfilled(delivery)
        elif command == protocol.FAILED:
            failed = _read_failed(fields)
            if self._is_next(failed.push):
                self._failed(failed)
        elif command == protocol.LOST:
            lost = _read_lost(fields)
            if self._is_next(lost.push) and self.table.lost(lost.order_id, lost.lease):
                self._entries[lost.order_id].moves = True
                self._place_parked()
        elif command == protocol.HEARTBEAT:
            self._beaten(_read_heartbeat(fields).push)
        else:
            raise ProtocolError(f"a client is not told {command[:32]!r}")

    def _is_next(self, push: int) -> bool:
        """Take note of a push's number; False for one that was seen, or that is too early."""
        if push == self._last_push + 1:
            self._last_push = push
            if push - self._acknowledged >= ACKNOWLEDGE_AFTER:
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

    def _fulfilled(self, delivery: protocol.Delivery) -> None:
        order_id = delivery.order_id
        slot = self.table.fulfilled(order_id, delivery.lease)
        if slot is None:
            self.figures["unexpected"] += 1
            return
        self._entries.pop(order_id).arrived(slot, delivery)

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


def _slots_of(medium: Medium) -> tuple[list[int], Callable[[int], None] | None]:
    """What a table of slots has to know of a medium."""
    offsets = [medium.offset(slot) for slot in range(medium.slots)]
    return offsets, medium.revoke if medium.fences else None


def _by_number(entry: Entry) -> int:
    return entry.number
