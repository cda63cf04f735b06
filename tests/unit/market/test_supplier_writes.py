"""A supplier whose writes are acknowledged later: what it says of each, and when."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import pytest
import xxhash

from entrepot.market import connection as connection_module
from entrepot.market import protocol
from entrepot.market.supplier import Supplier
from entrepot.mediums.tcp_wire import ANSWER, ANSWER_OK, FENCED
from entrepot.settings import SupplierSettings
from tests.peer.waiting import until
from tests.unit.market.fake_broker import LIMIT_S, Apart, FakeBroker
from tests.unit.mediums.tcp_ends import PlayedOwner

SLOT = 64


class Functions:
    """What the supplier makes: ``wait...`` waits for ``go_on``, all else is there at once."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.calls: list[str] = []

    def __call__(self, product_id: str) -> bytes:
        self.calls.append(product_id)
        if product_id.startswith("wait"):
            self.go_on.wait(LIMIT_S)
        return product_id.encode()


class Desk:
    """A supplier that registered with a fake broker, and is given orders of played owners."""

    def __init__(self, broker: FakeBroker, apart: Apart, credit: int, beat_s: float) -> None:
        self.broker = broker
        self.make = Functions()
        self.supplier = Supplier(
            broker.endpoint,
            {".*": self.make},
            credit=credit,
            name="desk",
            settings=SupplierSettings(tcp_timeout_s=LIMIT_S),
        )
        self.running: Future[None] = apart(self.supplier.run)
        self.hello = broker.greet(beat_s=beat_s)
        assert broker.expect(protocol.READY) == {}
        connection = self.supplier._connection
        until(lambda: connection.clock() - connection._opened_at > connection_module.FIRST_BEAT_S)

    def give(self, *orders: tuple[int, str, PlayedOwner]) -> None:
        """Leases, which number the orders too; product ids; and whose slots."""
        items = [
            protocol.WorkItem(f"o{lease}", lease, product_id, owner.address(lease), 0, SLOT)
            for lease, product_id, owner in orders
        ]
        self.broker.say(protocol.WORK, protocol.Work(items))

    def done(self, count: int) -> dict[int, str]:
        """By lease, what went wrong with each of the next ``count`` results; "" for nothing."""
        said: dict[int, str] = {}
        while len(said) < count:
            for result in self.broker.expect(protocol.DONE)["results"]:
                said[result["lease"]] = result.get("error", {}).get("type", "")
        return said

    def hears_nothing(self) -> bool:
        try:
            self.broker.receive(0.2)
        except TimeoutError:
            return True
        return False

    def close(self) -> None:
        self.make.go_on.set()
        self.supplier.stop()
        self.running.result(LIMIT_S)


MakeDesk = Callable[..., Desk]


@pytest.fixture
def apart() -> Iterator[Apart]:
    apart = Apart()
    yield apart
    apart.close()


@pytest.fixture
def owner() -> Iterator[PlayedOwner]:
    with PlayedOwner() as owner:
        yield owner


@pytest.fixture
def other() -> Iterator[PlayedOwner]:
    with PlayedOwner() as owner:
        yield owner


@pytest.fixture
def desk(owner: PlayedOwner, other: PlayedOwner, apart: Apart) -> Iterator[MakeDesk]:
    """Makes one; it ends before its owners do."""
    made: list[Desk] = []
    with FakeBroker() as broker:

        def make(*, credit: int = 16, beat_s: float = 30.0) -> Desk:
            made.append(Desk(broker, apart, credit, beat_s))
            return made[-1]

        yield make
        for each in made:
            for played in (owner, other):
                if played.connections:
                    with suppress(OSError):  # it was cut, and not needed again
                        played.say(ANSWER_OK * 100)
            each.close()


def row(owner: PlayedOwner, *leases: int) -> list[tuple[int, str, PlayedOwner]]:
    return [(lease, f"p{lease}", owner) for lease in leases]


# --- what is said, and when -------------------------------------------------------------


@pytest.mark.parametrize("credit", [1, 2, 16])
def test_nothing_is_done_before_the_owner_has_said_so(
    desk: MakeDesk, owner: PlayedOwner, credit: int
) -> None:
    one = desk(credit=credit)
    one.give(*row(owner, 1))
    until(lambda: owner.heard)
    assert one.hears_nothing()
    owner.say(ANSWER_OK)
    (result,) = one.broker.expect(protocol.DONE)["results"]
    assert (result["lease"], result["nbytes"]) == (1, 2)
    assert result["checksum"] == xxhash.xxh3_64_intdigest(b"p1")
    assert owner.heard == [(1, 1, b"p1")]


def test_the_next_is_made_while_the_last_is_under_way(desk: MakeDesk, owner: PlayedOwner) -> None:
    one = desk(credit=4)
    one.give(*row(owner, 1, 2, 3, 4))
    until(lambda: len(owner.heard) == 4)
    assert one.make.calls == ["p1", "p2", "p3", "p4"]
    assert one.hears_nothing()
    owner.say(ANSWER_OK * 3)
    assert one.done(3) == {1: "", 2: "", 3: ""}
    assert one.hears_nothing()
    owner.say(ANSWER_OK)
    assert one.done(1) == {4: ""}


def test_small_products_travel_together(desk: MakeDesk, owner: PlayedOwner) -> None:
    one = desk(credit=16)
    one.give(*row(owner, *range(1, 17)))
    until(lambda: len(owner.heard) == 16)
    assert owner.heard == [(lease, lease, b"p%d" % lease) for lease in range(1, 17)]
    assert len(owner.rows) < 16
    owner.say(ANSWER_OK * 16)
    assert one.done(16) == dict.fromkeys(range(1, 17), "")


def test_what_is_refused_in_the_middle_of_a_row_fails_that_order(
    desk: MakeDesk, owner: PlayedOwner
) -> None:
    one = desk()
    one.give(*row(owner, *range(1, 9)))
    until(lambda: len(owner.heard) == 8)
    no = ANSWER.pack(FENCED, 5) + b"moved"
    owner.say(ANSWER_OK * 3 + no + ANSWER_OK * 2 + no + ANSWER_OK)
    assert one.done(8) == {1: "", 2: "", 3: "", 4: "Fenced", 5: "", 6: "", 7: "Fenced", 8: ""}
    until(lambda: (one.supplier.served, one.supplier.failed), lambda counts: counts == (6, 2))


@pytest.mark.parametrize("acknowledged", [0, 1, 5, 8])
def test_a_connection_that_is_cut_costs_no_order(
    desk: MakeDesk, owner: PlayedOwner, acknowledged: int
) -> None:
    """What was acknowledged is done; what was not is written again, and then it is."""
    one = desk()
    one.give(*row(owner, *range(1, 9)))
    until(lambda: len(owner.heard) == 8)
    owner.say(ANSWER_OK * acknowledged)
    said = one.done(acknowledged)
    owner.cut()
    for lease in range(acknowledged + 1, 9):
        until(lambda lease=lease: len(owner.heard) == 8 + lease - acknowledged)  # type: ignore[misc]
        owner.say(ANSWER_OK)
    assert said | one.done(8 - acknowledged) == dict.fromkeys(range(1, 9), "")
    again = [lease for lease, *_ in owner.heard[8:]]
    assert again == list(range(acknowledged + 1, 9))


# --- owners that stall ------------------------------------------------------------------


def test_an_owner_that_stalls_keeps_no_other_waiting(
    desk: MakeDesk, owner: PlayedOwner, other: PlayedOwner
) -> None:
    one = desk(credit=8)
    one.give(*row(owner, 1, 2), *row(other, 3, 4))
    until(lambda: len(owner.heard) == 2 and len(other.heard) == 2)
    other.say(ANSWER_OK * 2)
    assert one.done(2) == {3: "", 4: ""}
    for lease in (5, 6, 7):  # and what comes later
        one.give(*row(other, lease))
        until(lambda lease=lease: other.heard[-1][0] == lease)  # type: ignore[misc]
        other.say(ANSWER_OK)
        assert one.done(1) == {lease: ""}
    owner.say(ANSWER_OK * 2)
    assert one.done(2) == {1: "", 2: ""}


def test_a_result_does_not_wait_for_a_slow_function(desk: MakeDesk, owner: PlayedOwner) -> None:
    """What was made just before it leaves, and is told of, with the next beat at the latest."""
    one = desk(beat_s=0.05)
    one.give((1, "p1", owner), (2, "wait", owner), (3, "p3", owner))
    until(lambda: owner.heard == [(1, 1, b"p1")], limit_s=LIMIT_S)
    owner.say(ANSWER_OK)
    assert one.done(1) == {1: ""}
    until(lambda: one.make.calls == ["p1", "wait"])
    one.make.go_on.set()
    until(lambda: len(owner.heard) == 2)
    assert one.make.calls == ["p1", "wait"]  # slow functions are not gathered behind
    owner.say(ANSWER_OK)
    assert one.done(1) == {2: ""}


# --- brokers that are lost, and the end -------------------------------------------------


def test_what_is_under_way_is_held_over_a_resume(desk: MakeDesk, owner: PlayedOwner) -> None:
    one = desk(credit=4)
    one.give(*row(owner, 1, 2, 3))
    until(lambda: len(owner.heard) == 3)
    one.broker.refuse("hello_first")
    hello = one.broker.greet(resumed=True)
    assert sorted(hello["holds"]) == [1, 2, 3]
    assert one.broker.expect(protocol.READY) == {}
    owner.say(ANSWER_OK * 3)
    assert one.done(3) == {1: "", 2: "", 3: ""}


def test_another_broker_is_not_told_of_what_the_one_before_ordered(
    desk: MakeDesk, owner: PlayedOwner
) -> None:
    """And gives nothing before it is over."""
    one = desk(credit=4)
    one.give(*row(owner, 1, 2, 3))
    until(lambda: len(owner.heard) == 3)
    one.broker.refuse("hello_first")
    one.broker.instance = os.urandom(8)
    one.broker.greet()
    assert one.hears_nothing()
    owner.say(ANSWER_OK * 2)
    assert one.hears_nothing()
    owner.say(ANSWER_OK)
    assert one.broker.expect(protocol.READY) == {}
    one.give(*row(owner, 7))
    until(lambda: owner.heard[-1][0] == 7)
    owner.say(ANSWER_OK)
    assert one.done(1) == {7: ""}


def test_stopping_waits_for_what_is_under_way(
    desk: MakeDesk, owner: PlayedOwner, apart: Apart
) -> None:
    one = desk(credit=4)
    one.give(*row(owner, 1, 2, 3))
    until(lambda: len(owner.heard) == 3)
    stopping = apart(one.supplier.stop)
    assert one.broker.expect(protocol.DRAIN) == {}
    owner.say(ANSWER_OK * 3)
    assert one.done(3) == {1: "", 2: "", 3: ""}
    assert one.broker.expect(protocol.GOODBYE) == {}
    stopping.result(LIMIT_S)


def test_a_function_that_ends_the_supplier_loses_nothing_that_was_made(
    desk: MakeDesk, owner: PlayedOwner
) -> None:
    one = desk(credit=4)

    class Ends(BaseException):
        pass

    def make(product_id: str) -> bytes:
        if product_id == "p3":
            raise Ends
        return product_id.encode()

    one.make.__class__ = type("Ending", (Functions,), {"__call__": lambda _, p: make(p)})
    one.give(*row(owner, 1, 2, 3))
    until(lambda: len(owner.heard) == 2)
    owner.say(ANSWER_OK * 2)
    assert one.done(3) == {1: "", 2: "", 3: "Ends"}
    with pytest.raises(Ends):
        one.running.result(LIMIT_S)
    one.running = Future()
    one.running.set_result(None)


def test_the_owner_is_asked_for_nothing_that_was_not_made(
    desk: MakeDesk, owner: PlayedOwner
) -> None:
    """A function that raises fails its own order, in the middle of a row too."""
    one = desk()

    def make(product_id: str) -> Any:
        return None if product_id == "p3" else product_id.encode()

    one.make.__class__ = type("Odd", (Functions,), {"__call__": lambda _, p: make(p)})
    one.give(*row(owner, *range(1, 7)))
    until(lambda: len(owner.heard) == 5)
    owner.say(ANSWER_OK * 5)
    assert one.done(6) == {1: "", 2: "", 3: "NotBytes", 4: "", 5: "", 6: ""}
