"""Races that were met, each under its name."""

from __future__ import annotations

import os
import threading
import time
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from entrepot.market import events as ev
from entrepot.market.broker import Broker
from entrepot.market.client import Client
from entrepot.market.desk import Desk
from entrepot.market.ledger import Ledger
from entrepot.market.outbox import Frames
from entrepot.market.port import Peer, Port
from entrepot.market.post import Post
from entrepot.market.supplier import Supplier, Work
from entrepot.mediums import ShmMedium
from entrepot.settings import BrokerSettings
from tests.peer.raw import RawClient, RawSupplier

ANY = "tcp://127.0.0.1:*"


def test_waiting_for_a_supplier_whose_thread_has_not_begun() -> None:
    """Whoever waits may be there before the thread that serves has connected."""
    with Broker(ANY, ANY) as broker, Supplier(broker.backend, {"a": bytes}) as supplier:
        waiting = threading.Thread(target=supplier.wait_registered)
        waiting.start()
        waiting.join()
        supplier.start()
        supplier.wait_registered()


def test_a_broker_that_stood_still() -> None:
    """What it slept through is nobody's silence: it looks at the clock before it looks at them."""
    slept_s = 0.0

    def clock() -> float:
        return time.monotonic() + slept_s

    settings = BrokerSettings(beat_s=0.02, dead_s=50, suspect_s=50)
    with (
        Broker(ANY, ANY, settings=settings, clock=clock) as broker,
        RawClient(broker.frontend) as client,
        RawSupplier(broker.backend) as supplier,
    ):
        client.hello()
        supplier.ready("a")
        client.order("o1", "a")
        work = supplier.work()
        for _ in range(3):
            slept_s += 100
            client.settled()
            client.passed.clear()
            client.wait_for(b"HEARTBEAT")
        stats = client.ask(b"STATS")["stats"]
        assert (stats["dropped"], stats["suppliers"]["suspect"]) == ({}, 0)
        supplier.done(work)
        client.fulfilled("o1")


def test_a_broker_that_stands_still_at_any_step() -> None:
    """Also when it has looked at the clock, and not yet at who was silent."""
    looks = count()

    def clock() -> float:
        return time.monotonic() + 100 * (next(looks) // 5)

    settings = BrokerSettings(beat_s=0.02, dead_s=50, suspect_s=50)
    with (
        Broker(ANY, ANY, settings=settings, clock=clock) as broker,
        RawClient(broker.frontend) as client,
        RawSupplier(broker.backend) as supplier,
    ):
        client.hello()
        supplier.ready("a")
        for _ in range(30):
            client.wait_for(b"HEARTBEAT")
        stats = client.ask(b"STATS")["stats"]
        assert (stats["dropped"], stats["suppliers"]["suspect"]) == ({}, 0)
        assert stats["suppliers"]["connected"] == 1


def test_a_pause_of_the_broker_is_nobodys_absence() -> None:
    """Who was away when it stood still has as long as before to come back, and no longer."""
    ledger = Ledger(BrokerSettings(reconnect_grace_s=2, client_grace_s=2), count(1).__next__)
    ledger.apply(ev.ClientJoined(session=b"client"), 0)
    ledger.apply(ev.SupplierJoined(session=b"supplier", patterns=["a"]), 0)
    for session in (b"client", b"supplier"):
        ledger.apply(ev.Disconnected(session), 1)
    ledger.apply(ev.Paused(100), 102)
    assert ledger.apply(ev.Ticked(), 102) == []
    assert ledger.apply(ev.Ticked(), 102.9) == []
    ended = ledger.apply(ev.Ticked(), 103)
    assert {effect.session for effect in ended if isinstance(effect, ev.Dismiss)} == {
        b"client",
        b"supplier",
    }


class SilentPort(Port):
    """A port without a socket: what is sent is kept."""

    def __init__(self, side: bytes) -> None:
        super().__init__(zmq.Context.instance(), side)
        self.sent: list[tuple[bytes, bytes, Any]] = []

    def drain_monitor(self) -> None: ...

    def send(self, peer: Peer, frames: Frames) -> None:
        self.send_stranger(peer.rid, frames)

    def send_stranger(self, rid: bytes, frames: Frames) -> None:
        self.sent.append((rid, frames[0], msgspec.msgpack.decode(frames[1])))


class Counter:
    """A broker without its loop: whoever speaks, and when what is gathered leaves, is told."""

    def __init__(self) -> None:
        settings = BrokerSettings()
        self.front, self.back = SilentPort(b"c"), SilentPort(b"s")
        self.post = Post(self.front, self.back, settings)
        ledger = Ledger(settings, count(1).__next__)
        self.desk = Desk(ledger, self.post, settings, b"instance", lambda: 0.0, os.urandom)

    def client(self, rid: bytes, command: bytes, **fields: object) -> None:
        self._receive(self.front, rid, command, fields)

    def supplier(self, rid: bytes, command: bytes, **fields: object) -> None:
        self._receive(self.back, rid, command, fields)

    def _receive(self, port: Port, rid: bytes, command: bytes, fields: dict[str, object]) -> None:
        self.desk.receive(port, zmq.Frame(rid), [command, msgspec.msgpack.encode(fields)], 2)

    def told(self, rid: bytes, command: bytes) -> list[Any]:
        sent = [*self.front.sent, *self.back.sent]
        return [fields for to, said, fields in sent if (to, said) == (rid, command)]


@pytest.fixture
def desk() -> Counter:
    """A client and a supplier with credit 1, and an order that was given to it."""
    counter = Counter()
    counter.client(b"c1", b"HELLO", protocol=2, seq=1, session=b"c" * 16)
    counter.supplier(b"s1", b"HELLO", protocol=2, seq=1, session=b"s" * 16, product_ids=["a"])
    counter.supplier(b"s1", b"READY")
    place = {"address": "nowhere", "offset": 0, "nbytes": 64, "product_id": "a"}
    counter.client(b"c1", b"ORDERS", orders=[{"order_id": "o1"} | place], seq=2)
    counter.post.flush()
    counter.client(b"c1", b"ORDERS", orders=[{"order_id": "o2"} | place], seq=3)
    return counter


def test_an_order_that_ends_as_its_client_comes_back(desk: Counter) -> None:
    """Its end is told and nothing is missing: else it would be made again, in a slot that is full.

    The supplier's answer and the client's HELLO are read in one turn of the loop.
    """
    (work,) = desk.told(b"s1", b"WORK")[0]["orders"]
    desk.supplier(b"s1", b"DONE", results=[{"order_id": "o1", "lease": work["lease"]}])
    desk.client(b"c2", b"HELLO", protocol=2, seq=9, session=b"c" * 16, open_orders=["o1", "o2"])
    desk.post.flush()
    (welcome,) = desk.told(b"c2", b"REPLY")
    assert (welcome["hello"]["resumed"], welcome["hello"].get("missing", [])) == (True, [])
    (fulfilled,) = desk.told(b"c2", b"FULFILLED")
    assert [each["order_id"] for each in fulfilled["orders"]] == ["o1"]


def test_an_order_that_is_given_as_its_supplier_comes_back(desk: Counter) -> None:
    """It is given with one lease: with two, one of them to nobody, two would write to one slot.

    Its answer, whereupon it is given another order, and its next HELLO are read in one turn.
    """
    (work,) = desk.told(b"s1", b"WORK")[0]["orders"]
    desk.supplier(b"s1", b"DONE", results=[{"order_id": "o1", "lease": work["lease"]}])
    desk.supplier(
        b"s2",
        b"HELLO",
        protocol=2,
        seq=9,
        session=b"s" * 16,
        product_ids=["a"],
        holds=[work["lease"]],
    )
    desk.supplier(b"s2", b"READY")
    desk.post.flush()
    (given,) = desk.told(b"s2", b"WORK")
    assert [each["order_id"] for each in given["orders"]] == ["o2"]


def test_a_suppliers_hello_that_another_has_overtaken(desk: Counter) -> None:
    """It names no lease, and is not believed: the order would be made twice, into one slot.

    Of connections that were given up one after the other, the broker may read the last one first.
    """
    (work,) = desk.told(b"s1", b"WORK")[0]["orders"]
    hello = {"protocol": 2, "session": b"s" * 16, "product_ids": ["a"]}
    desk.supplier(b"s3", b"HELLO", seq=9, holds=[work["lease"]], **hello)
    desk.supplier(b"s3", b"READY")
    desk.supplier(b"s2", b"HELLO", seq=5, **hello)
    desk.supplier(b"t", b"HELLO", seq=1, **hello | {"session": b"t" * 16})
    desk.supplier(b"t", b"READY")
    desk.post.flush()
    (refusal,) = desk.told(b"s2", b"REPLY")
    assert (refusal["seq"], refusal["code"]) == (5, "stale_hello")
    assert [order["order_id"] for order in desk.told(b"t", b"WORK")[0]["orders"]] == ["o2"]
    desk.supplier(b"s3", b"DONE", results=[{"order_id": "o1", "lease": work["lease"]}])
    desk.post.flush()
    (fulfilled,) = desk.told(b"c1", b"FULFILLED")
    assert [each["order_id"] for each in fulfilled["orders"]] == ["o1"]


def test_a_clients_hello_that_another_has_overtaken(desk: Counter) -> None:
    """It knows of no order, and cancels none; what comes goes to the connection that is newest."""
    (work,) = desk.told(b"s1", b"WORK")[0]["orders"]
    hello = {"protocol": 2, "session": b"c" * 16}
    desk.client(b"c3", b"HELLO", seq=9, open_orders=["o1", "o2"], **hello)
    desk.client(b"c2", b"HELLO", seq=5, open_orders=[], last_push=0, **hello)
    (refusal,) = desk.told(b"c2", b"REPLY")
    assert (refusal["seq"], refusal["code"]) == (5, "stale_hello")
    desk.supplier(b"s1", b"DONE", results=[{"order_id": "o1", "lease": work["lease"]}])
    desk.post.flush()
    assert desk.told(b"c2", b"FULFILLED") == []
    assert len(desk.told(b"c3", b"FULFILLED")) == 1
    assert [order["order_id"] for order in desk.told(b"s1", b"WORK")[1]["orders"]] == ["o2"]


def test_a_supplier_that_is_closed_while_a_function_writes() -> None:
    """Its order goes to another, in another slot: the function cannot be kept from writing on."""
    writing, go_on, has_written = threading.Event(), threading.Event(), threading.Event()

    def late(work: Work, out: memoryview) -> int:
        writing.set()
        go_on.wait()
        out[:4] = b"late"
        has_written.set()
        return 4

    def swift(work: Work, out: memoryview) -> int:
        out[:4] = b"good"
        return 4

    with (
        Broker(ANY, ANY) as broker,
        Client(broker.frontend, ShmMedium.create(slot_nbytes=4, slots=1)) as client,
        Supplier(broker.backend, {"a": swift}) as other,
        Supplier(broker.backend, {"a": late}) as supplier,
    ):
        supplier.start()
        order = client.order("a")
        writing.wait()
        closing = threading.Thread(target=supplier.close)
        closing.start()
        other.start()
        with order.result(timeout_s=30) as product:
            go_on.set()
            has_written.wait()
            assert product.bytes() == b"good"
        closing.join()


def test_what_is_given_at_once_fits_into_messages() -> None:
    """Names may have 16 KiB each: all work in one message would be one that no peer takes.

    The supplier's connection would break, it would come back, be given all of it again, and so on.
    """
    counter = Counter()
    counter.client(b"c", b"HELLO", protocol=2, seq=1, session=b"c" * 16)
    place = {"address": "nowhere", "offset": 0, "nbytes": 64, "product_id": "a"}
    for start in range(0, 1000, 100):
        orders = [{"order_id": f"o{n}"} | place for n in range(start, start + 100)]
        counter.client(b"c", b"ORDERS", orders=orders, seq=2)
    counter.supplier(
        b"s", b"HELLO", protocol=2, seq=1, session=b"s" * 16, product_ids=["a"], credit=2000
    )
    counter.supplier(b"s", b"READY")
    counter.post.flush()
    work = [orders["orders"] for orders in counter.told(b"s", b"WORK")]
    assert sum(map(len, work)) == 1000
    assert max(map(len, work)) <= 128
    results = [
        {"order_id": order["order_id"], "lease": order["lease"]} for some in work for order in some
    ]
    counter.supplier(b"s", b"DONE", results=results)
    counter.post.flush()
    fulfilled = counter.told(b"c", b"FULFILLED")
    assert [push["push"] for push in fulfilled] == list(range(1, len(fulfilled) + 1))
    assert sum(len(push["orders"]) for push in fulfilled) == 1000
    assert max(len(push["orders"]) for push in fulfilled) <= 128


def test_a_broker_leaves_no_file(tmp_path: Path) -> None:
    with Broker(f"ipc://{tmp_path}/f", f"ipc://{tmp_path}/b"):
        assert list(tmp_path.iterdir())
    assert not list(tmp_path.iterdir())
