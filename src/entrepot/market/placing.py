"""Orders get slots, go out, and give their slots back."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from entrepot.errors import MediumError, NoFreeSlot
from entrepot.logs import why_of
from entrepot.market import protocol
from entrepot.market.connection import CLOSED, Connection
from entrepot.market.inputs import Input, input_of
from entrepot.market.order import ARRIVED, WANTED, Entry
from entrepot.market.protocol import encode
from entrepot.market.slots import Slot, SlotTable
from entrepot.mediums.base import Medium

logger = logging.getLogger(__name__)

ORDERS_NBYTES = 1 << 20
"""Fields of one ORDERS, at most, about: a quarter of what a broker takes by default."""

AHEAD_NBYTES = 64 << 20
"""Bytes of an input, at most, that is written while its order is on its way: a supplier that was
quick waits for the rest of it."""

RENEW_AGAIN_S = 1.0
"""Seconds until new memory is asked for again when there was none."""

SENT_KEPT = 64
"""ORDERS messages that are remembered, in case the broker refuses one as a whole."""


class Placing:
    """The half of a client's book that talks; see :class:`entrepot.market.book.Book`.

    :ivar medium: what orders to come get their slots of.
    :ivar released: slots that were given back and are not free yet, with their tickets. Appended
        to without the lock, also by the garbage collector, whatever its thread holds just then.
    :ivar dropped: orders whose handle is gone; likewise.
    :ivar slot_waiters: threads that wait for a free slot.
    :ivar figures: what went wrong, counted.
    """

    connection: Connection

    def __init__(
        self, medium: Medium, name: str, timeout_s: float, clock: Callable[[], float]
    ) -> None:
        self.medium = medium
        self.table = SlotTable(medium, *_slots_of(medium))
        self.clock = clock
        self.timeout_s = timeout_s
        self.released: deque[tuple[Slot, int]] = deque()
        self.dropped: deque[Entry] = deque()
        self.slot_waiters = 0
        self.figures = {"corrupt": 0, "unexpected": 0, "resumed": 0, "restarted": 0, "arenas": 1}
        self._name = name
        # Names of orders differ between clients, also between those of one session's owner.
        self._prefix = f"{os.urandom(6).hex()}-"
        self._entries: dict[str, Entry] = {}
        self._number = 0
        self._orders_nbytes = 1
        self._sent: dict[int, list[protocol.Order]] = {}
        self._renew_at = 0.0

    # --- placing ------------------------------------------------------------------------

    def place(
        self,
        product_ids: Sequence[str],
        priority: int = 0,
        deadline_s: float | None = None,
        inputs: Sequence[Any] | None = None,
        timeout_s: float | None = None,
        sink: deque[Entry] | None = None,
        into: memoryview | None = None,
    ) -> list[Entry]:
        """Order them all, in one message where it holds them; waits until there are slots.

        :param into: memory for the product, of one alone.
        :raises NoFreeSlot: there were not that many in ``timeout_s``; none was ordered.
        :raises BrokerUnavailable: no broker answered in that time.
        """
        connection, table = self.connection, self.table
        connection.check()
        deadline = None if timeout_s is None else self.clock() + timeout_s
        wanted = len(product_ids) * (1 if inputs is None else 2)
        with connection.lock:
            connection.open(deadline)
            self.collect()
            if len(table.current.free) < wanted:
                self._wait_for_slots(wanted, deadline)
            due = None if deadline_s is None else self.clock() + deadline_s
            entries: list[Entry] = []
            ahead: list[tuple[Entry, Input]] = []
            try:
                for product_id in product_ids:
                    self._number = number = self._number + 1
                    name = f"{self._prefix}{number}"
                    entry = self._entries[name] = Entry(
                        number, name, product_id, priority, due, sink
                    )
                    entry.into = into
                    entries.append(entry)
                    if inputs is not None:
                        given = input_of(inputs[len(entries) - 1])
                        if not self._put_input(entry, given):
                            ahead.append((entry, given))
                    self._take_slot(entry)
            except Exception:  # an input that is none, or is too large
                for entry in entries:
                    self._unplace(entry)
                raise
            if ahead:
                self._send_and_fill(entries, ahead)
            else:
                self._send_orders(entries)
            return entries

    def _unplace(self, entry: Entry) -> None:
        """Forget an order that the broker was not told of."""
        self._entries.pop(entry.wire_id, None)
        self.table.failed(entry.wire_id, 0)
        self._drop_input(entry)

    def _take_slot(self, entry: Entry) -> Slot:
        """A slot for the order, which must be there; and the right to write to it."""
        slot = self.table.take(entry.wire_id)
        assert slot is not None
        medium: Medium = slot.arena.medium
        slot.address = medium.grant(slot.offset, medium.slot_nbytes)
        if entry.into is not None:
            medium.aim(slot.offset, entry.into)
        entry.slot = slot
        return slot

    def room(self) -> int:
        """Slots that are free now."""
        self.connection.check()
        with self.connection.lock:
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
                or self._may_renew(wanted)
            )

        self.slot_waiters += 1
        try:
            while True:
                self.collect()
                if self._may_renew(wanted):
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

    def _put_input(self, entry: Entry, given: Input) -> bool:
        """Give it a slot; whether it is in there, or is to be written once the order is sent."""
        slot = self.table.borrow()
        assert slot is not None
        entry.input_slot = (slot, slot.ticket)
        medium: Medium = slot.arena.medium
        medium.revoke(slot.offset)
        medium.check_write(slot.offset, given.nbytes, medium.slot_nbytes)
        may_wait = given.nbytes <= AHEAD_NBYTES
        if may_wait and medium.grants_ahead:
            address = medium.grant_ahead(slot.offset, given.nbytes)
        else:
            may_wait = may_wait and given.announce(medium, slot.offset)
            if not may_wait:
                given.write(medium, slot.offset)
            address = medium.grant(slot.offset, given.nbytes, readonly=True)
        entry.input = protocol.Region(address, slot.offset, given.nbytes)
        return not may_wait

    def _send_and_fill(
        self, entries: Sequence[Entry], ahead: Sequence[tuple[Entry, Input]]
    ) -> None:
        """Write inputs while their orders are on the way."""
        try:
            self._send_orders(entries)
            for entry, given in ahead:
                assert entry.input_slot is not None
                slot = entry.input_slot[0]
                given.write(slot.arena.medium, slot.offset)
                slot.arena.medium.filled(slot.offset)
        except BaseException:  # Ctrl-C: nobody is to wait for what is not written
            for entry in entries:
                self._cancel(entry)
            raise

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
            slot = entry.slot
            if slot is None:
                continue
            remaining_s = None
            if entry.deadline_at is not None:
                remaining_s = max(entry.deadline_at - self.clock(), 1e-3)
            asked.append(
                protocol.Order(
                    entry.wire_id,
                    entry.product_id,
                    slot.address,
                    slot.offset,
                    slot.arena.medium.slot_nbytes,
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
        connection, sent = self.connection, self._sent
        seq = connection.next_seq()
        sent[seq] = asked
        if len(sent) > SENT_KEPT:
            del sent[next(iter(sent))]
        connection.send(protocol.ORDERS, encode(protocol.Orders(asked, seq)))

    def _may_renew(self, wanted: int = 1) -> bool:
        return self.table.wants_arena_for(wanted) and self.clock() >= self._renew_at

    def _renew(self) -> None:
        """New memory for the orders to come."""
        try:
            medium = self.medium.renew()
        except MediumError as error:
            self._renew_at = self.clock() + RENEW_AGAIN_S
            logger.warning(
                "no memory for more slots: %s",
                why_of(error),
                extra={"client": self._name, "why": error},
            )
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
        medium.released(slot.index)
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
        if not self.connection.forked and self.connection.lock.acquire(blocking=False):
            try:
                if self.connection.state != CLOSED:
                    self.collect()
            finally:
                self.connection.lock.release()

    def cancel(self, entry: Entry) -> bool:
        """See :meth:`Client.cancel`."""
        self.connection.check()
        with self.connection.lock:
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
        with self.connection.lock:
            self.collect()
            dropped, full = self.table.discard()
            for wire_id in dropped:
                entry = self._entries.pop(wire_id)
                self._drop_input(entry)
                entry.end(entry.cancelled("discarded"))
            connection.send(protocol.DISCARD, encode(protocol.Discard(connection.next_seq())))
            connection.changed()
            return len(dropped) + full


def _slots_of(medium: Medium) -> tuple[list[int], Callable[[int], None] | None]:
    """What a table of slots has to know of a medium."""
    offsets = [medium.offset(slot) for slot in range(medium.slots)]
    return offsets, medium.revoke if medium.fences else None
