"""What a supplier writes late is never served: every way to be thought dead, over every medium.

A *zombie* is held while it writes a product. It is stopped for longer than anybody waits for it,
its machine is cut off, or the broker dies; so its order moves to another slot, and to another
supplier. Its bytes are in the first slot before that, come half before and half after it, or all
after the other's product was served and while that is still being looked at.

Each product names its order, its maker and its number, and ends in a hash of all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.integration.market_processes import (
    Hosts,
    Market,
    Nursery,
    Party,
    names,
    served_by,
    until,
    until_progress,
)
from tests.integration.market_products import check_served

SWIFT: dict[str, Any] = {
    "beat_s": 0.1,
    "suspect_s": 0.4,
    "dead_s": 0.8,
    "reconnect_grace_s": 2.0,
    "client_grace_s": 20.0,
}
"""Silence ends a party soon, and a connection that closed does not."""

NBYTES = 12 << 18
"""Of a product: twelve chunks. Over TCP, one of up to 2 MiB leaves before it is summed."""

WRITES = {
    "writes before it moved": "break-after",
    "writes while it moved": "break-within",
    "writes after it moved": "break-before",
}
"""Where the zombie is held."""


class Stopped:
    """SIGSTOP, as a swapped-out process, a paused container and a debugger look like."""

    def __init__(self, market: Market, hosts: Hosts | None, client: Party, zombie: Party) -> None:
        self._zombie = zombie

    def begin(self) -> None:
        self._zombie.stop()

    def end(self) -> None:
        self._zombie.resume()


class CutOff:
    """Packets between its machine and that of all others are dropped; no socket closes."""

    def __init__(self, market: Market, hosts: Hosts | None, client: Party, zombie: Party) -> None:
        assert hosts is not None
        self._hosts = hosts

    def begin(self) -> None:
        self._hosts.cut()

    def end(self) -> None:
        self._hosts.mend()


class Restarted:
    """The broker is killed, and the next one knows nothing of what it told whom."""

    def __init__(self, market: Market, hosts: Hosts | None, client: Party, zombie: Party) -> None:
        self._market = market
        self._client = client

    def begin(self) -> None:
        self._market.kill(self._market.broker)
        self._market.start_broker()
        until(lambda: self._client.ask("figures")["restarted"])

    def end(self) -> None:
        pass


FAULTS: dict[str, Callable[..., Stopped | CutOff | Restarted]] = {
    "stopped": Stopped,
    "cut off": CutOff,
    "broker restarted": Restarted,
}


@pytest.fixture
def hosts(fault: str) -> Iterator[Hosts | None]:
    """The zombie's machine and that of all others, where that matters."""
    with ExitStack() as stack:
        yield stack.enter_context(Hosts()) if fault == "cut off" else None


@pytest.fixture
def market(nursery: Nursery, medium: str, hosts: Hosts | None) -> Iterator[Market]:
    with Market(nursery, medium=medium, hosts=hosts, **SWIFT) as market:
        market.start_broker()
        yield market


@pytest.mark.parametrize("writes", WRITES)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("medium", ["shm", "file", "tcp"])
def test_a_zombie(market: Market, hosts: Hosts | None, fault: str, writes: str) -> None:
    product = f"{WRITES[writes]}:p"
    client = market.client(slots=1, slot_nbytes=NBYTES)  # whatever moves could only move there
    zombie = market.supplier(
        name="zombie",
        nbytes=NBYTES,
        silence_s=0.6,
        tcp_timeout_s=2.0,
        host=hosts and hosts.far,
    )
    happens = FAULTS[fault](market, hosts, client, zombie)
    client.ask("order", products=[product])
    until(lambda: zombie.ask("held"))

    happens.begin()
    market.until(lambda stats: stats["orders"]["queued"] == 1)  # it has moved
    heir = market.supplier(name="heir", nbytes=NBYTES)
    heir.ask("release")
    assert client.ask("borrow", product=product)[1] == "heir"

    if fault == "stopped":
        happens.end()
    assert zombie.ask("passed") == 0
    zombie.ask("release")  # cut off, it goes on before it is heard of again
    happens.end()
    until(lambda: zombie.ask("passed"))  # the late write is over
    market.until(lambda stats: stats["suppliers"]["ready"] == 2)
    assert client.ask("unchanged")
    client.ask("give_back")
    client.ask("stream", products=names("q", 12))
    until_progress(13, client)

    market.kill(heir)
    market.until(lambda stats: stats["suppliers"]["ready"] == 1)
    client.ask("order", products=["r"])
    assert client.ask("take", products=["r"])[0][1] == "zombie"
    check_served(served_by(client), [product, *names("q", 12), "r"])
    figures = client.ask("figures")
    assert figures["corrupt"] == 0
    # Over TCP the slot is taken from whoever was told of it; else there is new memory instead.
    assert (figures["arenas"] == 1) == (market.medium == "tcp")
