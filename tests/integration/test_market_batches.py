"""Suppliers that make many orders in one call, as processes that are killed, told to end, or left.

What holds for one order in hand holds for each of a call: none is lost, none is served twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.market_processes import (
    Market,
    Nursery,
    names,
    served_by,
    until,
    until_progress,
)
from tests.integration.market_products import check_served

BATCH = 8
HELD = ["hold:p", *names("p", BATCH - 1)]
"""Orders that come in one message, so that one call gets them; it waits in their first."""


@pytest.fixture(params=["tcp shm", "ipc file", "tcp tcp"])
def market(request: pytest.FixtureRequest, nursery: Nursery) -> Iterator[Market]:
    """Over what messages go, and over what products."""
    with Market(nursery, *request.param.split()) as market:
        market.start_broker()
        yield market


@pytest.mark.parametrize("in_place", [False, True], ids=["returned", "filled"])
def test_killed_in_the_middle_of_a_call_it_costs_each_order_of_it_another_slot(
    market: Market, in_place: bool
) -> None:
    client = market.client()
    doomed = market.supplier(name="doomed", batch=BATCH, in_place=in_place)
    client.ask("order", products=HELD)
    until(lambda: doomed.ask("calls"))
    market.kill(doomed)
    heir = market.supplier(name="heir", batch=BATCH, in_place=in_place)
    heir.ask("release")
    assert {made[1] for made in client.ask("take", products=HELD)} == {"heir"}
    check_served(served_by(client), HELD)
    # Over TCP the slots can be taken from whoever was told of them.
    assert client.ask("figures")["retired"] == (0 if market.medium == "tcp" else BATCH)


def test_killed_suppliers_of_batches(market: Market) -> None:
    """One after the other while they work, and others come."""
    suppliers = [market.supplier(name=f"s{number}", batch=4) for number in range(2)]
    clients = [market.client(name=name) for name in ("a", "b")]
    for client, name in zip(clients, "ab", strict=True):
        client.ask("stream", products=names(name, 400))
    for number in range(1, 5):
        until_progress(60 * number, *clients)
        market.kill(suppliers.pop(0))
        suppliers.append(market.supplier(name=f"s{number + 1}", batch=4))
    until_progress(400, *clients)
    check_served(served_by(*clients), names("a", 400) + names("b", 400))


def test_told_to_end_it_finishes_the_call_and_the_rest_goes_to_others(market: Market) -> None:
    """At once, while the call is still under way."""
    client = market.client()
    leaving = market.supplier(name="leaving", batch=BATCH, credit=BATCH + 4)
    rest = names("q", 4)
    client.ask("order", products=HELD + rest)
    until(lambda: leaving.ask("calls"))
    assert client.ask("drain") == 1
    market.supplier(name="other", batch=BATCH).ask("release")
    assert {made[1] for made in client.ask("take", products=rest)} == {"other"}
    leaving.ask("release")
    assert {made[1] for made in client.ask("take", products=HELD)} == {"leaving"}
    assert leaving.ended() == 0
    check_served(served_by(client), HELD + rest)
    stats = market.until(lambda stats: stats["suppliers"]["connected"] == 1)
    assert (set(stats["dropped"]), stats["orders"]["failed"]) == ({"left"}, 0)
    assert client.ask("figures")["retired"] == 0


def test_a_broker_that_restarts_has_each_order_of_a_call_served_once(market: Market) -> None:
    """What is in hand then belongs to nobody; READY comes when the hand is empty."""
    client = market.client(slots=32)
    supplier = market.supplier(name="s", batch=BATCH)
    client.ask("order", products=HELD)
    until(lambda: supplier.ask("calls"))
    market.kill(market.broker)
    market.start_broker()
    market.until(lambda stats: stats["orders"]["queued"] == BATCH)
    supplier.ask("release")
    client.ask("take", products=HELD)
    check_served(served_by(client), HELD)
    assert len(supplier.ask("calls")) == 2 * BATCH


def test_one_that_fails_fails_alone_and_a_call_that_fails_fails_all(market: Market) -> None:
    client = market.client()
    market.supplier("raise:.*|p/.*", name="s", batch=BATCH)
    client.ask("order", products=["p/0", "raise:q", "p/1"])
    failed = client.ask("fail", product="raise:q")
    assert failed["reason"] == "attempts"
    assert set(failed["attempts"]) == {"s: ValueError: s does not make that"}
    client.ask("take", products=["p/0", "p/1"])
    check_served(served_by(client), ["p/0", "p/1"])


def test_stopped_for_longer_than_dead_what_it_writes_late_is_not_served(nursery: Nursery) -> None:
    """Each order of the call moves to another slot, and the zombie's writes show nowhere."""
    settings: dict[str, Any] = {"beat_s": 0.1, "suspect_s": 0.3, "dead_s": 0.8}
    with Market(nursery, "tcp", "shm", **settings) as market:
        market.start_broker()
        client = market.client(slots=32)
        zombie = market.supplier(name="zombie", batch=BATCH, in_place=True)
        client.ask("order", products=HELD)
        until(lambda: zombie.ask("calls"))
        zombie.stop()
        market.until(lambda stats: stats["suppliers"]["connected"] == 0)
        heir = market.supplier(name="heir", batch=BATCH, in_place=True)
        heir.ask("release")
        assert {made[1] for made in client.ask("take", products=HELD)} == {"heir"}
        zombie.resume()
        zombie.ask("release")
        until(lambda: len(zombie.ask("calls")) == BATCH)
        client.ask("order", products=names("q", 24))
        client.ask("take", products=names("q", 24))
        check_served(served_by(client), HELD + names("q", 24))
