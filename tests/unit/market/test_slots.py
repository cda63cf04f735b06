"""The slot table: one rule each, and all rules against a broker with zombies at random."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from entrepot.market.slots import (
    FREE,
    FULL,
    LENT,
    MAX_ARENAS,
    QUARANTINED,
    RETIRED,
    WAITING,
    Slot,
    SlotTable,
)


def table_of(slots: int) -> SlotTable:
    return SlotTable("first", range(0, slots * 100, 100))


def taken(table: SlotTable, order_id: str) -> Slot:
    slot = table.take(order_id)
    assert slot is not None
    return slot


# --- the ordinary course ----------------------------------------------------------------


def test_a_slot_goes_from_order_to_product_to_the_next_order() -> None:
    table = table_of(1)
    slot = taken(table, "a")
    assert (slot.state, slot.offset, slot.order_id) == (WAITING, 0, "a")
    assert table.take("b") is None
    assert table.fulfilled("a", 7) is slot
    assert table.lend(slot)
    assert slot.state == LENT
    assert table.take("b") is None
    assert table.release(slot, slot.ticket)
    assert taken(table, "b") is slot


def test_a_slot_rests_as_long_as_it_can() -> None:
    table = table_of(3)
    first = taken(table, "a")
    table.failed("a", 0)
    assert [taken(table, name).index for name in "bcd"] == [1, 2, first.index]


def test_a_product_goes_to_its_own_order() -> None:
    table = table_of(2)
    a, b = taken(table, "a"), taken(table, "b")
    assert table.fulfilled("b", 1) is b
    assert a.state == WAITING


def test_a_release_of_an_earlier_use_changes_nothing() -> None:
    table = table_of(1)
    slot = taken(table, "a")
    ticket = slot.ticket
    table.fulfilled("a", 1)
    table.lend(slot)
    assert table.release(slot, ticket)
    assert not table.release(slot, ticket)
    taken(table, "b")
    table.fulfilled("b", 2)
    table.lend(slot)
    assert not table.release(slot, ticket)
    assert slot.state == LENT


def test_an_input_has_a_slot_until_it_is_released() -> None:
    table = table_of(2)
    source = table.borrow()
    assert source is not None
    taken(table, "a")
    assert table.borrow() is None
    assert table.take("b") is None
    table.release(source, source.ticket)
    assert taken(table, "b") is source


# --- what a message may not change ------------------------------------------------------


def test_a_product_that_nobody_waits_for_changes_nothing() -> None:
    table = table_of(2)
    slot = taken(table, "a")
    table.fulfilled("a", 1)
    assert table.fulfilled("a", 1) is None
    assert table.fulfilled("never", 1) is None
    assert not table.lost("a", 1)
    assert not table.failed("a", 1)
    assert slot.state == FULL
    assert table.count(RETIRED) == 0


def test_a_lease_that_was_given_up_cannot_fulfil_the_moved_order() -> None:
    table = table_of(2)
    taken(table, "a")
    assert table.lost("a", 5)
    moved = taken(table, "a")
    assert table.fulfilled("a", 5) is None
    assert not table.lost("a", 5)
    assert moved.state == WAITING
    assert table.fulfilled("a", 6) is moved


# --- lost suppliers ---------------------------------------------------------------------


def test_a_lost_suppliers_slot_is_retired_and_its_order_parked() -> None:
    table = table_of(2)
    slot = taken(table, "a")
    assert table.lost("a", 5)
    assert slot.state == RETIRED
    assert list(table.parked) == ["a"]
    assert taken(table, "a") is not slot
    assert not table.parked
    assert table.moved == ["a"]


def test_an_order_that_failed_with_an_open_lease_retires_its_slot() -> None:
    table = table_of(1)
    slot = taken(table, "a")
    assert table.failed("a", 9)
    assert slot.state == RETIRED
    assert table.take("b") is None


def test_a_parked_order_that_fails_is_forgotten() -> None:
    table = table_of(1)
    taken(table, "a")
    table.lost("a", 5)
    assert table.failed("a", 0)
    assert not table.parked


def test_a_cancelled_order_that_is_lost_needs_no_slot() -> None:
    table = table_of(1)
    slot = taken(table, "a")
    table.cancel("a")
    assert not table.lost("a", 5)
    assert slot.state == RETIRED
    assert not table.parked


# --- cancelling and discarding ----------------------------------------------------------


@pytest.mark.parametrize("ending", ["settled", "fulfilled", "failed"])
def test_a_cancelled_slot_is_free_when_no_supplier_has_it(ending: str) -> None:
    table = table_of(1)
    slot = taken(table, "a")
    assert table.cancel("a")
    assert slot.state == QUARANTINED
    assert table.take("b") is None
    if ending == "settled":
        assert table.settled(["a", "unknown"]) == 1
    elif ending == "fulfilled":
        assert table.fulfilled("a", 3) is None
    else:
        assert not table.failed("a", 0)
    assert slot.state == FREE


def test_settling_does_not_free_what_is_waited_for() -> None:
    table = table_of(1)
    slot = taken(table, "a")
    assert table.settled(["a"]) == 0
    assert slot.state == WAITING


def test_what_was_ordered_before_a_discard_is_never_lent() -> None:
    table = table_of(4)
    waiting, full, lent, old = (taken(table, name) for name in "abcd")
    table.fulfilled("b", 1)
    table.fulfilled("c", 2)
    table.lend(lent)
    table.lost("d", 3)
    assert table.discard() == (["d", "a"], 1)
    assert [slot.state for slot in (waiting, full, lent, old)] == [
        QUARANTINED,
        FREE,
        LENT,
        RETIRED,
    ]
    assert table.fulfilled("a", 4) is None
    assert not table.lend(full)


# --- arenas -----------------------------------------------------------------------------


def test_a_restarted_broker_leaves_no_slot_that_was_told_of() -> None:
    table = table_of(4)
    waiting, cancelled, full = (taken(table, name) for name in "abc")
    table.cancel("b")
    table.fulfilled("c", 1)
    assert table.forsaken() == ["a"]
    assert (waiting.state, cancelled.state, full.state) == (RETIRED, RETIRED, FULL)
    assert table.open_orders == []
    assert table.fulfilled("a", 1) is None


def test_new_memory_is_wanted_when_most_slots_are_retired() -> None:
    table = table_of(4)
    for name in "ab":
        taken(table, name)
        table.failed(name, 1)
    assert not table.wants_arena
    taken(table, "c")
    table.failed("c", 1)
    assert table.wants_arena


def test_new_memory_is_wanted_when_no_message_can_free_a_slot() -> None:
    table = table_of(3)
    retired, lent, waiting = (taken(table, name) for name in "abc")
    assert not table.wants_arena
    table.failed("a", 1)
    assert retired.state == RETIRED
    assert not table.wants_arena  # c may still come
    for slot, name in ((lent, "b"), (waiting, "c")):
        table.fulfilled(name, 1)
        table.lend(slot)
    assert table.wants_arena


def test_new_memory_is_wanted_when_no_message_can_free_as_many_slots_as_are_wanted() -> None:
    """Two are free, two are lent and four are retired: there is no room for three."""
    table = table_of(8)
    for name in "abcd":
        taken(table, name)
        table.failed(name, 1)
    for name in "ef":
        slot = taken(table, name)
        table.fulfilled(name, 1)
        table.lend(slot)
    assert not table.wants_arena_for(2)
    assert table.wants_arena_for(3)
    taken(table, "g")
    assert not table.wants_arena_for(2)  # g may still come
    assert table.wants_arena_for(3)


def test_new_memory_is_wanted_at_once_for_an_order_that_lost_its_slot() -> None:
    table = table_of(3)
    for name in "abc":
        taken(table, name)
    table.lost("a", 1)
    assert table.wants_arena
    table.add_arena("second", [0, 100, 200])
    assert taken(table, "a").arena.medium == "second"


def test_an_old_arena_is_dropped_when_nobody_looks_at_it() -> None:
    table = table_of(2)
    lent, waiting = taken(table, "a"), taken(table, "b")
    table.fulfilled("a", 1)
    table.lend(lent)
    old = table.current
    table.add_arena("second", [0, 100])
    assert table.fulfilled("b", 2) is waiting
    table.lend(waiting)
    table.release(waiting, waiting.ticket)
    assert table.drop_drained() == []  # a is still looked at
    table.release(lent, lent.ticket)
    assert table.drop_drained() == [old]
    assert table.arenas == [table.current]
    assert taken(table, "c").arena.medium == "second"


@pytest.mark.parametrize("state", ["waiting", "full", "quarantined"])
def test_an_old_arena_stays_while_something_is_wanted_back(state: str) -> None:
    table = table_of(1)
    taken(table, "a")
    if state == "full":
        table.fulfilled("a", 1)
    if state == "quarantined":
        table.cancel("a")
    table.add_arena("second", [0])
    assert table.drop_drained() == []


def test_arenas_are_bounded() -> None:
    table = table_of(1)
    while len(table.arenas) < MAX_ARENAS:
        slot = taken(table, f"lent {len(table.arenas)}")
        table.fulfilled(slot.order_id, 1)
        table.lend(slot)
        table.add_arena("next", [0])
    taken(table, "a")
    table.lost("a", 1)
    assert not table.wants_arena


# --- all of it against a broker, zombies included ---------------------------------------


class BrokersOrder:
    """What the broker knows of one order."""

    def __init__(self, slot: Slot) -> None:
        self.slot = slot
        self.lease = 0
        self.parked = False
        self.held = False
        self.touched = False


class Market(RuleBasedStateMachine):
    """A client with its table, a broker, suppliers of which some are zombies, and two channels.

    ``writers`` has the leases that may still write, by slot: what the client cannot see, and what
    must be empty for every slot that is given out.
    """

    fences = False

    def __init__(self) -> None:
        super().__init__()
        self.table = SlotTable("first", [0, 100, 200], self.revoke if self.fences else None)
        self.names = 0
        self.leases = 0
        self.up: deque[tuple[str, str, Slot | None]] = deque()
        self.down: deque[tuple[str, str, int]] = deque()
        self.broker: dict[str, BrokersOrder] = {}
        self.writers: dict[Slot, set[int]] = {}
        self.granted: dict[Slot, str] = {}
        self.zombies: list[tuple[Slot, int]] = []
        self.wanted: set[str] = set()
        self.full: dict[str, tuple[Slot, int]] = {}
        self.lent: list[tuple[Slot, int]] = []

    def revoke(self, offset: int) -> None:
        (slot,) = (slot for slot in self.table.current.slots if slot.offset == offset)
        self.writers.pop(slot, None)
        self.granted.pop(slot)

    # The client.

    def place(self, order_id: str, command: str) -> bool:
        slot = self.table.take(order_id)
        if slot is None:
            return False
        assert not self.writers.get(slot), f"{slot} was given out while it can be written"
        assert slot.arena is self.table.current
        self.granted[slot] = order_id
        self.up.append((command, order_id, slot))
        return True

    def place_parked(self) -> None:
        while self.table.parked:
            if self.table.wants_arena:
                self.table.add_arena("more", [0, 100, 200])
            if not self.place(next(iter(self.table.parked)), "MOVE"):
                break

    @rule()
    def order(self) -> None:
        if self.table.wants_arena:
            self.table.add_arena("more", [0, 100, 200])
        self.names += 1
        name = f"o{self.names}"
        if self.place(name, "ORDER"):
            self.wanted.add(name)

    @precondition(lambda self: self.wanted)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.wanted)))
        self.wanted.discard(name)
        if name in self.full:
            slot, ticket = self.full.pop(name)
            assert self.table.release(slot, ticket)
        else:
            assert self.table.cancel(name)
            self.up.append(("CANCEL", name, None))

    @rule()
    def discard(self) -> None:
        dropped, full = self.table.discard()
        assert set(dropped) == self.wanted - set(self.full)
        assert full == len(self.full)
        self.wanted.clear()
        self.full.clear()
        self.up.append(("DISCARD", "", None))

    @precondition(lambda self: self.full)
    @rule(spoilt=st.booleans())
    def take_product(self, spoilt: bool) -> None:
        name, (slot, ticket) = next(iter(self.full.items()))
        del self.full[name]
        self.wanted.discard(name)
        assert self.table.lend(slot)
        assert not self.writers.get(slot), "served while somebody writes to it"
        if spoilt:
            assert self.table.retire(slot, ticket)
        else:
            self.lent.append((slot, ticket))

    @precondition(lambda self: self.lent)
    @rule(again=st.booleans())
    def release(self, again: bool) -> None:
        slot, ticket = self.lent.pop(0)
        assert self.table.release(slot, ticket)
        if again:
            assert not self.table.release(slot, ticket)
        self.place_parked()

    # What arrives at either side, in its order.

    @precondition(lambda self: self.up)
    @rule()
    def broker_reads(self) -> None:
        command, name, slot = self.up.popleft()
        if command == "ORDER" and slot is not None:
            self.broker[name] = BrokersOrder(slot)
        elif command == "MOVE" and slot is not None:
            order = self.broker.get(name)
            if order is not None:
                assert order.parked
                order.slot, order.parked = slot, False
        elif command == "CANCEL":
            self.withdraw([name])
        else:
            self.withdraw(list(self.broker))

    def withdraw(self, names: list[str]) -> None:
        for name in names:
            order = self.broker.get(name)
            if order is None:
                continue
            if order.lease:
                order.held = True
            else:
                del self.broker[name]
                self.down.append(("SETTLED", name, 0))

    @precondition(lambda self: self.down)
    @rule()
    def client_reads(self) -> None:
        said, name, lease = self.down.popleft()
        if said == "SETTLED":
            self.table.settled([name])
        elif said == "FULFILLED":
            slot = self.table.fulfilled(name, lease)
            assert (slot is not None) == (name in self.wanted)
            if slot is not None:
                self.full[name] = (slot, slot.ticket)
        elif said == "FAILED":
            assert self.table.failed(name, lease) == (name in self.wanted)
            self.wanted.discard(name)
        else:
            assert self.table.lost(name, lease) == (name in self.wanted)
        self.place_parked()

    # The suppliers.

    def some(self, data: st.DataObject, dispatched: bool) -> str | None:
        names = [
            name
            for name, order in self.broker.items()
            if bool(order.lease) == dispatched and not order.parked
        ]
        return data.draw(st.sampled_from(names)) if names else None

    @rule(data=st.data())
    def dispatch(self, data: st.DataObject) -> None:
        name = self.some(data, dispatched=False)
        if name is not None:
            order = self.broker[name]
            self.leases += 1
            order.lease, order.touched = self.leases, True
            if not self.fences or self.granted.get(order.slot) == name:
                self.writers.setdefault(order.slot, set()).add(order.lease)

    @rule(data=st.data(), how=st.sampled_from(["made", "failed", "given back", "lost", "lost"]))
    def answer(self, data: st.DataObject, how: str) -> None:
        name = self.some(data, dispatched=True)
        if name is None:
            return
        order = self.broker[name]
        lease, order.lease = order.lease, 0
        if how == "lost":
            self.zombies.append((order.slot, lease))
            if order.held:
                self.end(name, "FAILED", lease)
            else:
                order.parked = True
                self.down.append(("LOST", name, lease))
            return
        self.writers.get(order.slot, set()).discard(lease)
        if how == "made":
            self.end(name, "FULFILLED", lease)
        elif how == "failed" or order.held:
            self.end(name, "FAILED", 0)

    def end(self, name: str, said: str, lease: int) -> None:
        del self.broker[name]
        self.down.append((said, name, lease))

    @precondition(lambda self: self.zombies)
    @rule()
    def a_zombie_dies(self) -> None:
        slot, lease = self.zombies.pop(0)
        self.writers.get(slot, set()).discard(lease)

    @rule()
    def the_broker_restarts(self) -> None:
        for order in self.broker.values():
            if order.lease:
                self.zombies.append((order.slot, order.lease))
        self.broker.clear()
        self.up.clear()
        self.down.clear()
        forsaken = self.table.forsaken()
        assert set(forsaken) == self.wanted - set(self.full)
        self.wanted = set(self.full)
        for _ in forsaken:
            self.names += 1
            name = f"o{self.names}"
            self.table.park(name)
            self.wanted.add(name)
        while self.table.parked:
            if self.table.wants_arena:
                self.table.add_arena("more", [0, 100, 200])
            if not self.place(next(iter(self.table.parked)), "ORDER"):
                for name in list(self.table.parked):  # no room in any arena: the user gives up
                    self.table.cancel(name)
                    self.wanted.discard(name)

    @rule(name=st.sampled_from(["o1", "o2", "o3"]), lease=st.integers(10_000, 10_002))
    def a_message_from_long_ago(self, name: str, lease: int) -> None:
        if name not in self.table.open_orders:
            before = [(slot, slot.state) for a in self.table.arenas for slot in a.slots]
            assert self.table.fulfilled(name, lease) is None
            assert not self.table.lost(name, lease)
            assert not self.table.failed(name, lease)
            assert before == [(slot, slot.state) for a in self.table.arenas for slot in a.slots]

    # What always holds.

    @invariant()
    def counts_agree(self) -> None:
        for arena in self.table.arenas:
            states = [slot.state for slot in arena.slots]
            assert arena.counts == [states.count(state) for state in range(6)]
            assert sorted(slot.index for slot in arena.free) == [
                slot.index for slot in arena.slots if slot.state == FREE
            ]

    @invariant()
    def every_wanted_order_has_a_slot_or_waits_for_one(self) -> None:
        for name in self.wanted - set(self.full):
            slot = self.table.slot_of(name)
            assert (slot is None) == (name in self.table.parked)
            assert slot is None or slot.state == WAITING

    @invariant()
    def only_drained_arenas_go(self) -> None:
        gone = {arena.number for arena in self.table.drop_drained()}
        looked_at = {slot.arena.number for slot, _ in [*self.lent, *self.full.values()]}
        assert not gone & looked_at
        assert len(self.table.arenas) <= MAX_ARENAS


class FencedMarket(Market):
    """Whose medium takes the right to write back."""

    fences = True

    @invariant()
    def no_slot_is_ever_set_aside(self) -> None:
        assert not self.table.count(RETIRED)
        assert not self.table.count(QUARANTINED)
        assert len(self.table.arenas) == 1

    @invariant()
    def nobody_writes_but_where_a_product_is_waited_for(self) -> None:
        for slot in self.table.current.slots:
            assert slot.state == WAITING or not self.writers.get(slot)


TestMarket = Market.TestCase
TestMarket.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
TestFencedMarket = FencedMarket.TestCase
TestFencedMarket.settings = settings(max_examples=40, stateful_step_count=60, deadline=None)
