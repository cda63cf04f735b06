"""Many parties at once, many orders at once, and names that few would choose."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.market_processes import (
    Market,
    Nursery,
    names,
    served_by,
    until_progress,
)
from tests.integration.market_products import check_served


@pytest.fixture
def market(nursery: Nursery) -> Iterator[Market]:
    with Market(nursery) as market:
        yield market


def test_two_hundred_suppliers_that_join_at_once(market: Market) -> None:
    """Before there is a broker; and then again, when another takes its place."""
    crowds = [market.supplier(name=f"s{number}", many=50, wait=False) for number in range(4)]
    market.start_broker()
    for crowd in crowds:
        crowd.ask("registered")
    market.until(lambda stats: stats["suppliers"]["ready"] == 200)
    client = market.client(slots=256)
    client.ask("order", products=names("p", 256))
    client.ask("take", products=names("p", 256))
    market.kill(market.broker)
    market.start_broker()
    market.until(lambda stats: stats["suppliers"]["ready"] == 200)
    client.ask("order", products=names("q", 256))
    client.ask("take", products=names("q", 256))
    check_served(served_by(client), names("p", 256) + names("q", 256))


def test_fifty_clients_at_once(market: Market) -> None:
    """Each is served all that it ordered, over a broker's death in the middle of it."""
    market.start_broker()
    for name in ("s", "t"):
        market.supplier(name=name, credit=16)
    crowds = [market.client(name=name, many=25, slots=8) for name in "ab"]
    for crowd in crowds:
        crowd.ask("streams", count=60)
    until_progress(300, *crowds)
    market.kill(market.broker)
    market.start_broker()
    until_progress(25 * 60, *crowds)
    clients = [name if number == 0 else f"{name}-{number}" for name in "ab" for number in range(25)]
    check_served(served_by(*crowds), [p for client in clients for p in names(client, 60)])


def test_ten_thousand_orders_in_flight(market: Market) -> None:
    """They are placed again when the broker dies, and each is served once."""
    market.start_broker()
    client = market.client(slots=10_000, slot_nbytes=128)
    client.ask("order", products=names("p", 10_000))
    market.until(lambda stats: stats["orders"]["queued"] == 10_000)
    market.kill(market.broker)
    market.start_broker()
    market.until(lambda stats: stats["orders"]["queued"] == 10_000)
    for name in ("s", "t"):
        market.supplier(name=name, credit=64, nbytes=128)
    client.ask("take", products=names("p", 10_000))
    check_served(served_by(client), names("p", 10_000))
    stats = market.stats()
    assert (stats["orders"]["open"], stats["orders"]["fulfilled"]) == (0, 10_000)


def test_a_thousand_long_names_for_one_supplier(market: Market) -> None:
    """What it is given at once is more than a message may have: it comes in several."""
    market.start_broker()
    client = market.client(slots=1200, slot_nbytes=20_000)
    client.ask("order", products=names("p", 1200), pad=4096)
    market.until(lambda stats: stats["orders"]["queued"] == 1200)
    market.supplier(credit=2000)
    client.ask("take", products=names("p", 1200))
    check_served(served_by(client), names("p", 1200))


ODD_NAMES = [
    " ",
    " a b  c ",
    "ñandú, año, Ñ",
    "a\u0301 and \u00e1",
    "emoji 🐳🏴‍☠️ and 漢字",
    "tab\there",
    "quote ' and \" and \\ and {x} and %s",
    "x" * 4096,
    "🐳" * 4096,
]


def test_odd_names(market: Market) -> None:
    """Spaces, accents, emoji and 4,096 characters are names like any others."""
    market.start_broker()
    client = market.client(slot_nbytes=20_000)
    market.supplier("[ñÑ].*|.*\\p{Han}", ".*")
    client.ask("order", products=ODD_NAMES)
    client.ask("take", products=ODD_NAMES)
    check_served(served_by(client), ODD_NAMES)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("x" * 4097, "a product id has at most 4096 characters, got 4097"),
        ("🐳" * 5000, "a product id has at most 4096 characters, got 5000"),
        ("\ud83d", "is not text"),
    ],
    ids=["one too long", "much too long", "half a character"],
)
def test_names_that_are_none(market: Market, name: str, said: str) -> None:
    """They are refused where they are given, and cost nothing."""
    market.start_broker()
    client = market.client()
    market.supplier()
    answer = client.ask("raises", product=name)
    assert answer["error"] == "ConfigurationError"
    assert said in answer["said"]
    client.ask("order", products=["p"])
    client.ask("take", products=["p"])
    assert client.ask("figures")["free"] == 16
