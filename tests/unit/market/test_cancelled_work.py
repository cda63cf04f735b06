"""An order that is cancelled while its supplier has it: the supplier is told, and may stop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from entrepot import Batch, Broker, Client, ShmMedium, Supplier
from entrepot.errors import OrderCancelled
from entrepot.market import events as ev
from entrepot.market.supplier import Work
from entrepot.settings import BrokerSettings
from tests.peer.raw import RawClient, RawSupplier
from tests.peer.waiting import until
from tests.unit.market.small_market import Market, answers, failed, given

ANY = "tcp://127.0.0.1:*"
LIMIT_S = 30.0
SLOT = 64


def revoked(effects: list[ev.Effect]) -> list[tuple[str, list[int]]]:
    return [(e.session.decode(), e.leases) for e in effects if isinstance(e, ev.Revoke)]


# --- the rules --------------------------------------------------------------------------


def test_its_supplier_is_told_once_and_answers_as_ever() -> None:
    market = Market()
    market.supplier("s", credit=2, cancels=True)
    market.order("a", "b", "queued")
    lease = market.lease("s", "a")
    effects = market.cancel("a")
    assert revoked(effects) == [("s", [lease])]
    assert answers(effects) == [{"held": ["a"]}]
    assert revoked(market.cancel("a")) == []
    assert revoked(market.cancel("queued")) == []
    (end,) = market.fail("s", "a")
    assert isinstance(end, ev.Fail)
    assert (end.order_id, end.reason, end.lease) == ("a", "cancelled", 0)
    assert market.outcomes == {"cancelled": 2}


def test_all_that_are_discarded_are_told_together_to_each_supplier() -> None:
    market = Market()
    market.supplier("s", credit=2, cancels=True)
    market.supplier("t", cancels=True)
    market.order("a", "b", "c", "d")
    leases = {name: [market.lease(name, i) for i in market.holds(name)] for name in ("s", "t")}
    effects = market.apply(ev.Discarded(b"client", 5))
    assert sorted(revoked(effects)) == sorted(leases.items())


def test_who_does_not_ask_is_not_told() -> None:
    market = Market()
    market.supplier("s")
    market.order("a")
    assert revoked(market.cancel("a")) == []


@pytest.mark.parametrize("end", [ev.Left(b"client"), ev.Dropped(b"client", "slow")])
def test_a_client_that_is_gone_wants_nothing(end: ev.Event) -> None:
    market = Market()
    market.supplier("s", credit=2, cancels=True)
    market.order("a", "b")
    market.cancel("a")
    lease = market.lease("s", "b")
    assert revoked(market.apply(end)) == [("s", [lease])]
    assert given(market.done("s", "a", "b")) == []


def test_one_that_was_away_is_told_when_it_is_back() -> None:
    market = Market()
    market.supplier("s", credit=3, cancels=True)
    market.order("a", "b", "c")
    market.disconnected("s")
    leases = [market.lease("s", i) for i in ("a", "b", "c")]
    assert revoked(market.cancel("b")) == [("s", leases[1:2])]  # which does not arrive
    effects = market.join("s", holds=leases, cancels=True, seq=1)
    assert [type(effect) for effect in effects] == [ev.Welcome, ev.Revoke]
    assert revoked(effects) == [("s", leases[1:2])]
    effects = market.join("s", holds=leases[:1], cancels=True, seq=2)
    assert revoked(effects) == []  # the others never arrived
    assert failed("b", "cancelled") in effects


# --- on the wire ------------------------------------------------------------------------


@pytest.fixture
def broker() -> Iterator[Broker]:
    settings = BrokerSettings(beat_s=0.1, reconnect_grace_s=5.0, client_grace_s=0.1)
    with Broker(ANY, ANY, settings=settings) as broker:
        yield broker


def test_the_message_comes_after_the_work_that_it_is_of(broker: Broker) -> None:
    with RawSupplier(broker.backend) as supplier, RawClient(broker.frontend) as client:
        supplier.ready("p", cancels=True)
        supplier.settled()  # an order that nobody could have is cancelled at once
        client.hello()
        for number in range(100):
            client.order(f"o{number}", "p")
            client.send(b"CANCEL", {"seq": 2, "order_id": f"o{number}"})
            work = supplier.work()  # passes over what comes before
            assert supplier.wait_for(b"CANCEL")["leases"] == [work["lease"]]
            supplier.done(work, success=False)
            assert client.wait_for(b"FAILED")["reason"] == "cancelled"


def test_a_supplier_of_before_is_sent_nothing_new(broker: Broker) -> None:
    with RawSupplier(broker.backend) as supplier, RawClient(broker.frontend) as client:
        supplier.ready("p")
        client.hello()
        client.order("a", "p")
        work = supplier.work()
        assert client.ask(b"CANCEL", order_id="a")["held"] == ["a"]
        supplier.done(work, success=False)
        client.order("b", "p")
        while (command := supplier.receive()[0]) != b"WORK":
            assert command == b"HEARTBEAT"


# --- a function that takes long ---------------------------------------------------------


@pytest.fixture
def client(broker: Broker) -> Iterator[Client]:
    with Client(broker.frontend, ShmMedium.create(SLOT, 8), timeout_s=LIMIT_S) as client:
        yield client


class Slow:
    """Makes ``slow...`` until nobody wants it, and everything else at once."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.stopped: list[str] = []
        self.asked = 0

    def __call__(self, work: Work, out: memoryview) -> int:
        self.begun.append(work.product_id)
        give_up = time.monotonic() + LIMIT_S
        while work.product_id.startswith("slow"):
            self.asked += 1
            if work.cancelled:
                self.stopped.append(work.product_id)
                return 0
            assert time.monotonic() < give_up, "nobody said that it is cancelled"
        said = work.product_id.encode()
        out[: len(said)] = said
        return len(said)

    def many(self, works: list[Work], outs: list[memoryview]) -> list[int]:
        return [self(work, out) for work, out in zip(works, outs, strict=True)]


def serving(broker: Broker, function: Any, **options: Any) -> Supplier:
    return Supplier(broker.backend, {".*": function}, **options).start()


def taken(client: Client, product_id: str) -> bytes:
    with client.order(product_id).result(LIMIT_S) as product:
        return product.bytes()


def cancel(order: Any, _client: Client) -> None:
    order.cancel()


def discard(_order: Any, client: Client) -> None:
    client.discard()


@pytest.mark.parametrize("way", [cancel, discard])
@pytest.mark.parametrize("credit", [1, 4])
def test_the_function_stops_and_the_next_order_is_made(
    broker: Broker, client: Client, way: Callable[..., None], credit: int
) -> None:
    slow = Slow()
    with serving(broker, slow, credit=credit) as supplier:
        order = client.order("slow 1")
        until(lambda: slow.begun)
        way(order, client)
        assert taken(client, "quick") == b"quick"
        assert slow.stopped == ["slow 1"]
        with pytest.raises(OrderCancelled):
            order.result(LIMIT_S)
        until(client.figures, lambda seen: seen["free"] == 8)
        assert not supplier._worklist._revoked, "what is over is remembered"


def test_orders_of_a_batch_are_told_apart(broker: Broker, client: Client) -> None:
    slow = Slow()
    with serving(broker, Batch(slow.many, size=3, wait_s=LIMIT_S)):
        orders = [client.order(name) for name in ("first", "slow", "last")]
        until(lambda: "slow" in slow.begun)
        assert slow.begun == ["first", "slow"]
        orders[1].cancel()
        for order, said in ((orders[0], b"first"), (orders[2], b"last")):
            with order.result(LIMIT_S) as product:
                assert product.bytes() == said


def test_what_waits_at_the_supplier_is_never_begun(broker: Broker, client: Client) -> None:
    slow = Slow()
    with serving(broker, slow, credit=4) as supplier:
        first = client.order("slow")
        until(lambda: slow.begun)
        others = [client.order(f"waits {number}") for number in range(3)]
        until(lambda: len(supplier._worklist.queue) == 3)
        others[1].cancel()
        until(lambda: len(supplier._worklist.queue) == 2)
        until(client.figures, lambda seen: seen["free"] == 8 - 3)
        first.cancel()
        for order, said in ((others[0], b"waits 0"), (others[2], b"waits 2")):
            with order.result(LIMIT_S) as product:
                assert product.bytes() == said
        assert slow.begun == ["slow", "waits 0", "waits 2"]
        assert supplier.failed == 0


def test_a_client_that_is_cut_off_wants_nothing_more(broker: Broker) -> None:
    slow = Slow()
    with serving(broker, slow), ShmMedium.create(SLOT, 1) as medium:
        with RawClient(broker.frontend) as client:
            client.hello()
            client.order("a", "slow", address=medium.address, nbytes=SLOT)
            until(lambda: slow.begun)
        until(lambda: slow.stopped)  # leaving closed the socket, without a word


def test_without_a_cancel_it_is_not(broker: Broker, client: Client) -> None:
    seen: list[bool] = []

    def make(work: Work, out: memoryview) -> int:
        seen.extend(work.cancelled for _ in range(1000))
        return 1

    with serving(broker, make):
        taken(client, "a")
    assert seen == [False] * 1000
    assert Work("o", "p", 8).cancelled is False  # as a test of a function's makes it


def test_any_thread_of_the_function_may_ask(broker: Broker, client: Client) -> None:
    heard = threading.Event()

    def make(work: Work, out: memoryview) -> int:
        def ask() -> None:
            until(lambda: work.cancelled)
            heard.set()

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        begun.set()
        for thread in threads:
            thread.join()
        return 0

    begun = threading.Event()
    with serving(broker, make):
        order = client.order("a")
        assert begun.wait(LIMIT_S)
        order.cancel()
        assert heard.wait(LIMIT_S)
