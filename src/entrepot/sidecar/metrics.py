"""What Prometheus is told: made from the last answers at each scrape, waiting for nobody.

Units are seconds and counts; no label's values are as many as there are products or studies.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from entrepot import __version__
from entrepot.sidecar.labels import OTHER, cut, largest
from entrepot.sidecar.market import MarketWatch
from entrepot.sidecar.meter import BUCKETS_S, Meter
from entrepot.sidecar.studies import ABANDONED, SKIPS, StoreWatch, StudySeen
from entrepot.study.trials import DONE, FAILED, PRUNED, RELEASED, RUNNING

SUPPLIER_STATES = ("ready", "busy", "suspect", "draining")
OUTCOMES = ("fulfilled", "failed", "cancelled")

# What is counted is there from the start, at 0: so the first of it is an increase, which it would
# not be as the beginning of a series.
REFUSALS = (
    "hello_first", "malformed", "unknown_command", "too_large", "too_many_orders",
    "too_many_patterns", "pattern_refused", "pattern_taken", "contract_mismatch", "unknown_order",
    "not_dispatchable", "draining", "too_many_peers", "session_dropped", "stale_hello", "forbidden",
    "wrong_endpoint", "internal",
)  # fmt: skip
"""The protocol's codes, and what the broker says of a fault of its own."""

DROPS = ("left", "gone", "silent", "slow")
OPERATIONS = ("open", "changes", "get")
_NOTHING_ASKED = {
    (operation, outcome): 0 for operation in OPERATIONS for outcome in ("ok", "error")
}

TRIAL_STATES = (RUNNING, DONE, PRUNED, FAILED, RELEASED, ABANDONED)


def registry_of(
    market: MarketWatch,
    store: StoreWatch | None,
    *,
    max_products: int,
    max_studies: int,
    clock: Callable[[], float] = time.time,
) -> CollectorRegistry:
    """A registry of all that is known, and of nothing else."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Seen(market, store, max_products, max_studies, clock))
    return registry


class _Seen(Collector):
    def __init__(
        self,
        market: MarketWatch,
        store: StoreWatch | None,
        max_products: int,
        max_studies: int,
        clock: Callable[[], float],
    ) -> None:
        self._market = market
        self._store = store
        self._max_products = max_products
        self._max_studies = max_studies
        self._clock = clock

    def collect(self) -> Iterator[Metric]:
        yield _one("build_info", "The version, as a label; always 1.", 1, version=__version__)
        seen = self._market.seen
        yield _one("broker_up", "Whether the broker answers.", int(seen.up))
        if seen.up:
            # What an absent broker said last would be taken for what is.
            yield from self._market_metrics(seen.stats)
        if self._store is not None:
            yield from self._store_metrics(self._store)

    # --- the market ---------------------------------------------------------------------

    def _market_metrics(self, stats: Mapping[str, Any]) -> Iterator[Metric]:
        orders, suppliers = stats["orders"], stats["suppliers"]
        # There from the start: a sum over nothing is no series, and no zero.
        nothing: dict[str, float] = {"queued": 0, "in_flight": 0}
        products = [(OTHER, nothing), *_products(stats)]
        for key, said in (("queued", "wait for a supplier"), ("in_flight", "a supplier has")):
            yield _gauge(
                f"orders_{key}",
                f"Orders that {said}, by product; the busiest {self._max_products}, the others "
                f"together.",
                ("product",),
                [
                    ((name,), figures[key])
                    for name, figures in largest(products, key, self._max_products)
                ],
            )
        yield _gauge(
            "backlog",
            "Orders that suppliers of these patterns have or could take: what to scale them by.",
            ("supplier_class",),
            [
                ((name,), figures["backlog"])
                for name, figures in largest(_classes(stats), "backlog", self._max_products)
            ],
        )
        yield _one("orders_open", "Orders that have not ended.", orders["open"])
        yield _one(
            "orders_unservable", "Orders that wait and no supplier can serve.", orders["unservable"]
        )
        yield _one(
            "order_oldest_age_seconds",
            "Age of the order that waits longest.",
            orders["oldest_age_s"],
        )
        yield _gauge(
            "suppliers",
            "Suppliers, by state; one is in several.",
            ("state",),
            [((state,), suppliers[state]) for state in SUPPLIER_STATES],
        )
        yield _one("suppliers_connected", "Suppliers that are connected.", suppliers["connected"])
        yield _one("clients", "Clients that are connected.", stats["clients"]["connected"])
        yield _one("products", "Products on order that the broker lists.", len(stats["products"]))
        yield _counter(
            "orders",
            "Orders that have ended, by outcome, since the broker began.",
            ("outcome",),
            [((outcome,), orders[outcome]) for outcome in OUTCOMES],
        )
        yield _counter("orders_placed", "Orders placed.", (), [((), orders["placed"])])
        for key, said in (
            ("wait", "Seconds from an order until a supplier has it."),
            ("service", "Seconds from there until it is made."),
        ):
            yield _histogram(f"order_{key}_seconds", said, stats[key])
        yield _by_reason(
            "messages_refused",
            "Messages that the broker refused, by reason.",
            REFUSALS,
            stats["refused"],
        )
        yield _by_reason(
            "peers_dropped",
            "Peers that the broker has no more, by reason; those that left are among them.",
            DROPS,
            stats["dropped"],
        )

    # --- the store ----------------------------------------------------------------------

    def _store_metrics(self, store: StoreWatch) -> Iterator[Metric]:
        seen = store.seen
        yield _one("store_up", "Whether the store could be read at the last look.", int(seen.up))
        yield _one("studies", "Studies that are in the store.", len(seen.studies) + seen.left_out)
        shown = list(seen.studies.values())[: self._max_studies]
        yield _one(
            "studies_without_series",
            "Studies beyond those that have series of their own.",
            len(seen.studies) + seen.left_out - len(shown),
        )
        yield _gauge(
            "study_trials",
            "Trials, by study and state.",
            ("study", "state"),
            [
                ((cut(study.name), state), study.states.get(state, 0))
                for study in shown
                for state in TRIAL_STATES
            ],
        )
        yield _gauge(
            "study_best_score",
            "The best score that a trial reached; of several goals, each one's best.",
            ("study", "goal"),
            [each for study in shown for each in _best(study)],
        )
        now = self._clock()
        yield _gauge(
            "study_last_write_age_seconds",
            "Seconds since a trial's record was written last.",
            ("study",),
            [((cut(study.name),), max(0.0, now - study.newest)) for study in shown],
        )
        yield _by_reason(
            "records_skipped",
            "Records that could not be read, by what is wrong with them.",
            SKIPS,
            seen.skipped,
        )
        yield from _metered(store.meter)


def _products(stats: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, float]]]:
    for each in stats["products"]:
        # Those that are too many for the broker's list stand there without a name.
        name = OTHER if each["product"] is None else str(each["product"])
        yield name, {"queued": each["queued"], "in_flight": each["in_flight"]}


def _classes(stats: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, float]]]:
    for each in stats["classes"]:
        backlog = each["queued"] + each["in_flight"]
        yield " | ".join(map(str, each["patterns"])), {"backlog": backlog}


def _best(study: StudySeen) -> Iterator[tuple[tuple[str, str], float]]:
    goals = {"score": study.goal} if isinstance(study.goal, str) else study.goal or {}
    for name, direction in goals.items():
        reached = [row.scores[name] for row in study.best if name in row.scores]
        reached = [score for score in reached if not math.isnan(score)]
        if reached:
            best = max(reached) if direction == "max" else min(reached)
            yield (cut(study.name), cut(name)), best


def _metered(meter: Meter) -> Iterator[Metric]:
    yield _counter(
        "sidecar_store_requests",
        "What the sidecar asked of the store.",
        ("op", "outcome"),
        sorted({**_NOTHING_ASKED, **meter.outcomes}.items()),
    )
    spent = HistogramMetricFamily(
        "entrepot_sidecar_store_request_seconds",
        "Seconds until the store had answered the sidecar.",
        labels=("op",),
    )
    unasked = {operation: [0] * (len(BUCKETS_S) + 1) for operation in OPERATIONS}
    for operation, counts in sorted({**unasked, **meter.buckets}.items()):
        ends = [*map(_edge, BUCKETS_S), "+Inf"]
        spent.add_metric(
            (operation,), list(zip(ends, _running(counts), strict=True)), meter.spent_s[operation]
        )
    yield spent


# --- families ---------------------------------------------------------------------------

Samples = Iterable[tuple[Sequence[str], float]]


def _gauge(name: str, said: str, labels: Sequence[str], samples: Samples) -> Metric:
    made = GaugeMetricFamily(f"entrepot_{name}", said, labels=labels)
    for values, value in samples:
        made.add_metric(values, value)
    return made


def _one(name: str, said: str, value: float, **labels: str) -> Metric:
    return _gauge(name, said, tuple(labels), [(tuple(labels.values()), value)])


def _counter(name: str, said: str, labels: Sequence[str], samples: Samples) -> Metric:
    made = CounterMetricFamily(f"entrepot_{name}", said, labels=labels)
    for values, value in samples:
        made.add_metric(values, value)
    return made


def _by_reason(name: str, said: str, known: Iterable[str], counts: Mapping[str, int]) -> Metric:
    """Also of what did not happen yet. A broker of another release may know more reasons."""
    every = {**dict.fromkeys(known, 0), **counts}
    samples = [((cut(reason),), count) for reason, count in sorted(every.items())]
    return _counter(name, said, ("reason",), samples)


def _histogram(name: str, said: str, figures: Mapping[str, Any]) -> Metric:
    """From the broker's counts, each of its own bucket alone."""
    made = HistogramMetricFamily(f"entrepot_{name}", said)
    ends = ["+Inf" if end is None else _edge(end) for end, _ in figures["buckets"]]
    counts = [count for _, count in figures["buckets"]]
    made.add_metric((), list(zip(ends, _running(counts), strict=True)), figures["sum_s"])
    return made


def _running(counts: Iterable[int]) -> Iterator[int]:
    total = 0
    for count in counts:
        total += count
        yield total


def _edge(end: float) -> str:
    return repr(float(end))
