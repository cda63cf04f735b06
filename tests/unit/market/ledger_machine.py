"""Random markets: a ledger and its model, side by side, through every kind of event.

``Checked`` applies an event to both and compares all that can be seen, and the queue's insides with
what they are for. ``LedgerMachine`` lets hypothesis choose the events; ``walk`` lets a generator of
random numbers choose many more of them.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any, TypeVar, cast

import msgspec
from hypothesis import HealthCheck, note
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from entrepot.market import events as ev
from entrepot.market.figures import stats, v1_stats
from entrepot.market.lane import Lane
from entrepot.market.ledger import Ledger
from entrepot.market.member import SupplierClass
from entrepot.market.open_order import State
from entrepot.market.protocol import Fault, Order, Region, Result, WorkItem
from entrepot.settings import BrokerSettings
from tests.unit.market.ledger_model import ANY_SENTENCE, Maker, Model

CI = hypothesis_settings(
    max_examples=60, stateful_step_count=50, suppress_health_check=[HealthCheck.too_slow]
)
SOAK = hypothesis_settings(CI, max_examples=3_000, stateful_step_count=150)

STATES = {"waiting": State.QUEUED, "out": State.DISPATCHED, "parked": State.PARKED}

PRODUCTS = ("layer_1", "layer_2", "layer_12", "text", "odd_1", "nobody makes this")
PATTERNS = (
    (r"layer_\d+",),
    (r"layer_\d+",),
    (r"layer_\d+", "text"),
    ("layer_1",),
    (r"layer_[12]", r"odd_\d"),
    (r"[a-z]+_1", "text"),
    (r".*_\d+",),
    ("text",),
    ("(?=a)a",),
    (),
)
"""Pattern lists that overlap; the last two are refused."""

ORDER_IDS = tuple("abcdefgh")
CONTRACTS = (None, None, None, "x", "y")
SUPPLIERS = tuple(bytes([i]) + b"s" for i in range(5))
V1_SUPPLIERS = tuple(bytes([i]) + b"1s" for i in range(3))
CLIENTS = tuple(bytes([i]) + b"c" for i in range(3))
V1_CLIENTS = tuple(bytes([i]) + b"1c" for i in range(2))
PAUSES_S = (0.0, 0.25, 0.5, 0.5, 1.0, 3.0, 5.0, 10.0, 29.0, 60.0)

T = TypeVar("T")

RULES = BrokerSettings(
    max_order_attempts=3,
    max_order_losses=2,
    max_open_orders=6,
    max_open_orders_total=12,
    elsewhere_s=2.0,
)


KINDS = ("good", "good", "good", "bad", "bad", "bad", "bad", "large", "foreign", "stale", "other")
"""Of results."""


def small(max_idle_classes: int, max_products: int) -> BrokerSettings:
    """Settings whose limits are met within a few steps, some of them smaller than is allowed."""
    return RULES.model_copy(
        update={"max_idle_classes": max_idle_classes, "max_products": max_products}
    )


class Checked:
    """A ledger that is compared with its model after every event."""

    def __init__(self, settings: BrokerSettings) -> None:
        self.settings = settings
        leases = count(2**63)
        self.ledger = Ledger(settings, lambda: next(leases))
        self.model = Model(settings)
        self.now = 1000.0
        self.places = count()
        self.most_products = 0

    def apply(self, event: ev.Event) -> list[ev.Effect]:
        # Each side has its own copy: neither may lean on what the other changes.
        effects = self.ledger.apply(_copy(event), self.now)
        given: dict[bytes, deque[WorkItem]] = {}
        for effect in effects:
            if isinstance(effect, ev.Assign):
                assert effect.session not in given, "one WORK a supplier and event"
                assert effect.version == self.model_version(effect.session, event)
                given[effect.session] = deque(effect.items)
        expected = self.model.apply(_copy(event), self.now, given)
        assert not any(given.values()), f"given, and not due: {given}"
        said = [_without_words(e) for e in effects if not isinstance(e, ev.Assign)]
        assert Counter(map(repr, said)) == Counter(map(repr, expected))
        self.check()
        return effects

    def model_version(self, session: bytes, event: ev.Event) -> int:
        maker = self.model.makers.get(session)
        assert maker is not None, f"work for {session!r}, which is not there, after {event}"
        return maker.version

    # --- after each step ----------------------------------------------------------------

    def check(self) -> None:
        self.check_parties()
        self.check_orders()
        self.check_queue()
        self.check_stats()
        assert self.ledger.wake_at(self.now) <= self.model.wake_by(self.now)

    def check_parties(self) -> None:
        ledger, model = self.ledger, self.model
        assert set(ledger.clients) == set(model.buyers)
        assert set(ledger.suppliers) == set(model.makers)
        for session, maker in model.makers.items():
            supplier = ledger.suppliers[session]
            assert {lease: order.order_id for lease, order in supplier.held.items()} == {
                lease: job.asked.order_id for lease, job in maker.held.items()
            }
            assert supplier.takes == maker.takes
            assert (supplier.suspect, supplier.draining) == (maker.suspect, maker.draining)
            assert (supplier.served, supplier.credit) == (maker.served, maker.credit)

    def check_orders(self) -> None:
        """The same orders are open in both, in the same state."""
        model = self.model
        outcomes = self.ledger.figures.outcomes
        assert outcomes == model.outcomes
        assert model.accepted == model.outcomes.total() + self.ledger.open_orders
        for session, buyer in model.buyers.items():
            orders = self.ledger.clients[session].orders
            assert list(orders) == list(buyer.jobs)
            for job, order in zip(buyer.jobs.values(), orders.values(), strict=True):
                assert order.state == STATES[job.state]
                assert order.touched == job.touched
                assert order.held == job.cancelled
                assert (order.failures, order.losses) == (job.failures, job.losses)
                assert {s.session for s in order.failed_by} == {m.session for m in job.failed_by}
                holder = order.supplier.session if order.supplier else None
                assert holder == (job.maker.session if job.maker else None)

    def check_queue(self) -> None:
        """Heaps, lanes and products say of themselves what is so."""
        queue = self.ledger.queue
        lanes = list(queue._lanes.items())
        waiting: Counter[Lane] = Counter()
        for client in self.ledger.clients.values():
            for order in client.orders.values():
                product = order.product
                assert queue.products[client.version, product.product_id, client.contract] is (
                    product
                )
                if order.state is State.QUEUED:
                    assert order.lane is not None
                    assert order.lane.classes == product.classes
                    assert order.lane.failed_by == order.failed_by
                    assert queue._lanes[product.classes, order.failed_by] is order.lane
                    assert product in order.lane.products
                    assert (order.key, order) in order.lane.heap
                    waiting[order.lane] += 1
                else:
                    assert order.lane is None
        registered = [s for s in self.ledger.suppliers.values() if s.cls is not None]
        classes = set(queue._classes.values())
        assert {s.cls for s in registered} <= classes
        for product in queue.products.values():
            assert product.classes == {
                cls
                for cls in classes
                if cls.version == product.version
                and cls.serves(product.product_id, product.contract)
            }
            if product.lane is not None:
                assert queue._lanes.get((product.classes, frozenset())) is product.lane
        for key, lane in lanes:
            assert key == (lane.classes, lane.failed_by)
            assert lane.live == waiting[lane]
            assert len(lane.heap) <= 2 * lane.live + 64 + 1
            # A lane of failed orders that is neither used nor in anyone's heap is a leak.
            assert lane.live or lane.entries or not lane.failed_by
            assert lane.open == (
                bool(lane.failed_by)
                and not any(
                    s.cls in lane.classes and s not in lane.failed_by and not s.draining
                    for s in registered
                )
            )
        for cls in classes:
            self.check_class(cls, [lane for _, lane in lanes if cls in lane.classes])
        assert len(queue._idle_classes) <= self.settings.max_idle_classes
        assert set(queue._idle_classes) == {cls for cls in classes if not cls.suppliers}
        assert set(queue._ready) == {cls for cls in classes if cls.ready}
        assert list(queue._ready) == sorted(queue._ready, key=lambda cls: cls.turn)
        busy = sum(not product.idle for product in queue.products.values())
        self.most_products = max(self.most_products, busy)
        assert len(queue.products) <= max(self.settings.max_products, 2 * self.most_products)

    def check_class(self, cls: SupplierClass, lanes: list[Lane]) -> None:
        assert set(cls.lanes) == set(lanes)
        assert set(cls.suppliers) == {s for s in self.ledger.suppliers.values() if s.cls is cls}
        assert set(cls.ready) == {s for s in cls.suppliers if s.takes}
        assert cls.in_flight == sum(len(s.held) for s in cls.suppliers)
        for lane in lanes:
            # Each supplier that may take a lane's first order finds it, no later than its turn.
            head = lane.head()
            may = any(lane.open or s not in lane.failed_by for s in cls.suppliers)
            if head is not None and may:
                assert lane.entries[cls] <= head.key
            if may and lane.level < 2**33 and cls not in lane.unaware:
                assert lane.entries[cls] >> 64 <= lane.level
            if cls in lane.entries:
                assert (lane.entries[cls], lane) in cls.heap

    def check_stats(self) -> None:
        figures = stats(self.ledger, self.now)
        expected = self.model.stats(self.now)
        assert figures["orders"] == expected["orders"]
        rows = ("product", "queued", "in_flight", "parked", "unservable")
        assert (
            Counter(tuple(r[k] for k in rows) for r in figures["products"])
            == (expected["products"])
        )
        named = ("protocol", "suppliers", "ready", "queued", "in_flight")
        assert (
            Counter(
                (tuple(row["patterns"]), *(row[k] for k in named)) for row in figures["classes"]
            )
            == (expected["classes"])
        )
        for name, value in expected["suppliers"].items():
            assert figures["suppliers"][name] == value, name
        assert figures["clients"]["connected"] == expected["clients"]
        assert figures["refused"] == expected["refused"]
        assert figures["stale_answers"] == expected["stale_answers"]
        assert figures["dropped"] == expected["dropped"]
        v1 = v1_stats(self.ledger)
        assert v1["pending_orders"] == expected["orders"]["open"]
        assert v1["available_suppliers"] == expected["suppliers"]["ready"]
        assert set(v1["product_ids"]) == {
            p for maker in self.model.makers.values() for p in maker.patterns
        }


def _copy(event: ev.Event) -> ev.Event:
    if isinstance(event, ev.Placed):
        orders = [msgspec.structs.replace(order) for order in event.orders]
        return msgspec.structs.replace(event, orders=orders)
    return event


def _without_words(effect: ev.Effect) -> ev.Effect:
    """The effect with its sentences, which must be there, taken out."""
    if isinstance(effect, ev.Refuse):
        assert effect.error
        return msgspec.structs.replace(effect, error=ANY_SENTENCE, order_ids=list(effect.order_ids))
    if isinstance(effect, ev.Welcome):
        return msgspec.structs.replace(effect, missing=sorted(effect.missing))
    if isinstance(effect, ev.Fail):
        attempts = [msgspec.structs.replace(a, message=ANY_SENTENCE) for a in effect.attempts]
        return msgspec.structs.replace(effect, attempts=attempts)
    return effect


# --- events to choose from --------------------------------------------------------------


class Events:
    """One event of a kind, about parties, orders and leases that there are, or nearly."""

    def __init__(self, market: Checked, chance: random.Random) -> None:
        self.market = market
        self.model = market.model
        self.pick: Callable[[Sequence[Any]], Any] = chance.choice

    def client(self) -> bytes:
        return self.mostly(list(self.model.buyers), [CLIENTS[-1]])

    def supplier(self, *versions: int, wanted: Callable[[Maker], bool] = bool) -> bytes:
        """Mostly one that is as wanted."""
        known = {s: m for s, m in self.model.makers.items() if m.version in versions}
        strangers = SUPPLIERS if 2 in versions else V1_SUPPLIERS
        fit = [session for session, maker in known.items() if wanted(maker)]
        return self.mostly(fit, [*known, strangers[-1]])

    def mostly(self, these: Sequence[T], others: Sequence[T]) -> T:
        """One of these, or now and then of the others."""
        rarely = self.pick((False,) * 7 + (True,))
        return cast(T, self.pick(others if rarely or not these else these))

    def some(self, things: Sequence[Any]) -> list[Any]:
        """Mostly all, or none, or all but some."""
        kind = self.pick(("all", "all", "all", "all", "none", "some"))
        if kind == "some":
            return [thing for thing in things if self.pick((True, False))]
        return list(things) if kind == "all" else []

    def order_of(self, session: bytes) -> str:
        buyer = self.model.buyers.get(session)
        return self.mostly(list(buyer.jobs) if buyer is not None else [], ["unknown"])

    def client_joins(self) -> ev.Event:
        absent = [s for s in (*CLIENTS, *V1_CLIENTS) if s not in self.model.buyers]
        session = self.mostly(absent, CLIENTS)
        buyer = self.model.buyers.get(session)
        if session in V1_CLIENTS:
            return ev.ClientJoined(session=session, version=1)
        waits_for = self.some([*(buyer.jobs if buyer else ()), "unknown"])
        return ev.ClientJoined(
            session=session,
            name=f"client {session[0]}",
            contract=self.mostly([buyer.contract] if buyer else [], CONTRACTS),
            open_orders=waits_for,
            seq=self.seq(),
        )

    def seq(self) -> int:
        """Of a HELLO: mostly the highest so far."""
        return self.mostly([next(self.market.places)], [0])

    def placed(self) -> ev.Event:
        session = self.client()
        orders = [self.order(session) for _ in range(self.pick((1, 1, 2, 4)))]
        return ev.Placed(session, orders, next(self.market.places))

    def order(self, session: bytes) -> Order:
        place = next(self.market.places)
        version_1 = session in V1_CLIENTS
        order = Order(
            self.pick(ORDER_IDS), self.pick(PRODUCTS), f"{session!r}/{place}", place, 2**62
        )
        if not version_1:
            order.nbytes = 64
            order.priority = self.pick((0, 0, 0, 1, -1))
            order.deadline_s = self.pick((None, None, None, 0.2, 3.0))
            if self.pick((False, False, True)):
                order.input = Region(order.address, place, 8)
        return order

    def moved(self) -> ev.Event:
        session = self.client()
        place = next(self.market.places)
        parked = [
            (job.buyer, job.asked.order_id) for job in self.model.jobs() if job.state == "parked"
        ]
        session, order_id = self.mostly(parked, [(session, self.order_of(session))])
        return ev.Moved(session, order_id, f"{session!r}/{place}", place, place)

    def cancelled(self) -> ev.Event:
        session = self.client()
        return ev.Cancelled(session, self.order_of(session), next(self.market.places))

    def discarded(self) -> ev.Event:
        return ev.Discarded(self.client(), next(self.market.places))

    def drain_asked(self) -> ev.Event:
        names = [maker.name for maker in self.model.makers.values()]
        return ev.DrainAsked(self.client(), self.mostly(names, ["nobody", None]), 7)

    def supplier_joins(self) -> ev.Event:
        absent = [s for s in (*SUPPLIERS, *V1_SUPPLIERS) if s not in self.model.makers]
        session = self.pick(self.pick((absent, SUPPLIERS)) or SUPPLIERS)
        maker = self.model.makers.get(session)
        patterns = self.pick(PATTERNS)
        if session in V1_SUPPLIERS:
            return ev.SupplierJoined(
                session=session, version=1, name=f"v1-{session[0]}", patterns=patterns
            )
        contracts = {}
        if patterns and self.pick((False, False, True)):
            contracts = {self.pick(patterns): self.pick(("x", "y"))}
        if maker is not None and self.pick((True, True, False)):
            patterns, contracts = maker.patterns, maker.contracts
        return ev.SupplierJoined(
            session=session,
            name=f"supplier {session[0] % 3}",
            patterns=patterns,
            credit=self.pick((1, 1, 2, 3)),
            exclusive=self.pick((False, False, False, False, False, True)),
            contracts=contracts,
            cancels=self.pick((True, True, False)),
            holds=self.some([*(maker.held if maker else ()), 1]),
            seq=self.seq(),
        )

    def ready(self) -> ev.Event:
        return ev.Ready(self.supplier(1, 2, wanted=lambda maker: not maker.asked))

    def drained(self) -> ev.Event:
        """Mostly of a supplier that holds something, and now and then again of the same."""
        session = self.supplier(2, wanted=lambda maker: bool(maker.held))
        maker = self.model.makers.get(session)
        return ev.Drained(session, self.some([*(maker.held if maker else ()), 1]))

    def finished(self) -> ev.Event:
        session = self.supplier(2, wanted=lambda maker: bool(maker.held))
        return ev.Finished(session, list(self.results(session)))

    def results(self, session: bytes) -> Iterator[Result]:
        maker = self.model.makers.get(session)
        held = list(maker.held.items()) if maker is not None else []
        for _ in range(self.pick((1, 1, 2, 3))):
            kind = self.pick(KINDS)
            if kind == "foreign":
                # The lease of what another holds, or nobody any more.
                leases = [
                    (lease, job)
                    for other in self.model.makers.values()
                    for lease, job in other.held.items()
                    if other is not maker
                ]
            else:
                leases = held
            if kind == "stale" or not leases:
                yield Result(self.pick(ORDER_IDS), 5, nbytes=1)
                continue
            lease, job = self.pick(leases)
            order_id = "another" if kind == "other" else job.asked.order_id
            if kind == "bad":
                error = self.pick((None, Fault("ValueError", "of its own making")))
                yield Result(order_id, lease, success=False, error=error)
            else:
                nbytes = job.asked.nbytes + 1 if kind == "large" else job.asked.nbytes
                yield Result(order_id, lease, nbytes=nbytes, checksum=lease % 1000)

    def v1_finished(self) -> ev.Event:
        session = self.supplier(1, wanted=lambda maker: bool(maker.held))
        maker = self.model.makers.get(session)
        held = [job.asked.order_id for job in maker.held.values()] if maker else []
        return ev.V1Finished(session, self.mostly(held, ["unknown"]), self.pick((True, False)))

    def party(self) -> bytes:
        return self.mostly([self.supplier(1, 2)], [self.client()])

    def heard(self) -> ev.Event:
        return ev.Heard(self.party())

    def disconnected(self) -> ev.Event:
        return ev.Disconnected(self.party())

    def left(self) -> ev.Event:
        return ev.Left(self.party())

    def dropped(self) -> ev.Event:
        return ev.Dropped(self.party(), "slow")

    def ticked(self) -> ev.Event:
        self.market.now += self.mostly(PAUSES_S[:5], PAUSES_S)
        return ev.Ticked()

    def paused(self) -> ev.Event:
        seconds = self.pick(PAUSES_S)
        self.market.now += seconds
        return ev.Paused(seconds)


# --- who chooses ------------------------------------------------------------------------

USUAL = 3 * (
    "client_joins", "supplier_joins", "supplier_joins", "placed", "placed", "ready", "ready",
    "ready", "finished", "finished", "finished", "v1_finished", "ticked",
)  # fmt: skip
RARE = (
    "moved", "cancelled", "discarded", "drain_asked", "drained", "heard", "disconnected", "left",
    "dropped", "paused",
)  # fmt: skip
"""Kinds of events. A run leaves some of the rare ones out, and so comes farther in others."""


class LedgerMachine(RuleBasedStateMachine):
    """hypothesis chooses the events, and finds the shortest way to what is wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.market = Checked(RULES)
        self.kinds = [*USUAL, *RARE]

    @initialize(
        idle=st.sampled_from((0, 1, 3)),
        products=st.sampled_from((1, 4, 16)),
        never=st.sets(st.sampled_from(RARE)),
    )
    def begin(self, idle: int, products: int, never: set[str]) -> None:
        self.market = Checked(small(idle, products))
        self.kinds = [*USUAL, *(kind for kind in RARE if kind not in never)]

    @rule(kind=st.integers(0, 255), chance=st.randoms(use_true_random=False))
    def happens(self, kind: int, chance: random.Random) -> None:
        self.event(self.kinds[kind % len(self.kinds)], chance)

    def event(self, kind: str, chance: random.Random) -> None:
        event = getattr(Events(self.market, chance), kind)()
        note(f"{self.market.now:g} s: {event}")
        self.market.apply(event)


def walk(seed: int, steps: int) -> None:
    """A long way through one market, chosen by ``seed``. Whatever is wrong is raised."""
    chance = random.Random(seed)
    market = Checked(small(chance.choice((0, 1, 3)), chance.choice((1, 4, 16))))
    never = {kind for kind in RARE if chance.random() < 0.4}
    kinds = [*USUAL, *(kind for kind in RARE if kind not in never)]
    for step in range(steps):
        event = getattr(Events(market, chance), chance.choice(kinds))()
        try:
            market.apply(event)
        except Exception as fault:
            fault.add_note(f"seed {seed}, step {step}, at {market.now:g} s: {event}")
            raise
