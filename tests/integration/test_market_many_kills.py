"""Suppliers and clients that are killed one after another, at random moments: nothing stays behind.

The kills fall on parties that are starting, registering, attaching, writing, reading, or making new
memory, over every medium. The broker, one supplier, and a client over each medium live through it
all.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.market_processes import (
    Market,
    Nursery,
    Party,
    held_by,
    names,
    served_by,
    until,
    until_held,
    until_progress,
)
from tests.integration.market_products import check_served

SETTINGS: dict[str, Any] = {
    "beat_s": 0.1,
    "reconnect_grace_s": 0.05,
    "client_grace_s": 0.05,
    "max_order_losses": 1_000_000,  # those who kill are not the orders
}

MEDIUMS = ("shm", "file", "tcp")

DOOMED = {"supplier": 3, "client": 3}
"""How many of each live at once, to be killed."""

LONGEST_S = 0.06
"""Between two kills, at most. A party takes about half of that until it works."""

NBYTES = 20_000


@pytest.fixture
def market(nursery: Nursery) -> Iterator[Market]:
    with Market(nursery, **SETTINGS) as market:
        market.start_broker()
        yield market


def doomed(market: Market, kind: str, number: int, chance: random.Random) -> Party:
    """A party that begins to work by itself, some time from now."""
    name = f"doomed-{number}"
    if kind == "supplier":
        return market.begin_supplier(
            name=name, nbytes=NBYTES, credit=chance.choice([1, 4]), in_place=chance.random() < 0.5
        )
    client = market.begin_client(
        name=name, medium=chance.choice(MEDIUMS), slots=8, slot_nbytes=NBYTES
    )
    client.begin("endless", prefix=name, ids=100)
    return client


def sizes(market: Market) -> dict[str, int]:
    """How much the broker knows of parties and orders."""
    stats = market.stats()
    return {
        "clients": stats["clients"]["connected"] - 1,  # one is who asks
        "suppliers": stats["suppliers"]["connected"],
        "orders": stats["orders"]["open"],
        "in flight": stats["orders"]["in_flight"],
        "queued": stats["orders"]["queued"],
        "parked": stats["orders"]["parked"],
        "unacknowledged": stats["unacknowledged"],
    }


@pytest.mark.parametrize(
    "kills",
    [100, pytest.param(1000, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])],
)
def test_kills_in_a_row(market: Market, kills: int) -> None:
    chance = random.Random(kills)
    supplier = market.supplier(name="survivor", nbytes=NBYTES, credit=4)
    clients = [
        market.client(name=medium, medium=medium, slots=8, slot_nbytes=NBYTES) for medium in MEDIUMS
    ]
    for client in clients:  # each has its connections, and its supplier has attached to it
        client.ask("order", products=["first"])
        client.ask("take", products=["first"])
    survivors = [market.broker, supplier, *clients]
    before = held_by(*survivors)
    for client in clients:
        client.ask("endless", prefix="survivor", ids=100)

    living = [
        (kind, doomed(market, kind, number, chance))
        for kind, many in DOOMED.items()
        for number in range(many)
    ]
    for number in range(kills):
        time.sleep(chance.random() * LONGEST_S)
        kind, party = living.pop(chance.randrange(len(living)))
        market.bury(party)
        living.append((kind, doomed(market, kind, number, chance)))
    for _, party in living:
        market.bury(party)

    # All who live are served as if nothing had been.
    served = [client.ask("progress") for client in clients]
    for client, count in zip(clients, served, strict=True):
        assert count > 1
        until_progress(count + 100, client)
        client.ask("stop_streams")
        client.ask("stream", products=names("last", 100))
    for client in clients:
        until(lambda: len(client.ask("served")), lambda count: count == 101)  # noqa: B023
        check_served(served_by(client), ["first", *names("last", 100)])
        assert client.ask("figures")["corrupt"] == 0

    # And nothing of the dead is left: neither at the broker, nor with anybody, nor as a file.
    rest = dict.fromkeys(sizes(market), 0) | {"clients": len(clients), "suppliers": 1}
    until(lambda: sizes(market), lambda now: now == rest)
    market.sweep()
    until_held(before, *survivors)
    assert os.listdir(market.folder) == [market.file_of(clients[1]).name]  # noqa: PTH208
    # What is in /dev/shm is looked at when the test is over: other tests' clients have files there.
