"""Brokers that die and come back, and markets whose parties start in any order.

The broker keeps nothing on disk. Whoever finds another one at its endpoint tells it what it wants
and what it can make; orders go on in slots that nobody was told of before.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations
from typing import Any

import pytest

from tests.integration.market_processes import (
    Market,
    Nursery,
    acquainted,
    held_by,
    names,
    served_by,
    until,
    until_held,
    until_progress,
)
from tests.integration.market_products import check_served


@pytest.fixture(params=["tcp shm", "ipc file", "tcp tcp"])
def market(request: pytest.FixtureRequest, nursery: Nursery) -> Iterator[Market]:
    """Over what messages go, and over what products."""
    with Market(nursery, *request.param.split()) as market:
        yield market


def restart(market: Market) -> None:
    """SIGKILL, and another on the same endpoints."""
    market.kill(market.broker)
    market.start_broker()


def test_a_broker_that_is_killed_again_and_again_under_load(market: Market) -> None:
    """Nothing is lost and nothing served twice; what was under way goes on in fresh slots.

    Those that were told of before are let go of by everybody.
    """
    market.start_broker()
    suppliers = [
        market.supplier(f"{name}:.*|[ab]/.*", name=name, credit=4, in_place=name == "t")
        for name in "st"
    ]
    clients = [market.client(name=name) for name in "ab"]
    first = [product for client in clients for product in acquainted(client, "s", "t")]
    for client, name in zip(clients, "ab", strict=True):
        client.ask("stream", products=names(name, 700))
    for turn in range(1, 6):
        until_progress(80 * turn, *clients)
        if turn == 1:
            before = held_by(*suppliers, *clients)
        restart(market)
    until_progress(702, *clients)
    check_served(served_by(*clients), [*first, *names("a", 700), *names("b", 700)])
    for client in clients:
        figures = client.ask("figures")
        assert figures["restarted"] >= 1
        assert figures["corrupt"] == 0
    until_held(before, *suppliers, *clients)


def test_a_product_that_is_being_made_when_the_broker_is_killed(market: Market) -> None:
    """It is dropped, and made again in another slot: late bytes never show in what is served."""
    market.start_broker()
    first = market.supplier(name="first", in_place=True)
    client = market.client(slots=2)
    client.ask("order", products=["hold:p"])
    until(lambda: first.ask("calls"))
    restart(market)
    market.until(lambda stats: stats["suppliers"]["connected"] == 1)
    second = market.supplier(name="second", in_place=True)
    second.ask("release")
    assert client.ask("borrow", product="hold:p")[1] == "second"
    first.ask("release")
    client.ask("stream", products=names("q", 30), prefetch=1)
    until_progress(31, client)
    assert client.ask("unchanged")
    client.ask("give_back")
    check_served(served_by(client), ["hold:p", *names("q", 30)])
    assert client.ask("figures")["corrupt"] == 0
    # Who was making it is given new work.
    market.kill(second)
    client.ask("order", products=["r"])
    assert client.ask("take", products=["r"])[0][1] == "first"


def test_a_broker_that_is_gone_for_a_while(market: Market) -> None:
    """Everybody waits for it; a client that orders meanwhile is served when it is back."""
    market.start_broker()
    market.supplier(name="s")
    client = market.client()
    client.ask("order", products=names("p", 8))
    client.ask("take", products=["p/0"])
    market.kill(market.broker)
    client.begin("order", products=["q"])
    late = market.client(name="late")
    late.begin("order", products=["r"])
    market.supplier(name="t", wait=False)
    market.start_broker()
    client.finish()
    late.finish()
    client.ask("take", products=[*names("p", 8)[1:], "q"])
    late.ask("take", products=["r"])
    check_served(served_by(client, late), [*names("p", 8), "q", "r"])
    market.until(lambda stats: stats["suppliers"]["connected"] == 2)


def test_a_client_that_does_not_wait_for_a_broker(market: Market) -> None:
    """It is told that there is none; its orders stay open, and are placed again when there is."""
    market.start_broker()
    client = market.client(timeout_s=0.5)
    # A busy machine may need longer than that to connect.
    until(lambda: client.ask("raises", product="first")["error"] is None)
    client.ask("order", products=["p", "q"])
    market.kill(market.broker)
    assert client.ask("miss", product="p") == "BrokerUnavailable"
    assert client.ask("miss", product="p") == "BrokerUnavailable"
    market.start_broker()
    market.supplier()
    market.until(lambda stats: stats["orders"]["placed"] == 2)
    client.ask("take", products=["p", "q"])
    check_served(served_by(client), ["p", "q"])


def test_products_in_hand_over_many_restarts(market: Market) -> None:
    """Each keeps its bytes, and the memory that it is in; what nobody looks at is let go of."""
    market.start_broker()
    market.supplier(name="s")
    client = market.client(slots=8)
    for turn in range(6):
        client.ask("order", products=[f"p/{turn}", f"q/{turn}", f"r/{turn}"])
        client.ask("borrow", product=f"p/{turn}")
        restart(market)
        client.ask("take", products=[f"q/{turn}", f"r/{turn}"])
        assert client.ask("unchanged")
        if turn % 3 == 2:
            client.ask("give_back")
    client.ask("stream", products=names("s", 50))
    until_progress(6 * 3 + 50, client)
    ordered = [f"{letter}/{turn}" for letter in "pqr" for turn in range(6)]
    check_served(served_by(client), [*ordered, *names("s", 50)])


def test_ending_without_a_broker(market: Market) -> None:
    """Whoever waits for one that never came, or for one that is gone, ends when told to."""
    parties = [market.supplier(wait=False), market.client()]
    parties[1].begin("order", products=["p"])
    market.start_broker()
    parties[1].finish()
    market.kill(market.broker)
    parties += [market.supplier(wait=False), market.client()]
    parties[3].begin("order", products=["q"])
    until(lambda: parties[0].ask("hears") and parties[2].ask("hears"))
    for party in parties:
        party.terminate()
    assert [party.ended() for party in parties] == [0] * 4


def test_orders_keep_what_they_were_given_over_a_restart(market: Market) -> None:
    """Priorities and who was first are told to the new broker, too."""
    market.start_broker()
    client = market.client()
    client.ask("order", products=names("low", 3), priority=-1)
    client.ask("order", products=names("p", 3))
    client.ask("order", products=names("high", 3), priority=1)
    market.until(lambda stats: stats["orders"]["queued"] == 9)
    restart(market)
    market.until(lambda stats: stats["orders"]["queued"] == 9)
    supplier = market.supplier()
    ordered = [*names("high", 3), *names("p", 3), *names("low", 3)]
    client.ask("take", products=ordered)
    assert supplier.ask("calls") == ordered
    check_served(served_by(client), ordered)


@pytest.mark.parametrize(
    "order", list(permutations(["broker", "supplier", "client"])), ids="-".join
)
def test_any_order_of_starting(market: Market, order: tuple[str, ...]) -> None:
    """Nobody hangs for good, and nobody needs another to be there first."""
    client: Any = None
    for party in order:
        if party == "broker":
            market.start_broker()
        elif party == "supplier":
            market.supplier(wait=False)
        else:
            client = market.client()
            client.begin("order", products=names("p", 10))
    client.finish()
    client.ask("take", products=names("p", 10))
    check_served(served_by(client), names("p", 10))
