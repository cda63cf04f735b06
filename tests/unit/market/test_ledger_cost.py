"""The invariant ``cost``: what a step does grows with the logarithm of what waits, and no faster.

Counted are operations (see ``ledger_load.py``), with up to 10,000 products on order and 200 pattern
lists that overlap. Each kind of step has a bound that holds whatever the number that waits, and
one for its growth from 100 to 10,000: a hundred times as much may double the cost at most, as the
logarithm does.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from math import log2
from statistics import mean
from typing import NamedTuple

import pytest

from entrepot.market import events as ev
from entrepot.market.routing import Matcher, Routes
from tests.unit.market.ledger_load import Key, Load, counted

CLASSES = 200
FEW, MANY = 100, 10_000
STEPS = 300

OPERATIONS = 250
"""Operations of a step, at most, for each doubling of what waits."""

QUEUE_STEPS = 2.0
"""The same, in the queue's own count."""


class Kind(NamedTuple):
    """How the products of a market are named, and who can make them."""

    patterns: Callable[[int], list[str]]
    """Of the i-th supplier."""
    own: Callable[[int], str]
    """A product that the i-th supplier can make."""
    name: Callable[[int], str]
    """The i-th product."""


MARKETS = {
    # One pattern that all have, and one of each one's own.
    "common": Kind(
        lambda i: [r"shared_\d+", rf"own_{i}_\d+"],
        lambda i: f"own_{i}_0",
        lambda i: f"shared_{i}" if i % 2 else f"own_{i // 2 % CLASSES}_{i}",
    ),
    # Each product belongs to 20 classes, and no two neighbours have the same 20.
    "windows": Kind(
        lambda i: [rf"window_{(i + j) % CLASSES}_\d+" for j in range(20)],
        lambda i: f"window_{i}_0",
        lambda i: f"window_{7 * i % CLASSES}_{i}",
    ),
    # Nine in ten can be made by nobody.
    "unserved": Kind(
        lambda i: [rf"own_{i}_\d+"],
        lambda i: f"own_{i}_0",
        lambda i: f"nobody_{i}" if i % 10 else f"own_{i // 10 % CLASSES}_{i}",
    ),
}


def _busy_market(kind: Kind, waiting: int) -> Load:
    """Every supplier has an order; as many as are asked for wait, each for another product."""
    load = Load([kind.patterns(i) for i in range(CLASSES)])
    for session in load.sessions:
        load.ready(session)
    _make_busy(load, kind)
    for i in range(waiting):
        load.place(kind.name(i))
    return load


def _make_busy(load: Load, kind: Kind) -> None:
    for i, session in enumerate(load.sessions):
        while not load.supplier(session).held:
            load.place(kind.own(i))


class Costs:
    """What each kind of step costs on average, as much waiting at the end as at the beginning."""

    def __init__(self, kind: Kind, waiting: int) -> None:
        load = _busy_market(kind, waiting)
        chance = random.Random(2)
        self._queue = load.ledger.queue
        self._counts: dict[str, list[tuple[int, int]]] = {}
        for _ in range(STEPS):
            for _ in range(2):
                self._count("place", partial(load.place, kind.name(chance.randrange(waiting))))
            session = chance.choice(load.sessions)
            self._count("done", partial(load.done, session))
            session = chance.choice(load.sessions)
            load.left(session)
            load.join(session)
            self._count("ready", partial(load.ready, session))
            self._count("cancel", partial(load.cancel, load.waiting(chance)))
            _make_busy(load, kind)

    def _count(self, step: str, act: Callable[[], object]) -> None:
        before = self._queue.steps
        operations = counted([act])
        self._counts.setdefault(step, []).append((operations, self._queue.steps - before))

    def operations(self, step: str) -> float:
        return mean(operations for operations, _ in self._counts[step])

    def steps(self, step: str) -> float:
        return mean(steps for _, steps in self._counts[step])


def test_cost_is_counted() -> None:
    """The count sees what the market's code and its heaps do."""
    load = Load([["p.*"]])
    for i in range(64):
        load.place(f"p{i}", priority=i)
    load.ready(load.sessions[0])
    compared = Key.compared
    operations = counted([partial(load.done, load.sessions[0])])
    assert Key.compared - compared >= 6
    assert operations >= 100


@pytest.mark.parametrize("name", MARKETS)
def test_cost(name: str) -> None:
    """A place, a DONE with what it dispatches, a READY, a CANCEL: the logarithm of what waits."""
    few, many = Costs(MARKETS[name], FEW), Costs(MARKETS[name], MANY)
    for step in ("place", "done", "ready", "cancel"):
        for costs, waiting in ((few, FEW), (many, MANY)):
            assert costs.operations(step) <= OPERATIONS * log2(waiting), (step, waiting)
            assert costs.steps(step) <= QUEUE_STEPS * log2(waiting), (step, waiting)
        assert many.operations(step) <= 2 * few.operations(step), step


@pytest.mark.parametrize("waiting", [FEW, MANY])
def test_cost_of_orders_that_one_bad_supplier_of_fifty_failed(waiting: int) -> None:
    """It fails all that it is given; the others take that up, and it passes over it, as fast."""
    load = Load([["p.*"]] * 50)
    bad, *good = load.sessions
    load.join(bad, credit=waiting)
    load.ready(bad)
    for i in range(waiting):
        load.place(f"p{i}")
    for session in good:
        load.ready(session)
        load.place("p")
    assert len(load.supplier(bad).held) == waiting
    held = list(load.supplier(bad).held)
    fails = [partial(load.fail, bad, lease) for lease in held]
    assert counted(fails) / waiting <= OPERATIONS * log2(waiting)
    assert sum(product.queued for product in load.ledger.queue.products.values()) == waiting
    before = load.ledger.queue.steps
    assert counted([partial(load.ready, bad)]) <= OPERATIONS * log2(waiting)
    acts = [partial(load.done, session) for session in good]
    assert counted(acts) / len(acts) <= OPERATIONS * log2(waiting)
    assert load.ledger.queue.steps - before <= QUEUE_STEPS * log2(waiting) * (1 + len(acts))


def test_cost_when_hardly_anything_waits() -> None:
    """An order that waits alone is news to the suppliers that have looked since, not to all 200."""
    load = Load([[r"shared_\d+", rf"own_{i}_\d+"] for i in range(CLASSES)])
    chance = random.Random(3)
    for session in load.sessions:
        load.ready(session)
        load.place("shared_1")
    acts: list[Callable[[], object]] = []
    for _ in range(STEPS):
        acts.append(partial(load.place, "shared_1", priority=chance.randrange(3)))
        acts.append(partial(load.done, chance.choice(load.sessions)))
    assert counted(acts) / len(acts) <= 1000


def test_cost_of_priorities_that_rise_and_rise() -> None:
    """Each order comes before all others, and still most are no news."""
    load = Load([[r"shared_\d+", rf"own_{i}_\d+"] for i in range(CLASSES)])
    acts = [partial(load.place, "shared_1", priority=i) for i in range(1000)]
    assert counted(acts) / len(acts) <= 1000


def test_cost_of_cancelling_everything() -> None:
    """What is left of cancelled orders is cleared away, and that is not dear either."""
    load = Load([["p.*"]])
    chance = random.Random(4)
    for _ in range(MANY):
        load.place(f"p{chance.randrange(100)}", priority=chance.randrange(3))
    ids = [str(i) for i in range(MANY)]
    chance.shuffle(ids)
    acts = [partial(load.cancel, order_id) for order_id in ids]
    assert counted(acts) / MANY <= 500


def test_cost_of_a_hello(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pattern list that is known is matched with nothing, a new one once with each product."""
    load = _busy_market(MARKETS["common"], MANY)
    products = len(load.ledger.queue.products)
    assert products >= MANY
    matches: Counter[str] = Counter()

    def counting(kind: type, name: str) -> None:
        real = getattr(kind, name)

        def match(self: object, *args: object) -> object:
            matches[name] += 1
            return real(self, *args)

        monkeypatch.setattr(kind, name, match)

    counting(Routes, "serves")
    counting(Matcher, "matching")
    load.left(load.sessions[7])
    load.join(load.sessions[7])
    load.ready(load.sessions[7])
    assert matches == {}
    load.ledger.apply(ev.SupplierJoined(session=b"new", patterns=["shared_1.*"]), 0.0)
    assert matches == {"serves": products}
    load.ready(b"new")
    load.done(b"new")
    load.place("shared_1")
    assert matches == {"serves": products}
    load.place("shared_1000001")
    assert matches == {"serves": products, "matching": 1}
