"""STATS: what it names and what it sums, and that it is plain numbers and names throughout."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from entrepot.market import events as ev
from entrepot.market.figures import BUCKETS_S, BUSIEST, LISTED, Histogram, stats, v1_stats
from entrepot.market.protocol import Result
from tests.unit.market.small_market import Market


def figures(market: Market) -> dict[str, Any]:
    return stats(market.ledger, market.now)


def rows(market: Market) -> dict[str | None, tuple[int, int, int, int]]:
    return {
        row["product"]: (row["queued"], row["in_flight"], row["parked"], row["unservable"])
        for row in figures(market)["products"]
    }


def some_of_everything() -> Market:
    """Orders in every state, suppliers in every state, of both versions, and all outcomes."""
    market = Market(max_order_attempts=1)
    market.client("old", version=1)
    market.supplier("fast", "fast.*", credit=8)
    market.order("done", "failed", "cancelled", product="fast")
    market.done("fast", "done")
    market.fail("fast", "failed")
    market.cancel("cancelled")
    market.left("fast")
    market.supplier("lost", "p")
    market.order("parked")
    market.apply(ev.Dropped(b"lost", "gone"))
    market.supplier("busy", "p")
    market.supplier("ready", "q", "r")
    market.supplier("joining", "q", ready=False)
    market.supplier("away", "away")
    market.disconnected("away")
    market.supplier("drained", "drained")
    market.apply(ev.DrainAsked(b"client", "drained"))
    market.join("v1", "q", version=1)
    market.ready("v1")
    market.order("held", "queued")
    market.now = 2.0
    market.order("q1", "q2", product="nobody makes this")
    market.order("dup", "dup", product="p")
    market.cancel("no such order")
    market.apply(ev.Finished(b"busy", [Result("held", 999)]))
    market.now = 3.0
    return market


def test_stats_of_orders() -> None:
    assert figures(some_of_everything())["orders"] == {
        "queued": 4,
        "in_flight": 1,
        "parked": 1,
        "unservable": 2,
        "open": 6,
        "oldest_age_s": 3.0,
        "placed": 9,
        "fulfilled": 1,
        "failed": 1,
        "cancelled": 1,
    }


def test_stats_of_products() -> None:
    """Those that are on order, with the ones that wait for a supplier that there is not."""
    assert rows(some_of_everything()) == {
        "p": (2, 1, 1, 0),
        "nobody makes this": (2, 0, 0, 2),
    }


def test_stats_of_suppliers() -> None:
    seen = figures(some_of_everything())["suppliers"]
    assert {row["name"]: row["state"] for row in seen.pop("list")} == {
        "busy": "busy",
        "ready": "ready",
        "joining": "joining",
        "away": "away",
        "drained": "draining",
        "v1": "ready",
    }
    assert seen == {"ready": 2, "busy": 1, "suspect": 1, "draining": 1, "connected": 6}


def test_stats_of_one_supplier() -> None:
    market = Market()
    market.supplier("s", *(f"p{i}" for i in range(20)), credit=3)
    market.order("a", "b", product="p1")
    market.done("s", "a")
    market.now = 4.5
    (row,) = figures(market)["suppliers"]["list"]
    assert row == {
        "name": "s",
        "session": b"s".hex(),
        "protocol": 2,
        "patterns": [f"p{i}" for i in range(8)],
        "credit": 3,
        "holds": 1,
        "served": 1,
        "state": "busy",
        "silent_s": 4.5,
    }
    market.heard("client")
    market.after(0.5)
    assert figures(market)["suppliers"]["list"][0]["state"] == "suspect"
    assert figures(market)["suppliers"]["suspect"] == 1


def test_stats_of_classes() -> None:
    """Suppliers of one pattern list are one row; a list that nobody has any more is none."""
    market = Market()
    market.supplier("s", "p.*")
    market.supplier("t", "p.*")
    market.supplier("u", "p1", "x", version=1)
    market.supplier("gone", "y")
    market.left("gone")
    market.order("a", "b", "c", product="p1")
    market.done("s", "a")
    assert figures(market)["classes"] == [
        {
            "patterns": ["p.*"],
            "protocol": 2,
            "suppliers": 2,
            "ready": 0,
            "queued": 0,
            "in_flight": 2,
        },
        {
            "patterns": ["p1", "x"],
            "protocol": 1,
            "suppliers": 1,
            "ready": 1,
            "queued": 0,
            "in_flight": 0,
        },
    ]


def test_stats_of_refusals_drops_and_stale_answers() -> None:
    seen = figures(some_of_everything())
    assert seen["refused"] == {"unknown_order": 1}
    assert seen["dropped"] == {"left": 1, "gone": 1}
    assert seen["stale_answers"] == 1


def test_stats_of_clients() -> None:
    seen = figures(some_of_everything())["clients"]
    assert seen["connected"] == 2
    assert [(row["protocol"], row["open_orders"]) for row in seen["list"]] == [(2, 6), (1, 0)]


def test_the_busiest_products_are_named_and_the_rest_summed() -> None:
    """Twenty rows and one more, and in all of them together every order once."""
    market = Market()
    market.supplier("s", "made.*", credit=500)
    expected = {}
    for i in range(30):
        name = f"made {i}" if i % 2 else f"not made {i}"
        market.order(*(f"{i}/{j}" for j in range(i + 1)), product=name)
        expected[name] = (0, i + 1, 0, 0) if i % 2 else (i + 1, 0, 0, i + 1)
    seen = rows(market)
    assert len(seen) == BUSIEST + 1
    rest = figures(market)["products"][-1]
    assert (rest["product"], rest["others"]) == (None, 10)
    named = {name: row for name, row in seen.items() if name is not None}
    assert named == {name: expected[name] for name in list(expected)[10:]}
    assert seen[None] == tuple(map(sum, zip(*list(expected.values())[:10], strict=True)))
    orders = figures(market)["orders"]
    assert [sum(row[i] for row in seen.values()) for i in range(4)] == [
        orders["queued"],
        orders["in_flight"],
        orders["parked"],
        orders["unservable"],
    ]


def test_twenty_products_have_no_rest() -> None:
    market = Market()
    for i in range(BUSIEST):
        market.order(f"{i}", product=f"p{i}")
    assert len(rows(market)) == BUSIEST
    assert None not in rows(market)


def test_lists_are_cut_and_counts_are_not() -> None:
    """The largest classes are named; of suppliers and clients, the first."""
    market = Market()
    for i in range(LISTED + 20):
        market.supplier(f"s{i}", f"p{i}")
        market.client(f"c{i}")
    market.supplier("one more", "p210")
    seen = figures(market)
    assert len(seen["classes"]) == LISTED
    assert seen["classes"][0]["patterns"] == ["p210"]
    assert len(seen["suppliers"]["list"]) == LISTED
    assert seen["suppliers"]["connected"] == LISTED + 21
    assert len(seen["clients"]["list"]) == LISTED
    assert seen["clients"]["connected"] == LISTED + 21


def test_the_oldest_is_the_oldest_of_those_that_wait() -> None:
    """Whatever its priority, whoever was served before it."""
    market = Market()
    market.client("other")
    assert figures(market)["orders"]["oldest_age_s"] == 0.0
    market.supplier("s")
    market.order("in work")
    market.now = 1.0
    market.order("oldest", client="other")
    market.now = 2.0
    market.order("urgent", priority=9)
    market.now = 5.0
    assert figures(market)["orders"]["oldest_age_s"] == 4.0
    market.cancel("oldest", client="other")
    assert figures(market)["orders"]["oldest_age_s"] == 3.0


def test_stats_are_plain() -> None:
    """JSON and MessagePack both take them, and give back the same."""
    seen = figures(some_of_everything())
    assert json.loads(json.dumps(seen, allow_nan=False)) == seen
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(seen)) == seen


def test_stats_of_a_broker_that_has_just_started() -> None:
    market = Market()
    market.left("client")
    seen = figures(market)
    assert set(seen["orders"].values()) == {0}
    assert seen["products"] == seen["classes"] == seen["suppliers"]["list"] == []
    assert json.loads(json.dumps(seen)) == seen


def test_stats_of_version_1() -> None:
    """The fields of that version, with every pattern that is registered, once."""
    market = some_of_everything()
    assert v1_stats(market.ledger) == {
        "pending_orders": 6,
        "available_suppliers": 2,
        "connected_clients": 2,
        "connected_suppliers": 6,
        "total_completed": 1,
        "product_ids": ["p", "q", "r", "away", "drained"],
    }
    msgspec.msgpack.encode(v1_stats(market.ledger))


# --- histograms -------------------------------------------------------------------------


def test_waits_and_services_are_timed() -> None:
    """From placed to first dispatched; and from dispatched to answered, each time."""
    market = Market()
    market.order("a")
    market.now = 0.75
    market.supplier("s")
    market.now = 1.0
    market.fail("s", "a")
    market.now = 5.0
    market.done("s", "a")
    seen = figures(market)
    assert (seen["wait"]["count"], seen["wait"]["sum_s"]) == (1, 0.75)
    assert (seen["service"]["count"], seen["service"]["sum_s"]) == (2, 4.25)
    assert [bound for bound, n in seen["wait"]["buckets"] if n] == [1.0]
    assert [bound for bound, n in seen["service"]["buckets"] if n] == [0.25, 5.0]


@pytest.mark.parametrize(
    ("seconds", "bound"),
    [(0.0, 0.0005), (0.0005, 0.0005), (0.00051, 0.001), (60.0, 60.0), (60.1, None), (1e9, None)],
)
def test_a_duration_is_in_the_first_bucket_that_it_does_not_exceed(
    seconds: float, bound: float | None
) -> None:
    histogram = Histogram()
    histogram.add(seconds)
    seen = histogram.as_dict()
    assert [upper for upper, n in seen["buckets"] if n] == [bound]
    assert [upper for upper, _ in seen["buckets"]] == [*BUCKETS_S, None]
    assert (seen["count"], seen["sum_s"]) == (1, seconds)


def test_buckets_are_not_cumulative() -> None:
    histogram = Histogram()
    for seconds in (0.0001, 0.0001, 0.003, 100.0):
        histogram.add(seconds)
    seen = histogram.as_dict()
    assert sum(n for _, n in seen["buckets"]) == seen["count"] == 4
    assert seen["buckets"][0] == [0.0005, 2]
    assert seen["buckets"][-1] == [None, 1]
