"""The demonstration itself: what happens in which order, and what is verified on the way.

Everything that it claims is checked here, and the first claim that does not hold is DemoFailed.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from entrepot.contract import Contract
from entrepot.demo import sms, suppliers
from entrepot.demo.processes import END_S, Part, Parts
from entrepot.demo.tally import Tally
from entrepot.errors import DemoFailed, OrderCancelled, OrderTimeout
from entrepot.market.client import Client, Order, Product
from entrepot.mediums.shm import ShmMedium

WINDOW = 32
"""Orders kept open at once."""

SLOTS = 2 * WINDOW
"""Twice as many slots, so that what a switch quarantines holds nothing up."""

SWITCH_AT = 1 / 3
KILL_AT = 1 / 2
"""Where in the epoch of tokens that happens."""

STUCK_S = 0.1
"""How long a stopped supplier is watched, so that what it had just finished has arrived."""

LOOK_S = 0.02
PRODUCT_S = 20.0
"""Time for a product to come, whatever happened to its supplier."""

MODULE = "entrepot.demo.suppliers"


class Watcher(Protocol):
    """Who is told how it goes."""

    def download(self, came: int, expected: int) -> None:
        """Bytes of the messages that came, and that are expected (0: unknown)."""

    def part(self, title: str, pid: int, does: str) -> None:
        """A process is ready."""

    def stage(self, title: str, total: int) -> AbstractContextManager[Callable[[int], None]]:
        """A stage with a known number of steps; its value is told how many are done."""


@dataclass
class Epoch:
    """How one product's epoch went."""

    product: str
    batches: int
    messages: int = 0
    nbytes: int = 0
    seconds: float = 0.0
    orders_per_s: float = 0.0
    mb_per_s: float = 0.0
    latency_p50_s: float = 0.0
    latency_p99_s: float = 0.0
    checksum: str = ""


@dataclass
class Summary:
    """What was made, moved and verified."""

    ok: bool = False
    seconds: float = 0.0
    messages: int = 0
    processes: int = 0
    epochs: list[Epoch] = field(default_factory=list)
    switch: dict[str, Any] = field(default_factory=dict)
    kill: dict[str, Any] = field(default_factory=dict)
    broker: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


class Timed:
    """A product's tally and its times, over all stages in which it is consumed."""

    def __init__(self, name: str, tally: Tally, contract: Contract) -> None:
        self.name = name
        self.tally = tally
        self.contract = contract
        self.seconds = 0.0
        self.latencies: list[float] = []

    def take(self, product: Product, number: int | None, ordered_at: float) -> None:
        """Verify what came and note how long it took."""
        self.latencies.append(time.perf_counter() - ordered_at)
        arrays = self.contract.decode(product, copy=False)
        self.tally.take(arrays, number)

    @contextmanager
    def clock(self) -> Iterator[None]:
        """Count the time of a stage."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - began

    def summary(self) -> Epoch:
        """Verify that the epoch is whole, and its figures."""
        self.tally.close(sms.MESSAGES)
        ordered = sorted(self.latencies)
        return Epoch(
            product=self.name,
            batches=len(self.tally),
            messages=self.tally.messages,
            nbytes=self.tally.nbytes,
            seconds=self.seconds,
            orders_per_s=len(self.tally) / self.seconds,
            mb_per_s=self.tally.nbytes / self.seconds / 1e6,
            latency_p50_s=ordered[len(ordered) // 2],
            latency_p99_s=ordered[len(ordered) * 99 // 100],
            checksum=self.tally.checksum(),
        )


@dataclass
class Open:
    """An order under way."""

    turn: int
    number: int
    order: Order
    at: float


def run(watch: Watcher) -> Summary:
    """Do all of it.

    Raises:
        DataUnavailable: the messages are not to be had.
        DemoFailed: something that must hold did not.
    """
    began = time.perf_counter()
    path = sms.locate(watch.download)
    epoch = suppliers.epoch()
    summary = Summary(messages=len(epoch.messages))
    with Parts() as parts, parts.blamed():
        broker, where = _start_broker(parts, watch)
        cleaner, *tokenisers = _start_suppliers(parts, where["backend"], path, watch)
        summary.processes = 2 + 1 + len(tokenisers)
        nbytes = max(suppliers.CLEAN.nbytes, suppliers.TOKENS.nbytes)
        medium = ShmMedium.create(nbytes, SLOTS)
        with Client(where["frontend"], medium, name="demo") as client:
            clean = Timed(
                suppliers.CLEAN_PRODUCT,
                Tally("sms/clean", len(epoch), epoch.clean_batch),
                suppliers.CLEAN,
            )
            tokens = Timed(
                suppliers.TOKENS_PATTERN,
                Tally("sms/tokens", len(epoch), epoch.token_batch),
                suppliers.TOKENS,
            )
            tokenising = _Tokenising(client, tokens, watch)
            tokenising.until(int(SWITCH_AT * len(epoch)), "tokens, first third")
            summary.switch = _switch(client, tokenising, clean, watch)
            tokenising.until(int(KILL_AT * len(epoch)), "tokens, to the half")
            summary.kill = tokenising.kill_one(*tokenisers)
            summary.epochs = [clean.summary(), tokens.summary()]
            summary.broker = _verify_broker(client, tokenisers[0].title)
            _leave(parts, client, [cleaner, *tokenisers[1:]], broker)
    segment = Path("/dev/shm") / medium.address.partition(":")[2]
    if segment.exists():
        raise DemoFailed(f"the client's shared memory {segment} was left behind")
    summary.seconds = time.perf_counter() - began
    summary.ok = True
    return summary


# --- the parts --------------------------------------------------------------------------


def _start_broker(parts: Parts, watch: Watcher) -> tuple[Part, dict[str, Any]]:
    free = "tcp://127.0.0.1:0"
    broker = parts.start("broker", "broker", "--frontend", free, "--backend", free, "--json")
    where = broker.wait_for("listening")
    watch.part("broker", broker.pid, f"{where['frontend']} and {where['backend']}")
    return broker, where


def _start_suppliers(parts: Parts, backend: str, path: Path, watch: Watcher) -> list[Part]:
    wanted = [
        ("cleaner", "clean", suppliers.CLEAN_PRODUCT),
        ("tokeniser-1", "tokens", suppliers.TOKENS_PATTERN),
        ("tokeniser-2", "tokens", suppliers.TOKENS_PATTERN),
    ]
    started = [
        parts.start(
            name,
            *("supplier", "--serve", f"{MODULE}:{function}", "--product", pattern),
            *("--backend", backend, "--name", name, "--credit", "1", "--json"),
            environment={sms.VARIABLE: str(path)},
        )
        for name, function, pattern in wanted
    ]
    for part, (name, _, pattern) in zip(started, wanted, strict=True):
        part.wait_for("serving")
        watch.part(name, part.pid, f"serves {pattern}")
    return started


def _leave(parts: Parts, client: Client, serving: list[Part], broker: Part) -> None:
    """Drain the suppliers, then stop the broker; all must leave with 0."""
    told = client.drain()
    if told != len(serving):
        raise DemoFailed(f"{told} suppliers were asked to leave, not {len(serving)}")
    deadline = time.monotonic() + END_S
    while any(part.running for part in serving) and time.monotonic() < deadline:
        time.sleep(LOOK_S)
    faults = [f"{part.title} did not leave when asked" for part in serving if part.running]
    faults += parts.end([*serving, broker])
    if faults:
        raise DemoFailed("; ".join(faults))


# --- the stages -------------------------------------------------------------------------


class _Tokenising:
    """Consumes the epoch of tokens, by pattern: each batch is an id of its own."""

    def __init__(self, client: Client, timed: Timed, watch: Watcher) -> None:
        self._client = client
        self._timed = timed
        self._watch = watch
        self._open: deque[Open] = deque()
        self._turns = itertools.count()
        self._to_order = deque(timed.tally.missing())

    def until(self, count: int, title: str) -> None:
        """Go on until ``count`` batches of the epoch have come."""
        tally = self._timed.tally
        before = len(tally)
        with self._watch.stage(title, count - before) as done, self._timed.clock():
            while len(tally) < count:
                self._turn()
                done(len(tally) - before)

    def _turn(self) -> None:
        """Keep the window full, and take what has come."""
        missing = min(WINDOW - len(self._open), len(self._to_order))
        if missing:
            numbers = [self._to_order.popleft() for _ in range(missing)]
            now = time.perf_counter()
            names = [suppliers.TOKENS_PRODUCT.format(number) for number in numbers]
            orders = self._client.orders(names)
            self._open += map(Open, self._turns, numbers, orders, [now] * missing)
        over = [each for each in self._open if each.order.done]
        for each in over:
            self._open.remove(each)
            self._take(each, LOOK_S)
        if not over:
            try:
                self._take(self._open[0], LOOK_S)
            except OrderTimeout:
                self._check_age(self._open[0])
            else:
                self._open.popleft()

    def _take(self, each: Open, timeout_s: float) -> None:
        with each.order.result(timeout_s) as product:
            self._timed.take(product, each.number, each.at)

    def _check_age(self, each: Open) -> None:
        if time.perf_counter() - each.at > PRODUCT_S:
            raise DemoFailed(f"batch {each.number} did not come within {PRODUCT_S:g} s")

    # --- the switch ---------------------------------------------------------------------

    def discard(self) -> tuple[int, set[str]]:
        """Drop what is under way: how many orders that ended, and all their ids."""
        ordered = {each.order.order_id for each in self._open}
        dropped = self._client.discard()
        for each in self._open:
            try:
                each.order.result(LOOK_S)
            except OrderCancelled:
                continue
            raise DemoFailed(f"batch {each.number} was served after it was discarded")
        self._open.clear()
        self._to_order = deque(self._timed.tally.missing())
        return dropped, ordered

    # --- the kill -----------------------------------------------------------------------

    def kill_one(self, victim: Part, heir: Part) -> dict[str, Any]:
        """Kill ``victim`` while a batch is in its hands, and consume the rest of the epoch.

        ``heir`` is the only other one that makes the product.
        """
        tally = self._timed.tally
        before = len(tally)
        title = "tokens, the rest, and a kill -9"
        with (
            self._watch.stage(title, tally.batches - before) as done,
            self._timed.clock(),
        ):
            # Frozen, it keeps the one batch that it was given: the one that does not come
            # while those that were ordered after it do.
            victim.freeze()
            frozen_at = time.perf_counter()
            while (held := self._stuck(frozen_at)) is None:
                if len(tally) == tally.batches:
                    raise DemoFailed(f"{victim.title} was stopped and had no batch in its hands")
                self._turn()
                done(len(tally) - before)
            victim.kill()
            killed_at = time.perf_counter()
            came_s = 0.0
            while len(tally) < tally.batches:
                self._turn()
                done(len(tally) - before)
                if not came_s and held not in self._open:
                    came_s = time.perf_counter() - killed_at
        return {
            "supplier": victim.title,
            "batch": held.number,
            "made_by": heir.title,
            "came_again_after_s": came_s,
            "retired_slots": self._client.figures()["retired"],
        }

    def _stuck(self, since: float) -> Open | None:
        """The order that half a window of later ones has overtaken, a while after ``since``."""
        if not self._open or time.perf_counter() - since < STUCK_S:
            return None
        oldest = self._open[0]
        ordered_since = self._open[-1].turn - oldest.turn + 1
        overtaken_by = ordered_since - len(self._open)
        # Asked last: it looks for what has arrived up to now.
        return oldest if overtaken_by >= WINDOW // 2 and not oldest.order.done else None


def _switch(
    client: Client, tokenising: _Tokenising, clean: Timed, watch: Watcher
) -> dict[str, Any]:
    """Drop the tokens under way and consume the other product, by name: nothing stale may come."""
    dropped, stale = tokenising.discard()
    if not dropped:
        raise DemoFailed("no order was under way at the switch")
    ordered: deque[float] = deque()

    def names() -> Iterator[str]:
        for _ in range(clean.tally.batches):
            ordered.append(time.perf_counter())
            yield suppliers.CLEAN_PRODUCT

    with watch.stage("clean, the whole epoch", clean.tally.batches) as done, clean.clock():
        for product in client.stream(names(), prefetch=WINDOW, timeout_s=PRODUCT_S):
            if product.order_id in stale or product.product_id != suppliers.CLEAN_PRODUCT:
                raise DemoFailed(f"{product.product_id} was served after the switch")
            clean.take(product, None, ordered.popleft())
            done(len(clean.tally))
    return {"dropped": dropped, "stale": 0}


def _verify_broker(client: Client, killed: str) -> dict[str, Any]:
    """What the broker counted agrees: nothing failed, nothing is left, the killed one is gone."""
    stats = client.stats()
    orders = stats["orders"]
    left = orders["open"]
    names = [each["name"] for each in stats["suppliers"]["list"]]
    if orders["failed"] or left or killed in names:
        raise DemoFailed(
            f"the broker counts {orders['failed']} failed and {left} open orders, and knows "
            f"the suppliers {', '.join(names)}"
        )
    return {name: orders[name] for name in ("placed", "fulfilled", "cancelled", "failed")}
