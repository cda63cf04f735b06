"""What the broker counts, and STATS: the state of the market as plain numbers."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from heapq import nlargest
from typing import TYPE_CHECKING, Any

from entrepot.market.open_order import State

if TYPE_CHECKING:
    from entrepot.market.ledger import Ledger
    from entrepot.market.member import SupplierClass
    from entrepot.market.open_order import Product

BUCKETS_S = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0
)  # fmt: skip
"""Upper bounds of the histograms' buckets, in seconds; one more bucket has no bound."""

BUSIEST = 20
"""Products that STATS names; the rest are summed."""

LISTED = 200
"""Supplier classes and suppliers that STATS names."""


class Histogram:
    """Durations in seconds, in buckets."""

    __slots__ = ("counts", "total_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_S) + 1)
        self.total_s = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BUCKETS_S, seconds)] += 1
        self.total_s += seconds

    def as_dict(self) -> dict[str, Any]:
        """Buckets as ``[upper bound, or None, count]``; counts are not cumulative."""
        bounds = (*BUCKETS_S, None)
        return {
            "buckets": [[b, n] for b, n in zip(bounds, self.counts, strict=True)],
            "count": sum(self.counts),
            "sum_s": self.total_s,
        }


class Figures:
    """Counters since the broker started."""

    def __init__(self) -> None:
        self.placed = 0
        self.outcomes: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter()
        self.stale_answers = 0
        self.wait = Histogram()
        """From placed to first dispatched."""
        self.service = Histogram()
        """From dispatched to answered."""


def stats(ledger: Ledger, now: float) -> dict[str, Any]:
    """The answer to a version-2 STATS. Durations are in seconds."""
    queue = ledger.queue
    figures = ledger.figures
    lanes = list(queue.lanes())
    suppliers = list(ledger.suppliers.values())
    busy = [product for product in queue.products.values() if not product.idle]
    unservable = sum(lane.live for lane in lanes if not any(cls.suppliers for cls in lane.classes))
    return {
        "orders": {
            "queued": sum(lane.live for lane in lanes),
            "in_flight": sum(len(s.held) for s in suppliers),
            "parked": sum(product.parked for product in busy),
            "unservable": unservable,
            "open": ledger.open_orders,
            "oldest_age_s": _oldest_age_s(ledger, now),
            "placed": figures.placed,
            "fulfilled": figures.outcomes["fulfilled"],
            "failed": figures.outcomes["failed"],
            "cancelled": figures.outcomes["cancelled"],
        },
        "products": _busiest(busy),
        "classes": [_class(cls) for cls in _largest(queue.classes(), LISTED)],
        "suppliers": {
            "ready": queue.ready_count,
            "busy": sum(1 for s in suppliers if s.held),
            "suspect": sum(1 for s in suppliers if s.suspect or s.away_since is not None),
            "draining": sum(1 for s in suppliers if s.draining),
            "connected": len(suppliers),
            "list": [
                {
                    "name": s.name,
                    "session": s.session.hex()[:8],
                    "protocol": s.version,
                    "patterns": list(s.cls.patterns[:8]) if s.cls else [],
                    "credit": s.credit,
                    "holds": len(s.held),
                    "served": s.served,
                    "state": _state(s),
                    "silent_s": now - s.heard,
                }
                for s in suppliers[:LISTED]
            ],
        },
        "clients": {
            "connected": len(ledger.clients),
            "list": [
                {
                    "name": c.name,
                    "session": c.session.hex()[:8],
                    "protocol": c.version,
                    "open_orders": len(c.orders),
                }
                for c in list(ledger.clients.values())[:LISTED]
            ],
        },
        "refused": dict(figures.refused),
        "dropped": dict(figures.dropped),
        "stale_answers": figures.stale_answers,
        "steps": queue.steps,
        "wait": figures.wait.as_dict(),
        "service": figures.service.as_dict(),
    }


def v1_stats(ledger: Ledger) -> dict[str, Any]:
    """The answer to a version-1 STATS, in that version's fields."""
    patterns = {p: None for cls in ledger.queue.classes() for p in cls.patterns}
    return {
        "pending_orders": ledger.open_orders,
        "available_suppliers": ledger.queue.ready_count,
        "connected_clients": len(ledger.clients),
        "connected_suppliers": len(ledger.suppliers),
        "total_completed": ledger.figures.outcomes["fulfilled"],
        "product_ids": list(patterns),
    }


def _oldest_age_s(ledger: Ledger, now: float) -> float:
    """A client's orders are kept as they were placed: the first that waits is its oldest."""
    oldest = now
    for client in ledger.clients.values():
        for order in client.orders.values():
            if order.state is State.QUEUED:
                oldest = min(oldest, order.placed_at)
                break
    return now - oldest


def _state(supplier: Any) -> str:
    if supplier.away_since is not None:
        return "away"
    if supplier.suspect:
        return "suspect"
    if supplier.draining:
        return "draining"
    if supplier.held:
        return "busy"
    return "ready" if supplier.started else "joining"


def _busiest(busy: list[Product]) -> list[dict[str, Any]]:
    named = nlargest(BUSIEST, busy, key=lambda p: p.queued + p.in_flight + p.parked)
    rows: list[dict[str, Any]] = [
        {
            "product": p.product_id,
            "queued": p.queued,
            "in_flight": p.in_flight,
            "parked": p.parked,
            "unservable": p.queued if not any(cls.suppliers for cls in p.classes) else 0,
        }
        for p in named
    ]
    if len(busy) > len(named):
        rest = set(busy).difference(named)
        rows.append(
            {
                "product": None,
                "others": len(rest),
                "queued": sum(p.queued for p in rest),
                "in_flight": sum(p.in_flight for p in rest),
                "parked": sum(p.parked for p in rest),
                "unservable": sum(
                    p.queued for p in rest if not any(cls.suppliers for cls in p.classes)
                ),
            }
        )
    return rows


def _largest(classes: Any, most: int) -> list[SupplierClass]:
    return nlargest(most, classes, key=lambda cls: len(cls.suppliers))


def _class(cls: SupplierClass) -> dict[str, Any]:
    return {
        "patterns": list(cls.patterns[:8]),
        "protocol": cls.version,
        "suppliers": len(cls.suppliers),
        "ready": len(cls.ready),
        "queued": sum(lane.live for lane in cls.lanes),
        "in_flight": cls.in_flight,
    }
