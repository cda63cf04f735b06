"""Parties that stand still for longer than anybody waits for them, and then go on.

SIGSTOP is what a swapped-out process, a paused container and a debugger look like. Whoever stood
still does not know it: a supplier that was thought dead goes on writing into a slot that it was
told of before, and that must never show in what a client serves.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.market_processes import (
    Market,
    Nursery,
    names,
    served_by,
    until,
    until_more,
    until_progress,
)
from tests.integration.market_products import check_served

SWIFT = {"beat_s": 0.1, "suspect_s": 0.4, "dead_s": 0.8, "client_grace_s": 1.0}
"""Silence ends a party soon, but no party that only waits for a busy machine."""


@pytest.fixture
def settings() -> dict[str, Any]:
    """The broker's; ``given_settings`` changes them for a test."""
    return SWIFT


def given_settings(**settings: Any) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("settings", [settings], ids=[""])


@pytest.fixture
def medium() -> str:
    """What clients have their products in; ``over_every_medium`` repeats a test over all."""
    return "shm"


over_every_medium = pytest.mark.parametrize("medium", ["shm", "file", "tcp"])


@pytest.fixture
def market(nursery: Nursery, settings: dict[str, Any], medium: str) -> Iterator[Market]:
    with Market(nursery, medium=medium, **settings) as market:
        market.start_broker()
        yield market


def lost(market: Market) -> int:
    """How many parties the broker gave up without a word from them."""
    dropped: dict[str, int] = market.stats()["dropped"]
    return sum(count for reason, count in dropped.items() if reason != "left")


# --- suppliers --------------------------------------------------------------------------


@over_every_medium
@pytest.mark.parametrize("word", ["hold-early", "hold", "hold-late"])
def test_a_zombie_writes_after_its_order_was_served_by_another(market: Market, word: str) -> None:
    """Before the first byte, between two, or after the last: it never shows."""
    product = f"{word}:p"
    client = market.client(slots=2)
    zombie = market.supplier(name="zombie", in_place=True)
    session = market.session_of("zombie")
    client.ask("order", products=[product])
    until(lambda: zombie.ask("calls"))
    zombie.stop()
    spare = market.supplier(name="spare")
    spare.ask("release")
    assert client.ask("borrow", product=product)[1] == "spare"
    zombie.resume()
    zombie.ask("release")
    until(lambda: market.session_of("zombie"), lambda now: now == session)
    # All slots are used again, while the product that was borrowed is still looked at.
    client.ask("stream", products=names("q", 50), prefetch=1)
    until_progress(51, client)
    assert client.ask("unchanged")
    client.ask("give_back")
    market.kill(spare)
    client.ask("order", products=["r"])
    assert client.ask("take", products=["r"])[0][1] == "zombie"
    check_served(served_by(client), [product, *names("q", 50), "r"])
    assert client.ask("figures")["corrupt"] == 0


@over_every_medium
@given_settings(**SWIFT | {"dead_s": 2.0})
def test_a_zombie_that_comes_back_before_anybody_else_could_serve(market: Market) -> None:
    """Its order has moved to another slot and is given to it again; the first try is dropped."""
    client = market.client(slots=4)
    zombie = market.supplier(name="zombie", in_place=True)
    client.ask("order", products=["hold:p"])
    until(lambda: zombie.ask("calls"))
    zombie.stop()
    market.until(lambda stats: stats["orders"]["queued"] == 1)
    zombie.resume()
    until(lambda: market.session_of("zombie"))
    zombie.ask("release")
    assert client.ask("take", products=["hold:p"]) == [["hold:p", "zombie", 2]]
    # Over TCP the slot can be taken from whoever was told of it.
    assert client.ask("figures")["retired"] == (market.medium != "tcp")


@given_settings(beat_s=0.1, suspect_s=0.3, dead_s=3600)
def test_a_supplier_that_comes_back_before_it_is_given_up(market: Market) -> None:
    """It is suspect meanwhile and gets nothing new, and its product is served all the same."""
    client = market.client()
    slow = market.supplier(name="slow", credit=2)
    client.ask("order", products=["hold:p"])
    until(lambda: slow.ask("calls"))
    slow.stop()
    market.until(lambda stats: stats["suppliers"]["suspect"] == 1)
    client.ask("order", products=["q"])
    market.until(lambda stats: stats["orders"]["queued"] == 1)
    slow.resume()
    slow.ask("release")
    assert [made[1] for made in client.ask("take", products=["hold:p", "q"])] == ["slow"] * 2
    assert client.ask("figures")["retired"] == lost(market) == 0


@given_settings()
def test_a_stopped_supplier_under_the_settings_that_all_have(market: Market) -> None:
    """The host behind a connection answers nothing for six seconds: its orders go elsewhere."""
    client = market.client()
    zombie = market.supplier(name="zombie")
    client.ask("order", products=["hold:p"])
    until(lambda: zombie.ask("calls"))
    zombie.stop()
    market.supplier(name="spare").ask("release")
    assert client.ask("take", products=["hold:p"])[0][1] == "spare"
    zombie.resume()
    zombie.ask("release")
    market.until(lambda stats: stats["suppliers"]["connected"] == 2)


@over_every_medium
def test_suppliers_that_are_stopped_in_turn_under_load(market: Market) -> None:
    suppliers = [market.supplier(name=f"s{n}", in_place=n % 2 == 0, credit=3) for n in range(3)]
    clients = [market.client(name=name) for name in ("a", "b")]
    for client, name in zip(clients, "ab", strict=True):
        client.ask("stream", products=names(name, 400))
    for turn in range(2):
        before = lost(market)
        suppliers[turn].stop()
        until_more(lambda: lost(market), before)
        suppliers[turn].resume()
        market.until(lambda stats: stats["suppliers"]["connected"] == 3)
    until_progress(400, *clients)
    check_served(served_by(*clients), names("a", 400) + names("b", 400))


# --- clients ----------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [SWIFT, SWIFT | {"dead_s": 3600}], ids=["given up", "kept"])
def test_a_stopped_client(market: Market) -> None:
    """Others are served meanwhile; when it goes on, so do its orders, each served once."""
    market.supplier(name="s")
    market.supplier(name="t")
    stopped, other = market.client(name="a"), market.client(name="b")
    stopped.ask("stream", products=names("a", 300))
    until_progress(50, stopped)
    stopped.stop()
    if market.settings["dead_s"] < 3600:
        until(lambda: lost(market))
    other.ask("stream", products=names("b", 300))
    until_progress(300, other)
    stopped.resume()
    until_progress(300, stopped)
    check_served(served_by(stopped, other), names("a", 300) + names("b", 300))


@given_settings(
    **SWIFT | {"dead_s": 3600, "client_grace_s": 3600, "max_outbox": 2048, "max_open_orders": 1024}
)
def test_a_client_that_stops_reading(market: Market) -> None:
    """What it ordered waits for it, and no more; it is served all of it when it goes on.

    Another is served meanwhile.
    """
    supplier = market.supplier(name="s")
    stopped, other = market.client(name="a", slots=200), market.client(name="b")
    stopped.ask("order", products=["hold:first", *names("a", 199)])
    until(lambda: supplier.ask("calls"))
    stopped.stop()
    supplier.ask("release")
    stats = market.until(lambda stats: stats["orders"]["fulfilled"] == 200)
    assert 0 < stats["unacknowledged"] <= 200
    other.ask("stream", products=names("b", 50))
    until_progress(50, other)
    stopped.resume()
    stopped.ask("take", products=["hold:first", *names("a", 199)])
    stopped.ask("stream", products=names("c", 50))
    until_progress(250, stopped)
    ordered = ["hold:first", *names("a", 199), *names("b", 50), *names("c", 50)]
    check_served(served_by(stopped, other), ordered)
    assert lost(market) == 0


# --- the broker -------------------------------------------------------------------------


@pytest.mark.parametrize("silence_s", [0.3, 60.0], ids=["noticed", "not noticed"])
@given_settings(**SWIFT | {"dead_s": 2.0, "reconnect_grace_s": 20.0, "client_grace_s": 20.0})
def test_a_stopped_broker(market: Market, silence_s: float) -> None:
    """Nobody is given up for a silence that was the broker's own, and nothing is lost by it."""
    suppliers = [market.supplier(name=name, silence_s=silence_s) for name in "st"]
    clients = [market.client(name=name, silence_s=silence_s) for name in "ab"]
    clients[0].ask("order", products=["hold:p"])
    until(lambda: any(supplier.ask("calls") for supplier in suppliers))
    for client, name in zip(clients, "ab", strict=True):
        client.ask("stream", products=names(name, 300))
    for turn in range(1, 3):
        until_progress(20 * turn, *clients)
        before = clients[0].ask("figures")["reconnects"]
        market.broker.stop()
        time.sleep(1.5 * market.settings["dead_s"])  # it is the time itself that is tested here
        if silence_s < 1:
            until_more(lambda: clients[0].ask("figures")["reconnects"], before)
        market.broker.resume()
        assert market.stats()["suppliers"]["connected"] == 2
    for supplier in suppliers:
        supplier.ask("release")
    until_progress(300, *clients)
    clients[0].ask("take", products=["hold:p"])
    check_served(served_by(*clients), [*names("a", 300), *names("b", 300), "hold:p"])
    assert [client.ask("figures")["retired"] for client in clients] == [0, 0]
    assert lost(market) == 0
