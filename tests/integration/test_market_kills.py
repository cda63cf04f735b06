"""Brokers, suppliers and clients that are killed, or told to end, in the middle of their work.

Each time: no order is lost and none is served twice, what is served is what was ordered, the others
go on, and nobody has to do anything for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.market_processes import (
    Market,
    Nursery,
    Party,
    names,
    served_by,
    until,
    until_progress,
)
from tests.integration.market_products import check_served


@pytest.fixture
def settings() -> dict[str, Any]:
    """The broker's; ``given_settings`` changes them for a test."""
    return {}


def given_settings(**settings: Any) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("settings", [settings], ids=[""])


@pytest.fixture(params=["tcp shm", "ipc file", "tcp tcp"])
def market(
    request: pytest.FixtureRequest, nursery: Nursery, settings: dict[str, Any]
) -> Iterator[Market]:
    """Over what messages go, and over what products."""
    with Market(nursery, *request.param.split(), **settings) as market:
        yield market


def two_streams(market: Market, count: int) -> list[Party]:
    """Clients a and b, each of which takes ``count`` products."""
    clients = [market.client(name=name) for name in ("a", "b")]
    for client, name in zip(clients, "ab", strict=True):
        client.ask("stream", products=names(name, count))
    return clients


def test_killed_suppliers(market: Market) -> None:
    """Suppliers die one after the other while they work, and others come."""
    market.start_broker()
    suppliers = [market.supplier(name=f"s{number}") for number in range(2)]
    clients = two_streams(market, 400)
    for number in range(1, 5):
        until_progress(60 * number, *clients)
        market.kill(suppliers.pop(0))
        suppliers.append(market.supplier(name=f"s{number + 1}"))
    until_progress(400, *clients)
    check_served(served_by(*clients), names("a", 400) + names("b", 400))


def test_the_last_supplier_is_killed(market: Market) -> None:
    """Its order waits for the next one, in another slot, and no client has to ask again."""
    market.start_broker()
    client = market.client()
    last = market.supplier(name="last")
    client.ask("order", products=["hold:p", "q"])
    until(lambda: last.ask("calls"))
    market.kill(last)
    market.until(lambda stats: stats["suppliers"]["connected"] == 0)
    next_one = market.supplier(name="next")
    next_one.ask("release")
    assert [made[1] for made in client.ask("take", products=["hold:p", "q"])] == ["next", "next"]
    # Over TCP the slot can be taken from whoever was told of it.
    assert client.ask("figures")["retired"] == (market.medium != "tcp")


@given_settings(client_grace_s=0.2)
def test_a_killed_client(market: Market) -> None:
    """Its orders end, its file goes with the next client, and another's are served meanwhile."""
    market.start_broker()
    suppliers = [market.supplier(name=name) for name in ("s", "t")]
    doomed, other = two_streams(market, 400)
    until_progress(50, doomed, other)
    file = market.file_of(doomed)
    doomed.stop()  # not between two orders
    market.kill(doomed)
    stats = market.until(lambda stats: len(stats["clients"]["list"]) == 2)  # one is who asks
    assert {each["name"] for each in stats["clients"]["list"]} == {"b", ""}

    def swept() -> bool:
        """Who sweeps leaves to another what that one is just looking at."""
        market.sweep()
        return not file.exists()

    until(swept)
    until_progress(400, other)
    check_served(served_by(other), names("b", 400))
    market.until(lambda stats: stats["orders"]["open"] == 0)
    for supplier in suppliers:
        until(lambda: supplier.ask("resources")["segments"], lambda mapped: mapped <= 1)  # noqa: B023


def test_a_supplier_that_is_told_to_end(market: Market) -> None:
    """It finishes what it has begun, and exits with 0. Another has at once what else it held."""
    market.start_broker()
    ending = market.supplier(name="ending", credit=3)
    client = market.client()
    client.ask("order", products=["hold:p", "q", "r"])
    until(lambda: ending.ask("calls"))
    market.until(lambda stats: stats["orders"]["in_flight"] == 3)
    market.supplier(name="spare")
    ending.terminate()
    assert [made[1] for made in client.ask("take", products=["q", "r"])] == ["spare"] * 2
    client.ask("order", products=["s"])
    assert client.ask("take", products=["s"])[0][1] == "spare"
    assert ending.alive
    assert ending.ask("calls") == ["hold:p"]
    ending.ask("release")
    assert ending.ended() == 0
    assert client.ask("take", products=["hold:p"])[0][1] == "ending"
    assert client.ask("figures")["retired"] == 0
    stats = market.until(lambda stats: stats["suppliers"]["connected"] == 1)
    assert set(stats["dropped"]) == {"left"}
    assert (stats["orders"]["fulfilled"], stats["orders"]["failed"]) == (4, 0)


def test_a_supplier_that_is_told_to_end_under_load(market: Market) -> None:
    """Leaving costs nobody anything: no slot, no attempt, no order."""
    market.start_broker()
    suppliers = [market.supplier(name=f"s{number}", credit=4) for number in range(3)]
    clients = two_streams(market, 400)
    for number in (1, 2):
        until_progress(100 * number, *clients)
        suppliers[0].terminate()
        assert suppliers.pop(0).ended() == 0
    until_progress(400, *clients)
    check_served(served_by(*clients), names("a", 400) + names("b", 400))
    assert [client.ask("figures")["retired"] for client in clients] == [0, 0]
    stats = market.until(lambda stats: stats["suppliers"]["connected"] == 1)
    assert set(stats["dropped"]) == {"left"}


def test_a_client_that_is_told_to_end(market: Market) -> None:
    """It exits with 0, its file is gone with it, and the broker has none of its orders."""
    market.start_broker()
    market.supplier()
    ending, other = two_streams(market, 400)
    until_progress(50, ending, other)
    file = market.file_of(ending)
    ending.terminate()
    assert ending.ended() == 0
    assert not file.exists()
    until_progress(400, other)
    check_served(served_by(other), names("b", 400))
    stats = market.until(
        lambda stats: "a" not in [each["name"] for each in stats["clients"]["list"]]
    )
    assert set(stats["dropped"]) == {"left"}
    assert stats["orders"]["open"] == 0


def test_a_broker_that_is_told_to_end(market: Market) -> None:
    """It exits with 0, and whoever it served goes on with the next one."""
    market.start_broker()
    market.supplier()
    clients = two_streams(market, 300)
    until_progress(50, *clients)
    market.broker.terminate()
    assert market.broker.ended() == 0
    market.start_broker()
    until_progress(300, *clients)
    check_served(served_by(*clients), names("a", 300) + names("b", 300))
