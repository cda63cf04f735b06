"""Where the peer ``softs`` 0.1.2 was measured to fail, one test a fault: what we do instead.

Each test has the name of the fault. Parties that must die or stand still are processes of their
own; the others live here.
"""

from __future__ import annotations

import contextlib
import re
import signal
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from entrepot.errors import (
    BrokerUnavailable,
    OrderFailed,
    OrderTimeout,
)
from entrepot.market.broker import Broker
from entrepot.market.client import Client, Order
from entrepot.market.supplier import Supplier
from entrepot.mediums import ShmMedium
from entrepot.settings import BrokerSettings
from tests.integration.fault_market import (
    LOCAL,
    NBYTES,
    SWIFT,
    Market,
    given_settings,
    have,
    market,
    settings,
)
from tests.peer.generator import Generator
from tests.peer.payload import payload
from tests.peer.process import LineProcess
from tests.peer.waiting import LIMIT_S, until
from tests.ports import Ports

__all__ = ["market", "settings"]  # fixtures


# --- the right product in the right slot ------------------------------------------------


def test_corrupt(market: Market) -> None:
    """There a push that comes while an answer is awaited is lost, and its slot with it."""
    client = market.client(slots=8)
    market.supplier(Generator("s"), r"p\d+", credit=8)
    for turn in range(50):
        orders = client.orders([f"p{turn * 8 + slot}" for slot in range(8)])
        client.stats()  # its answer comes among the pushes
        for slot, order in enumerate(orders):
            with order.result(timeout_s=30) as made:
                assert made.bytes() == payload(f"p{turn * 8 + slot}", "s", NBYTES)


def test_wrong_product(market: Market) -> None:
    """There ``request_sample("b")`` is answered with what was ordered before it."""
    client = market.client()
    market.supplier(Generator("s"), "a", "b")
    first = client.order("a")
    assert have(client, "b") == payload("b", "s", NBYTES)
    with first.result(timeout_s=30) as made:
        assert made.bytes() == payload("a", "s", NBYTES)


@given_settings(**SWIFT)
def test_double(market: Market) -> None:
    """There a slow supplier's late write overwrites what the client is looking at."""
    client = market.client(slots=4)
    zombie = market.supplier_process("p", name="zombie", hold="p")
    order = client.order("p")
    until(lambda: zombie.ask("calls"))
    zombie.signal(signal.SIGSTOP)
    market.supplier(Generator("living"), "p", "q")
    with order.result(timeout_s=30) as made:
        wanted = payload("p", "living", NBYTES)
        assert made.bytes() == wanted
        zombie.signal(signal.SIGCONT)
        zombie.ask("release")
        until(lambda: zombie.ask("served"))  # it has written what it was asked for
        assert made.bytes() == wanted
    assert have(client, "q") == payload("q", "living", NBYTES)


def test_overflow(market: Market) -> None:
    """There 96 bytes go into a slot of 64, over its neighbour; short data keeps the old tail."""
    client = market.client(slots=2)

    def make(product_id: str) -> bytes:
        return b"x" * int(product_id)

    market.supplier(make, r"\d+")
    with client.order("64").result(timeout_s=30) as neighbour:
        with pytest.raises(OrderFailed, match="96") as failed:
            have(client, "96")
        assert "ProductTooLarge" in failed.value.attempts[0]
        assert neighbour.bytes() == b"x" * 64
        assert have(client, "5") == b"x" * 5
        assert have(client, "0") == b""


def test_tracker(market: Market) -> None:
    """There a supplier that exits takes the client's segment with it."""
    client = market.client()
    for number, end in enumerate((LineProcess.kill, LineProcess.close)):
        supplier = market.supplier_process("p", name=f"s{number}")
        assert have(client, "p") == payload("p", f"s{number}", NBYTES)
        end(supplier)
    market.supplier(Generator("last"), "p")
    assert have(client, "p") == payload("p", "last", NBYTES)


# --- who is who -------------------------------------------------------------------------


def test_forge_order_id(market: Market) -> None:
    """There a second client's order of the same id replaces the first's, which never comes."""
    first, second = market.raw_client(), market.raw_client()
    first.order("o-1", "a")
    second.order("o-1", "b")
    supplier = market.raw_supplier("a", "b", credit=2)
    for _ in range(2):
        work = supplier.work()
        checksum = {"a": 1, "b": 2}[work["product_id"]]
        supplier.done(work, nbytes=NBYTES, checksum=checksum)
    assert first.fulfilled("o-1")["checksum"] == 1
    assert second.fulfilled("o-1")["checksum"] == 2


def test_forge_order_id_v1(market: Market) -> None:
    first, second = market.raw_v1(), market.raw_v1()
    for client, product in ((first, "a"), (second, "b")):
        assert client.order("c1-1", product)["ok"]
    supplier = market.raw_v1(backend=True)
    assert supplier.ask(b"HELLO", {"product_ids": ["a", "b"]})["ok"]
    for client in (first, second):
        supplier.send(b"READY")
        supplier.wait_for(b"WORK")
        assert supplier.ask(b"DONE", {"order_id": "c1-1"})["ok"]
        assert client.wait_for(b"FULFILLED") == {"order_id": "c1-1"}


def test_forge_done(market: Market) -> None:
    """There anybody's DONE for a queued order serves it, unwritten."""
    client = market.raw_client()
    client.order("o-1", "p")
    client.settled()
    other = market.raw_supplier("q")
    for lease in (0, 1, 2**64 - 1):
        other.done({"order_id": "o-1", "lease": lease}, nbytes=NBYTES, checksum=1)
    other.settled()
    assert market.stats()["stale_answers"] == 3
    # Nor does the DONE of one supplier end what another has, whatever lease it says.
    supplier = market.raw_supplier("p")
    work = supplier.work()
    other.done(work, nbytes=NBYTES, checksum=1)
    other.settled()
    stats = market.stats()
    assert (stats["stale_answers"], stats["orders"]["fulfilled"]) == (4, 0)
    supplier.done(work, nbytes=NBYTES, checksum=7)
    assert client.fulfilled("o-1")["checksum"] == 7


def test_forge_done_v1(market: Market) -> None:
    client = market.raw_v1()
    assert client.order("c1-1", "p")["ok"]
    other = market.raw_v1(backend=True)
    assert other.ask(b"HELLO", {"product_ids": ["q"]})["ok"]
    refused = other.ask(b"DONE", {"order_id": "c1-1"})
    assert (refused["ok"], refused["error"]) == (False, "Unknown order")
    assert client.ask(b"STATS")["pending_orders"] == 1


@given_settings(client_grace_s=0.2)
def test_f2(market: Market) -> None:
    """There a dead client's orders stay for ever."""
    client = market.process()
    client.ask("client", frontend=market.broker.frontend)
    client.begin("one_at_a_time", product="p", count=1)
    until(lambda: market.stats()["orders"]["queued"])
    client.kill()
    until(lambda: market.stats()["orders"], lambda orders: orders["open"] == 0)
    assert market.stats()["orders"]["cancelled"] == 1
    market.client()  # whoever owns a segment next takes the dead one's away


# --- slow is not dead -------------------------------------------------------------------


@given_settings(**SWIFT)
def test_slow_gen(market: Market) -> None:
    """There a supplier that takes over 10 s is expelled, and never heard again."""
    client = market.client()
    slow = Generator("slow", hold="p")
    market.supplier(slow, "p")
    order = client.order("p")
    until(slow.calls)
    for _ in range(2):
        market.canary()
    slow.release()
    with order.result(timeout_s=30) as made:
        assert made.bytes() == payload("p", "slow", NBYTES)
    assert have(client, "p") == payload("p", "slow", NBYTES)
    assert slow.calls() == ["p"] * 2


@given_settings(**SWIFT)
def test_idle(market: Market) -> None:
    """There a supplier without orders for 60 s is dropped."""
    client = market.client()
    market.supplier(Generator("idle"), "p")
    for _ in range(2):
        market.canary()
    assert have(client, "p") == payload("p", "idle", NBYTES)


# --- queues -----------------------------------------------------------------------------


def test_deadqueue(market: Market) -> None:
    """There discarded orders fill the queue of their product."""
    client = market.raw_v1()
    for number in range(16):
        assert client.order(f"c1-{number}", "p")["ok"]
    assert client.ask(b"DISCARD")["cancelled"] == 16
    for number in range(16, 48):
        assert client.order(f"c1-{number}", "p")["ok"]
    assert client.ask(b"STATS")["pending_orders"] == 32


def test_starve(market: Market) -> None:
    """There the product that was ordered first goes first for ever."""
    client = market.raw_client()
    supplier = market.raw_supplier("a", "b")
    for number in range(8):
        client.order(f"a-{number}", "a")
    client.order("b-0", "b")
    served = []
    for number in range(8, 24):
        client.order(f"a-{number}", "a")  # "a" never runs out
        client.ask(b"STATS")
        work = supplier.work()
        served.append(work["order_id"])
        supplier.done(work, nbytes=NBYTES, checksum=1)
    assert served == [*(f"a-{n}" for n in range(8)), "b-0", *(f"a-{n}" for n in range(8, 15))]


@given_settings(max_order_losses=2)
def test_poison(market: Market) -> None:
    """There an order that kills its supplier kills them all."""
    client = market.client()
    suppliers = [market.supplier_process(".*", name=f"s{n}", die="poison") for n in range(3)]
    with pytest.raises(OrderFailed) as failed:
        have(client, "poison", timeout_s=60)
    assert failed.value.reason == "lost"
    assert len(failed.value.attempts) == 2
    assert len(until(lambda: [s for s in suppliers if s.alive], lambda alive: len(alive) == 1)) == 1
    assert len(have(client, "p")) == NBYTES


def test_failed(market: Market) -> None:
    """There the client is not told that its order failed, nor why."""
    client = market.client()
    market.supplier(Generator("first", fail="p"), "p", name="first")
    market.supplier(Generator("second", fail="p"), "p", name="second")
    with pytest.raises(OrderFailed, match=r"first does not make p") as failed:
        have(client, "p")
    assert failed.value.reason == "attempts"
    assert len(failed.value.attempts) == BrokerSettings().max_order_attempts
    for name in ("first", "second"):
        assert any(name in attempt and "ValueError" in attempt for attempt in failed.value.attempts)


@given_settings(max_products=16, max_idle_classes=4)
def test_leak(market: Market) -> None:
    """There each product id that was ever ordered is kept, and looked at on every dispatch."""
    client = market.raw_client()
    supplier = market.raw_supplier(r"p-\d+", credit=10)
    for turn in range(100):
        client.orders(
            {"order_id": f"o-{turn}-{n}", "product_id": f"p-{turn * 10 + n}"} for n in range(10)
        )
        for _ in range(10):
            supplier.done(supplier.work(), nbytes=NBYTES, checksum=1)
    until(lambda: market.stats()["orders"], lambda orders: orders["fulfilled"] == 1000)
    for number in range(20):
        market.raw_supplier(rf"other-{number}-\d+").send(b"GOODBYE")
    until(lambda: market.stats()["suppliers"]["connected"], lambda count: count == 1)
    queue = market.broker._ledger.queue  # no figure of STATS says what is remembered
    assert len(queue.products) <= 2 * 16
    assert len(list(queue.classes())) <= 1 + 4


def test_leak_of_segments(market: Market) -> None:
    """There a supplier keeps every dead client's segment mapped."""
    supplier = market.supplier_process("p")
    for _ in range(6):
        medium = ShmMedium.create(slot_nbytes=NBYTES, slots=2)
        with Client(market.broker.frontend, medium, timeout_s=LIMIT_S) as client:
            assert len(have(client, "p")) == NBYTES
    maps = Path(f"/proc/{supplier.pid}/maps")
    mapped = [line for line in maps.read_text().splitlines() if "/dev/shm/entrepot-" in line]
    assert len(mapped) <= 2


# --- a broker that is not there ---------------------------------------------------------


def test_timeout(market: Market) -> None:
    """There a time-out counts sleeps, and 2 s are 4."""
    client = market.client()
    started = time.monotonic()
    with pytest.raises(OrderTimeout):
        have(client, "nobody's", timeout_s=0.5)
    assert 0.5 <= time.monotonic() - started < 5


def test_timeout_without_a_broker(market: Market) -> None:
    """There 0.03 s without a broker are 15."""
    client = market.client(timeout_s=0.5)

    def ordered() -> Order | None:
        """A busy machine may need longer than that to connect."""
        with contextlib.suppress(BrokerUnavailable):
            return client.order("p")
        return None

    order = until(ordered)
    assert order is not None
    market.broker.stop()
    for ask in (lambda: order.result(timeout_s=0.5), lambda: client.order("p"), client.stats):
        started = time.monotonic()
        with pytest.raises((OrderTimeout, BrokerUnavailable)):
            ask()
        assert time.monotonic() - started < 5


def test_hwm() -> None:
    """There the thousandth send without a broker blocks for ever, and all are sent later."""
    medium = ShmMedium.create(slot_nbytes=NBYTES, slots=2)
    with ExitStack() as stack:
        ports = Ports(1)
        stack.callback(ports.close)
        frontend = f"tcp://127.0.0.1:{ports.numbers[0]}"
        client = stack.enter_context(Client(frontend, medium, timeout_s=LIMIT_S))
        for _ in range(1200):
            with pytest.raises(BrokerUnavailable, match=re.escape(frontend)):
                client.order("p", timeout_s=0.001)
        with Broker(frontend, LOCAL) as broker:
            generator = Generator("s")
            with Supplier(broker.backend, {"p": generator}) as supplier:
                supplier.start()
                assert have(client, "p") == payload("p", "s", NBYTES)
            assert client.stats()["orders"]["placed"] == 1
            assert generator.calls() == ["p"]
