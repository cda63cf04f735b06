"""softs' own Client, Supplier and loader, in their own environment, against our broker."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.integration.softs_market import (
    NBYTES,
    SLOTS,
    SPECS,
    Market,
    all_free,
    given_settings,
    market,
    read,
    settings,
    softs,
    take_all,
)
from tests.peer.host import Host
from tests.peer.payload import payload
from tests.peer.raw import canary
from tests.peer.waiting import until
from tests.unit.market import make_vectors

__all__ = ["market", "settings", "softs"]  # fixtures

pytestmark = [pytest.mark.peer, pytest.mark.timeout(120, func_only=True)]


# --- saying hello, ordering, having -----------------------------------------------------


def test_hello(market: Market) -> None:
    first, second = market.client(), market.client()
    market.supplier("a")
    ids = {first.ask("hello"), second.ask("hello")}
    assert len(ids) == 2
    assert all(isinstance(peer_id, int) for peer_id in ids)


@pytest.mark.parametrize("medium", ["tcp", "shm", "file"])
def test_orders_are_served_with_the_right_bytes(market: Market, medium: str) -> None:
    client = market.client(medium=medium)
    market.supplier(r"layer_\d+", name="s", medium=medium)
    for number in range(2 * SLOTS):
        slot = client.ask("sample", product=f"layer_{number}", timeout_ms=10_000)
        assert read(client, slot) == payload(f"layer_{number}", "s", NBYTES)


def test_many_at_once(market: Market) -> None:
    client = market.client()
    products = [f"layer_{number}" for number in range(SLOTS)]
    for product in products:
        assert client.ask("order", product=product)
    assert client.ask("order", product="layer_99") is None  # no slot is free
    market.supplier(r"layer_\d+", name="s")
    for slot in sorted(take_all(client, SLOTS)):
        assert read(client, slot) == payload(products[slot], "s", NBYTES)


def test_each_supplier_serves_its_patterns(market: Market) -> None:
    client = market.client()
    market.supplier(r"a\d", "c", name="of-a")
    market.supplier(r"b\d", name="of-b")
    for product, supplier in (("a1", "of-a"), ("b1", "of-b"), ("c", "of-a")):
        slot = client.ask("sample", product=product, timeout_ms=10_000)
        assert read(client, slot) == payload(product, supplier, NBYTES)


@pytest.mark.parametrize("hello", [True, False])
def test_two_clients_with_the_same_order_ids(market: Market, hello: bool) -> None:
    # Without HELLO all of the peer's clients say cNone-1, cNone-2, ...
    first, second = market.client(hello=hello), market.client(hello=hello)
    ids = [client.ask("order", product=f"p{n}") for n, client in enumerate((first, second))]
    assert hello or ids == ["cNone-1"] * 2
    market.supplier(r"p\d", name="s")
    for number, client in enumerate((first, second)):
        (slot,) = take_all(client, 1)
        assert read(client, slot) == payload(f"p{number}", "s", NBYTES)


# --- taking back ------------------------------------------------------------------------


def test_discard_names_what_was_queued_and_lets_the_rest_end(market: Market) -> None:
    client = market.client()
    supplier = market.supplier("p", hold="p")
    client.ask("order", product="p")
    until(lambda: supplier.ask("calls"))
    for _ in range(3):
        client.ask("order", product="p")
    assert client.ask("discard") == 3
    assert client.ask("slots") == {"free": SLOTS - 1, "pending": 1, "completed": 0}
    supplier.ask("release")
    all_free(client)
    assert supplier.ask("calls") == ["p"]


def test_cancel_what_waits(market: Market) -> None:
    client = market.client()
    order_id = client.ask("order", product="p")
    assert client.ask("cancel", order_id=order_id)["ok"]
    stats = client.ask("stats")
    assert stats["pending_orders"] == 0
    again = client.ask("cancel", order_id=order_id)
    assert not again["ok"]
    assert again["error"]


def test_cancel_what_is_dispatched_is_refused(market: Market) -> None:
    client = market.client()
    supplier = market.supplier("p", hold="p")
    order_id = client.ask("order", product="p")
    until(lambda: supplier.ask("calls"))
    refused = client.ask("cancel", order_id=order_id)
    assert not refused["ok"]
    assert refused["error"] == "Order already dispatched"
    supplier.ask("release")
    assert len(take_all(client, 1)) == 1


def test_cancel_of_anothers_order_is_refused(market: Market) -> None:
    first, second = market.client(), market.client()
    order_id = first.ask("order", product="p")
    assert not second.ask("cancel", order_id=order_id)["ok"]
    assert first.ask("stats")["pending_orders"] == 1


# --- failing ----------------------------------------------------------------------------


def test_a_failing_function_is_retried_elsewhere(market: Market) -> None:
    client = market.client()
    bad = market.supplier("p", name="bad", fail="p")
    good = market.supplier("p", name="good")
    until(lambda: client.ask("stats")["available_suppliers"], lambda ready: ready == 2)
    for _ in range(4):
        slot = client.ask("sample", product="p", timeout_ms=10_000)
        assert read(client, slot) == payload("p", "good", NBYTES)
    assert 1 <= len(bad.ask("calls")) <= 4
    assert good.ask("calls") == ["p"] * 4


@given_settings(max_order_attempts=3)
def test_an_order_is_given_up_and_the_client_is_told(market: Market) -> None:
    client = market.client()
    supplier = market.supplier("p", fail="p")
    client.ask("order", product="p")
    all_free(client)
    assert supplier.ask("calls") == ["p"] * 3
    assert client.ask("completed") is None
    stats = client.ask("stats")
    assert (stats["pending_orders"], stats["total_completed"]) == (0, 0)


# --- counting ---------------------------------------------------------------------------


def test_stats_have_the_peers_fields(market: Market) -> None:
    client, other = market.client(), market.client()
    assert client.ask("stats") == {
        "ok": True,
        "pending_orders": 0,
        "available_suppliers": 0,
        "connected_clients": 2,
        "connected_suppliers": 0,
        "total_completed": 0,
        "product_ids": [],
    }
    busy = market.supplier("a", r"b\d+", hold="a")
    market.supplier("c", r"b\d+")
    assert client.ask("sample", product="c", timeout_ms=10_000) is not None
    client.ask("order", product="a")
    other.ask("order", product="nobody's")
    until(lambda: busy.ask("calls"))
    stats = until(lambda: client.ask("stats"), lambda said: said["available_suppliers"] == 1)
    assert sorted(stats.pop("product_ids")) == ["a", r"b\d+", "c"]
    assert stats == {
        "ok": True,
        "pending_orders": 2,
        "available_suppliers": 1,
        "connected_clients": 2,
        "connected_suppliers": 2,
        "total_completed": 1,
    }


def test_patterns_of_suppliers_that_left_are_not_in_stats(market: Market) -> None:
    client = market.client()
    market.supplier("a").ask("stop")
    stats = until(lambda: client.ask("stats"), lambda said: said["connected_suppliers"] == 0)
    assert stats["product_ids"] == []


def test_hello_three_times_is_one_client(market: Market) -> None:
    client = market.client()
    ids = {client.ask("hello") for _ in range(3)}
    assert len(ids) == 1
    assert client.ask("stats")["connected_clients"] == 1


# --- leaving and dying ------------------------------------------------------------------


def test_goodbye_queues_again_at_once(market: Market) -> None:
    client = market.client()
    leaving = market.supplier("p", name="leaving", hold="p")
    client.ask("order", product="p")
    until(lambda: leaving.ask("calls"))
    market.supplier("p", name="staying")
    # It says GOODBYE, and then waits two seconds for the function that it is in.
    leaving.begin("stop", release=False)
    (slot,) = take_all(client, 1)
    assert read(client, slot) == payload("p", "staying", NBYTES)
    leaving.finish()


@given_settings(beat_s=0.05, suspect_s=0.1, dead_s=0.2)
def test_an_idle_supplier_is_kept(market: Market) -> None:
    """The peer drops it after 60 s. Here even thrice the time that ends a silent one does not."""
    client = market.client()
    market.supplier("p", name="idle")
    for _ in range(3):
        canary(market.broker.frontend, market.broker.backend)
    slot = client.ask("sample", product="p", timeout_ms=10_000)
    assert read(client, slot) == payload("p", "idle", NBYTES)


@given_settings(v1_order_timeout_s=1.0, beat_s=0.05)
def test_a_supplier_over_its_time_keeps_its_place(market: Market) -> None:
    """The peer ignores it for ever after. Here its next READY counts as any other."""
    client = market.client()
    slow = market.supplier("p", name="slow", hold="p")
    client.ask("order", product="p")
    until(lambda: slow.ask("calls"))
    quick = market.supplier("p", name="quick")
    (slot,) = take_all(client, 1)
    assert read(client, slot) == payload("p", "quick", NBYTES)
    quick.ask("stop")
    slow.ask("release")
    slot = client.ask("sample", product="p", timeout_ms=10_000)
    assert read(client, slot) == payload("p", "slow", NBYTES)


def test_a_killed_clients_orders_are_cancelled(market: Market) -> None:
    watcher = market.raw_v1()
    client = market.client()
    for _ in range(3):
        client.ask("order", product="p")
    assert watcher.ask(b"STATS")["pending_orders"] == 3
    client.kill()
    until(lambda: watcher.ask(b"STATS")["pending_orders"], lambda count: count == 0)
    assert watcher.ask(b"STATS")["connected_clients"] == 1


@pytest.mark.parametrize("medium", ["tcp", "file"])
def test_a_killed_suppliers_order_is_queued_again(market: Market, medium: str) -> None:
    # Not shm: the peer's supplier takes the client's segment with it when it dies.
    client = market.client(medium=medium)
    doomed = market.supplier("p", name="doomed", hold="p", medium=medium)
    client.ask("order", product="p")
    until(lambda: doomed.ask("calls"))
    market.supplier("p", name="spare", medium=medium)
    doomed.kill()
    (slot,) = take_all(client, 1)
    assert read(client, slot) == payload("p", "spare", NBYTES)


# --- versions apart ---------------------------------------------------------------------


def test_version_1_orders_never_go_to_version_2_suppliers(market: Market) -> None:
    newer = market.raw_supplier(".*")
    client = market.client()
    client.ask("order", product="p")
    assert newer.settled() == []
    assert client.ask("stats")["pending_orders"] == 1
    market.supplier(".*", name="older")
    (slot,) = take_all(client, 1)
    assert read(client, slot) == payload("p", "older", NBYTES)
    assert newer.settled() == []


def test_version_2_orders_never_go_to_version_1_suppliers(market: Market) -> None:
    older = market.supplier(".*")
    client = market.raw_client()
    client.order("o-1", "p")
    assert client.ask(b"STATS")["stats"]["orders"]["queued"] == 1
    newer = market.raw_supplier(".*")
    newer.done(newer.work(), nbytes=NBYTES, checksum=1)
    assert client.fulfilled("o-1")["nbytes"] == NBYTES
    assert older.ask("calls") == []


def test_drain_sends_version_1_suppliers_home(market: Market) -> None:
    market.supplier("p")
    client = market.raw_client()
    assert client.ask(b"DRAIN")["terminated"] == 1
    until(lambda: client.ask(b"STATS")["stats"]["suppliers"]["connected"], lambda n: n == 0)


# --- the loader -------------------------------------------------------------------------


def test_the_dataset_gets_what_it_asks_for(market: Market) -> None:
    market.supplier(r"layer_\d+", specs=SPECS)
    dataset = market.loader("layer_3")
    assert dataset.ask("next", count=20) == [{"x": [[3.0] * 3] * 2, "y": [3] * 4}] * 20
    dataset.ask("set_model", product="layer_5")
    assert dataset.ask("next", count=20) == [{"x": [[5.0] * 3] * 2, "y": [5] * 4}] * 20


def test_the_loader_gets_what_it_asks_for(market: Market) -> None:
    market.supplier(r"layer_\d+", specs=SPECS)
    loader = market.loader("layer_3", batch_size=4)
    batch = {"x": [[[3.0] * 3] * 2] * 4, "y": [[3] * 4] * 4}
    assert loader.ask("next", count=5) == [batch] * 5


# --- the vectors ------------------------------------------------------------------------

VECTORS = [
    vector
    for vector in json.loads(make_vectors.PATH.read_text())["vectors"]
    if vector["version"] == 1
]
CHECKS = {"V1Order": "OrderRequest", "V1Cancel": "OrderCancel", "V1Done": "OrderDone"} | {
    "V1Work": "OrderWork"
}


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: str(vector["name"]))
def test_the_vectors_are_the_peers_own_messages(softs: Host, vector: dict[str, Any]) -> None:
    with softs.start("tests.peer.softs_wire") as wire:
        frames, fields = vector["frames"], vector["fields"]
        if vector["command"] is None:
            assert wire.ask("read_answer", frames=frames) == fields
            return
        assert wire.ask("request", command=vector["command"], fields=fields) == frames
        assert wire.ask("read_request", frames=frames) == [vector["command"], fields]
        if vector["struct"] in CHECKS:
            wire.ask("accept", kind=CHECKS[vector["struct"]], fields=fields)
