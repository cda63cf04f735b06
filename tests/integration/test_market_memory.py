"""What broker, client and supplier have in memory while a million orders pass: the same as before.

``make soak`` prints the table.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.integration.market_processes import Market, Nursery, Party, until
from tests.peer.waiting import LIMIT_S

IDS = 100_000
"""Names that are ordered in turn: more than the broker remembers."""

LOOK_AT = {"shm": (200_000, 500_000, 1_200_000), "tcp": (200_000, 300_000, 500_000)}
"""Orders after which memory is looked at, the first time when each name was ordered twice: by then
the broker has forgotten as many as it remembers, and its tables are as large as they get."""

ALLOWED_KIB = 1024
"""What a process may have more at the last look than at the first: the allocator breathes."""

SLOW_PER_S = 200
"""Orders a second that any machine makes."""


@pytest.fixture(params=list(LOOK_AT))
def market(request: pytest.FixtureRequest, nursery: Nursery) -> Iterator[Market]:
    with Market(nursery, medium=request.param) as market:
        market.start_broker()
        yield market


def rss_kib(party: Party) -> int:
    """Its resident memory, without what it shares with others in ``/dev/shm``."""
    said = Path(f"/proc/{party.pid}/status").read_text()
    return sum(int(said.partition(f"{what}:")[2].split()[0]) for what in ("RssAnon", "RssFile"))


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_million_orders(market: Market, capsys: pytest.CaptureFixture[str]) -> None:
    supplier = market.supplier(credit=16, nbytes=128, note=False)
    client = market.client(slots=128, slot_nbytes=128)
    parties = {"broker": market.broker, "client": client, "supplier": supplier}
    looks = LOOK_AT[market.medium]
    began = time.monotonic()
    client.ask("endless", prefix="product", ids=IDS, count=looks[-1], prefetch=64)
    found: list[dict[str, int]] = []
    before = 0
    for look in looks:
        limit_s = LIMIT_S + (look - before) / SLOW_PER_S
        until(partial(client.ask, "progress"), lambda taken: taken >= look, limit_s)  # noqa: B023
        found.append({name: rss_kib(party) for name, party in parties.items()})
        before = look
    spent_s = time.monotonic() - began
    with capsys.disabled():
        print(f"\n{market.medium}, {IDS:,} names, {looks[-1] / spent_s:,.0f} orders/s; RSS in KiB")
        print(f"{'orders':>12}" + "".join(f"{name:>12}" for name in parties))
        for look, rss in zip(looks, found, strict=True):
            print(f"{look:>12,}" + "".join(f"{rss[name]:>12,}" for name in parties))
    assert market.stats()["orders"]["fulfilled"] == looks[-1]
    grown = {name: found[-1][name] - found[0][name] for name in parties}
    assert max(grown.values()) <= ALLOWED_KIB, grown
