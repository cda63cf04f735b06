"""A broker's figures, and watches that were told them, for the sidecar's tests."""

from __future__ import annotations

from typing import Any

from entrepot.market.figures import stats as broker_stats
from entrepot.market.ledger import Ledger
from entrepot.settings import BrokerSettings
from entrepot.sidecar.market import MarketSeen, MarketWatch

NOW = 1_800_000_000.0


def figures(**orders: int) -> dict[str, Any]:
    """What a broker says that has nothing to do, but for these orders."""
    leases = iter(range(1, 1_000_000))
    said = broker_stats(Ledger(BrokerSettings(), leases.__next__), 0.0)
    said["orders"] |= orders
    return said


def product(name: str | None, queued: int, in_flight: int = 0) -> dict[str, Any]:
    """One row of the broker's list of products."""
    row: dict[str, Any] = {
        "product": name,
        "queued": queued,
        "in_flight": in_flight,
        "parked": 0,
        "unservable": 0,
    }
    return row if name is not None else row | {"others": 7}


def watch(stats: dict[str, Any] | None, why: str = "it is gone") -> MarketWatch:
    """A watch that is not running and has seen just this; None is a broker that is not there."""

    def never() -> Any:
        raise AssertionError("nobody asks")

    made = MarketWatch(never, every_s=1.0, timeout_s=1.0, keep_s=900.0, clock=lambda: NOW)
    if stats is None:
        made.seen = MarketSeen(False, {}, 0.0, why)
    else:
        made.recent.note(NOW, stats)
        made.seen = MarketSeen(True, stats, NOW, "")
    return made
