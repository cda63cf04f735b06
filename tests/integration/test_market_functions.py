"""Functions of suppliers that fail, hang, kill, and return what they should not.

A function is a stranger's: whatever it does costs its own order, and no other.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from entrepot.settings import BrokerSettings
from tests.integration.market_processes import (
    Market,
    Nursery,
    held_by,
    names,
    served_by,
    until,
    until_held,
    until_progress,
)
from tests.integration.market_products import check_served


@pytest.fixture
def settings() -> dict[str, Any]:
    """The broker's; ``given_settings`` changes them for a test."""
    return {}


def given_settings(**settings: Any) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("settings", [settings], ids=[""])


@pytest.fixture
def market(nursery: Nursery, settings: dict[str, Any]) -> Iterator[Market]:
    with Market(nursery, **settings) as market:
        market.start_broker()
        yield market


def test_a_function_that_holds_the_gil(market: Market) -> None:
    """Its supplier beats no more: it gets nothing new, is not given up, and its product is served.

    Ten seconds, and until all has been looked at, under the settings that all have; others serve
    others meanwhile.
    """
    gate = Path(market.folder, "gate")
    os.mkfifo(gate)
    market.supplier("gil:.*|q", name="busy", credit=2, gate=str(gate))
    client = market.client()
    client.ask("order", products=["gil:10:p"])
    market.until(lambda stats: stats["suppliers"]["busy"] == 1)
    market.supplier("other/.*", name="other")
    client.ask("stream", products=names("other", 200))
    until_progress(200, client)
    market.until(lambda stats: stats["suppliers"]["suspect"] == 1)
    client.ask("order", products=["q"])
    market.until(lambda stats: stats["orders"]["queued"] == 1)
    assert market.stats()["suppliers"]["suspect"] == 1
    gate.write_bytes(b"!")
    gate.unlink()
    assert client.ask("take", products=["gil:10:p", "q"]) == [
        ["gil:10:p", "busy", 1],
        ["q", "busy", 2],
    ]
    stats = market.stats()
    assert (stats["dropped"].keys(), stats["suppliers"]["suspect"]) == ({"left"}, 0)
    assert client.ask("figures")["reconnects"] == 0
    check_served(served_by(client), ["gil:10:p", "q", *names("other", 200)])


def test_an_order_that_kills_whoever_takes_it(market: Market) -> None:
    """It ends, and says who died of it; what was innocent is served, and blamed for nothing."""
    client = market.client()
    suppliers = [market.supplier(name=f"s{number}", credit=4) for number in range(4)]
    innocent = names("p", 100)
    client.ask("order", products=["die:p"])
    client.ask("stream", products=innocent)
    failed = client.ask("fail", product="die:p")
    assert (failed["error"], failed["reason"]) == ("OrderFailed", "lost")
    assert len(failed["attempts"]) == BrokerSettings().max_order_losses
    blamed = {attempt.split(":")[0] for attempt in failed["attempts"]}
    dead = until(
        lambda: {f"s{number}" for number, one in enumerate(suppliers) if not one.alive},
        lambda dead: dead >= blamed,
    )
    assert blamed == dead
    until_progress(100, client)
    check_served(served_by(client), innocent)
    assert len(dead) == BrokerSettings().max_order_losses
    assert [s.ended() for s in suppliers if not s.alive] == [7] * len(dead)


RETURNED = {
    "raise": "ValueError: s does not make that",
    "too-much": "ProductTooLarge: a product of 257 bytes does not fit in the 256 bytes",
    "none": "NotBytes: SupplierParty._make must return bytes or an array, and returned NoneType",
    "text": "NotBytes: SupplierParty._make must return bytes or an array, and returned str",
    "number": "NotBytes: a int cannot be put in a slot",
    "gaps": "NotBytes: a memoryview cannot be put in a slot",
}
FILLED = {
    "raise": "ValueError: s does not make that",
    "overstate": "ProductTooLarge: SupplierParty._fill says that it filled 257 bytes",
    "understate": "ProductTooLarge: SupplierParty._fill says that it filled -1 bytes",
    "misstate": "NotBytes: SupplierParty._fill must return how many bytes",
    "unstated": "NotBytes: SupplierParty._fill must return how many bytes",
}


@pytest.mark.parametrize(
    ("in_place", "wrong"), [(False, RETURNED), (True, FILLED)], ids=["returned", "filled"]
)
@given_settings(max_order_attempts=2)
def test_functions_that_raise_or_return_what_they_should_not(
    market: Market, in_place: bool, wrong: dict[str, str]
) -> None:
    """Their orders fail with the reason, and the supplier goes on with the next."""
    client = market.client()
    market.supplier(name="s", in_place=in_place)
    client.ask("order", products=[*wrong, "p"])
    for product, said in wrong.items():
        failed = client.ask("fail", product=product)
        assert failed["reason"] == "attempts", failed
        assert len(failed["attempts"]) == 2
        assert all(attempt.startswith(f"s: {said}") for attempt in failed["attempts"]), failed
    client.ask("take", products=["p"])
    assert client.ask("figures")["retired"] == 0


def test_a_product_of_nothing(market: Market) -> None:
    """No bytes are a product like any other, whatever was in the slot before."""
    client = market.client(slots=1)
    market.supplier()
    client.ask("order", products=["p"])
    client.ask("take", products=["p"])
    client.ask("order", products=["nothing:p"])
    assert client.ask("fail", product="nothing:p") == {"error": None, "made": ""}


def test_a_function_that_returns_only_when_it_is_told_to(market: Market) -> None:
    """Draining asks the supplier to end, its function notices, and its product is served."""
    client = market.client()
    endless = market.supplier(name="endless")
    client.ask("order", products=["until-drained:p"])
    until(lambda: endless.ask("calls"))
    assert client.ask("drain") == 1
    endless.hang_up()
    assert client.ask("take", products=["until-drained:p"])[0][1] == "endless"
    assert endless.ended() == 0
    stats = market.until(lambda stats: stats["suppliers"]["connected"] == 0)
    assert set(stats["dropped"]) == {"left"}


def test_a_function_that_never_returns(market: Market) -> None:
    """Its supplier cannot end in order; killed, it costs nobody but its own order a slot."""
    client = market.client()
    endless = market.supplier(name="endless")
    client.ask("order", products=["hold:p"])
    until(lambda: endless.ask("calls"))
    endless.terminate()
    until(lambda: market.stats()["suppliers"]["draining"] == 1)  # it has heard, and drains
    market.supplier(name="s").ask("release")
    client.ask("stream", products=names("p", 50))
    until_progress(50, client)
    assert endless.alive
    endless.terminate()  # who asks twice means it
    assert endless.ended() != 0
    assert client.ask("take", products=["hold:p"])[0][1] == "s"
    assert client.ask("figures")["retired"] == 1


@given_settings(reconnect_grace_s=0.02)
def test_a_hundred_suppliers_killed_in_a_row(market: Market) -> None:
    """Nobody keeps anything of them: no descriptor, no thread, no segment."""
    client = market.client(slots=8)
    before: list[dict[str, int]] = []
    for number in range(101):
        doomed = market.supplier(name=f"s{number}")
        if number:
            client.ask("take", products=[f"hold-at:s{number - 1}"])
        client.ask("order", products=[f"p/{number}", f"hold-at:s{number}"])
        client.ask("take", products=[f"p/{number}"])
        until(lambda: f"hold-at:s{number}" in doomed.ask("calls"))  # noqa: B023
        if number == 10:
            before = held_by(market.broker, client)
        if number < 100:
            market.kill(doomed)
    until_held(before, market.broker, client)
    doomed.ask("release")
    client.ask("take", products=["hold-at:s100"])
    check_served(served_by(client), [*(f"hold-at:s{n}" for n in range(101)), *names("p", 101)])
    assert client.ask("figures")["arenas"] > 4
    assert market.stats()["suppliers"]["connected"] == 1
