"""What every slot of a client is doing, and what a message about one may change.

Pure: no sockets, no threads, no clock, no bytes. The one rule that everything here serves is
that a slot takes a new order only when nobody who was told of it can still write to it.

A slot is

* ``FREE``;
* ``WAITING`` for the product of its order;
* ``FULL``: the product is there and nobody has taken it;
* ``LENT``: a product, or an order's input, that somebody still looks at;
* ``QUARANTINED``: its order was cancelled or discarded, but a supplier may have it; free when
  the broker says that this is over;
* ``RETIRED``: a supplier that was given it never answered and may write at any time; not used
  again.

Retired slots come back only with new memory, an *arena*. The slots of an old arena are finished
and none of them is given out again; it is let go of when nobody looks at any of them.

Where the medium *fences*, an order's right to write is taken back when its slot stops waiting for
it. There a slot is free at once instead of quarantined or retired.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

FREE = 0
WAITING = 1
FULL = 2
LENT = 3
QUARANTINED = 4
RETIRED = 5

STATES = ("free", "waiting", "full", "lent", "quarantined", "retired")
"""The states' names, by number."""

MAX_ARENAS = 4
"""Arenas alive at once, the current one among them. Each is as large as the medium."""


Revoke = Callable[[int], None]


class Slot:
    """One slot, and the order that has it. Changed by its table only.

    :ivar address: where the order that has it was told to write; the caller's to set.
    :ivar generation: the table's when the slot was given out.
    :ivar ticket: goes up each time that the slot is given out, so that what was said about an
        earlier use is told from what is said about this one.
    """

    __slots__ = (
        "address",
        "arena",
        "generation",
        "index",
        "offset",
        "order_id",
        "state",
        "ticket",
    )

    def __init__(self, arena: Arena, index: int, offset: int) -> None:
        self.arena = arena
        self.index = index
        self.offset = offset
        self.address = ""
        self.state = FREE
        self.order_id = ""
        self.generation = 0
        self.ticket = 0

    def __repr__(self) -> str:
        return f"<Slot {self.arena.number}/{self.index} {STATES[self.state]} {self.order_id}>"


class Arena:
    """The slots of one medium.

    :ivar medium: whatever the caller made it with; the table does not look at it.
    :ivar revoke: where the medium fences, has nobody write at an offset from its return on.
    :ivar counts: how many slots are in each state.
    """

    __slots__ = ("counts", "free", "medium", "number", "revoke", "slots")

    def __init__(
        self, number: int, medium: Any, offsets: Sequence[int], revoke: Revoke | None
    ) -> None:
        self.number = number
        self.medium = medium
        self.revoke = revoke
        self.slots = [Slot(self, index, offset) for index, offset in enumerate(offsets)]
        # First in, first out: a slot rests as long as it can before it is written again.
        self.free = deque(self.slots)
        self.counts = [len(self.slots), 0, 0, 0, 0, 0]

    @property
    def drained(self) -> bool:
        """Whether nothing in it is wanted, or wanted back."""
        counts = self.counts
        return not (counts[WAITING] or counts[FULL] or counts[LENT] or counts[QUARANTINED])


class SlotTable:
    """All slots of a client, over all its arenas.

    :ivar generation: goes up with each :meth:`discard`; a product of an earlier one is not served.
    :ivar parked: orders that wait for a slot of their own, oldest first: theirs was retired.
    """

    def __init__(self, medium: Any, offsets: Sequence[int], revoke: Revoke | None = None) -> None:
        self.generation = 0
        self.current = Arena(0, medium, offsets, revoke)
        self.arenas = [self.current]
        self.parked: dict[str, None] = {}
        self._slots: dict[str, Slot] = {}  # waiting and quarantined ones, by order
        self._lost: dict[str, set[int]] = {}  # leases that were given up, by order

    # --- orders get slots ---------------------------------------------------------------

    def take(self, order_id: str) -> Slot | None:
        """A free slot, now waiting for the product of ``order_id``; None when there is none."""
        slot = self._give(WAITING)
        if slot is not None:
            slot.order_id = order_id
            self._slots[order_id] = slot
            if self.parked:
                self.parked.pop(order_id, None)
        return slot

    def borrow(self) -> Slot | None:
        """A free slot, lent at once: for an order's input. None when there is none."""
        return self._give(LENT)

    def park(self, order_id: str) -> None:
        """``order_id`` needs a slot and waits for one; :meth:`take` ends that."""
        self.parked[order_id] = None

    def slot_of(self, order_id: str) -> Slot | None:
        """The slot that is waiting, or quarantined, for ``order_id``."""
        return self._slots.get(order_id)

    # --- what the broker says -----------------------------------------------------------

    def fulfilled(self, order_id: str, lease: int) -> Slot | None:
        """The product of ``order_id`` was written under ``lease``: its slot, now full.

        None when it was not waited for: an order that was cancelled (its slot is free now), that
        ended, or that was never placed; or a lease that the broker itself has given up.
        """
        slot = self._slots.get(order_id)
        if slot is None or (self._lost and lease in self._lost.get(order_id, ())):
            return None
        del self._slots[order_id]
        if self._lost:
            self._lost.pop(order_id, None)
        if slot.state == QUARANTINED:
            self._free(slot)
            return None
        self._to(slot, FULL)
        return slot

    def failed(self, order_id: str, lease: int) -> bool:
        """The order ended without a product; whether it was still wanted.

        :param lease: 0, or the one that was never answered: then the slot is retired.
        """
        if order_id in self.parked:
            del self.parked[order_id]
            self._forget(order_id)
            return True
        slot = self._slots.get(order_id)
        if slot is None:
            return False
        self._forget(order_id)
        wanted = slot.state == WAITING
        if lease:
            self._retire(slot)
        else:
            self._free(slot)
        return wanted

    def lost(self, order_id: str, lease: int) -> bool:
        """The supplier that had ``lease`` is gone: retire the slot and park the order.

        :returns: whether the order needs another slot.
        """
        slot = self._slots.get(order_id)
        if slot is None or lease in self._lost.get(order_id, ()):
            return False
        del self._slots[order_id]
        waited = slot.state == WAITING
        self._retire(slot)
        if waited:
            self._lost.setdefault(order_id, set()).add(lease)
            self.park(order_id)
        return waited

    def settled(self, order_ids: Iterable[str]) -> int:
        """These cancelled orders are with no supplier: their slots are free. How many were."""
        freed = 0
        for order_id in order_ids:
            slot = self._slots.get(order_id)
            if slot is not None and slot.state == QUARANTINED:
                self._forget(order_id)
                self._free(slot)
                freed += 1
        return freed

    def forsaken(self) -> list[str]:
        """The broker knows nothing of what it told whom: every slot that waits is retired.

        :returns: the orders that were open and now have no slot; cancelled ones are not among
            them. All are forgotten: whoever still wants one parks it, under a name that no late
            message can mean.
        """
        open_orders = list(self.parked)
        for order_id, slot in self._slots.items():
            if slot.state == WAITING:
                open_orders.append(order_id)
            self._retire(slot)
        self.parked.clear()
        self._slots.clear()
        self._lost.clear()
        return open_orders

    # --- what the user does -------------------------------------------------------------

    def lend(self, slot: Slot) -> bool:
        """Full to lent; False when a discard made it free."""
        if slot.state != FULL:
            return False
        self._to(slot, LENT)
        return True

    def release(self, slot: Slot, ticket: int) -> bool:
        """A lent or full slot is free; False, and nothing, when ``ticket`` is an earlier use's."""
        if slot.ticket != ticket or slot.state not in (LENT, FULL):
            return False
        self._free(slot)
        return True

    def retire(self, slot: Slot, ticket: int) -> bool:
        """What is in a lent or full slot is not what was sent: do not use the slot again."""
        if slot.ticket != ticket or slot.state not in (LENT, FULL):
            return False
        self._retire(slot)
        return True

    def cancel(self, order_id: str) -> bool:
        """Waiting to quarantined; whether the order was open."""
        if order_id in self.parked:
            del self.parked[order_id]
            self._lost.pop(order_id, None)
            return True
        slot = self._slots.get(order_id)
        if slot is None or slot.state != WAITING:
            return False
        self._withdraw(slot)
        return True

    def discard(self) -> tuple[list[str], int]:
        """Begin another generation.

        What waited is quarantined, what was full is free. Lent slots stay with who has them.

        :returns: the orders that were open, and how many products nobody had taken.
        """
        self.generation += 1
        dropped = list(self.parked)
        self.parked.clear()
        self._lost.clear()
        for order_id, slot in list(self._slots.items()):
            if slot.state == WAITING:
                self._withdraw(slot)
                dropped.append(order_id)
        full = 0
        for arena in self.arenas:
            if arena.counts[FULL]:
                for slot in arena.slots:
                    if slot.state == FULL:
                        self._free(slot)
                        full += 1
        return dropped, full

    # --- arenas -------------------------------------------------------------------------

    @property
    def wants_arena(self) -> bool:
        """Whether new memory is worth having for one order."""
        return self.wants_arena_for(1)

    def wants_arena_for(self, wanted: int) -> bool:
        """Whether new memory is worth having: retired slots are why there are not so many free.

        For an order that lost its slot when none is free; and for any orders when most slots are
        retired, or when no message can free as many as are wanted.
        """
        current = self.current
        counts = current.counts
        if len(self.arenas) >= MAX_ARENAS:
            return False
        if counts[RETIRED] * 2 > len(current.slots):
            return True
        if counts[FREE] >= wanted or not counts[RETIRED]:
            return False
        if self.parked and not counts[FREE]:
            return True
        return counts[FREE] + counts[WAITING] + counts[QUARANTINED] < wanted

    def add_arena(self, medium: Any, offsets: Sequence[int], revoke: Revoke | None = None) -> Arena:
        """Give out slots of ``medium`` from now on."""
        arena = Arena(self.current.number + 1, medium, offsets, revoke)
        self.arenas.append(arena)
        self.current = arena
        return arena

    def drop_drained(self) -> list[Arena]:
        """Forget the old arenas in which nothing is wanted any more, and return them."""
        gone = [arena for arena in self.arenas if arena is not self.current and arena.drained]
        for arena in gone:
            self.arenas.remove(arena)
        return gone

    # --- views --------------------------------------------------------------------------

    @property
    def open_orders(self) -> list[str]:
        """Orders that the broker may have: waiting, quarantined and parked."""
        return [*self._slots, *self.parked]

    @property
    def moved(self) -> list[str]:
        """Waiting orders that are in another slot than the one they were placed with."""
        return [order_id for order_id in self._lost if order_id in self._slots]

    @property
    def quarantined(self) -> list[str]:
        """Cancelled orders that the broker has not settled yet."""
        return [order_id for order_id, slot in self._slots.items() if slot.state == QUARANTINED]

    def count(self, state: int) -> int:
        """Slots in ``state``, over all arenas."""
        return sum(arena.counts[state] for arena in self.arenas)

    # --- transitions --------------------------------------------------------------------

    def _give(self, state: int) -> Slot | None:
        current = self.current
        if not current.free:
            return None
        slot = current.free.popleft()
        slot.ticket += 1
        slot.generation = self.generation
        counts = current.counts
        counts[FREE] -= 1
        counts[state] += 1
        slot.state = state
        return slot

    def _to(self, slot: Slot, state: int) -> None:
        arena = slot.arena
        if arena.revoke is not None and slot.state == WAITING:
            arena.revoke(slot.offset)
        counts = arena.counts
        counts[slot.state] -= 1
        counts[state] += 1
        slot.state = state

    def _free(self, slot: Slot) -> None:
        self._to(slot, FREE)
        slot.order_id = ""
        slot.arena.free.append(slot)

    def _withdraw(self, slot: Slot) -> None:
        """Its order is not wanted any more, and a supplier may be writing."""
        if slot.arena.revoke is not None:
            self._forget(slot.order_id)
            self._free(slot)
        else:
            self._to(slot, QUARANTINED)

    def _retire(self, slot: Slot) -> None:
        """A supplier may be writing, and will never say that it is done."""
        if slot.arena.revoke is not None:
            self._free(slot)
        else:
            self._to(slot, RETIRED)
            slot.order_id = ""

    def _forget(self, order_id: str) -> None:
        self._slots.pop(order_id, None)
        if self._lost:
            self._lost.pop(order_id, None)
