"""Consuming an epoch of tokens by pattern: orders kept open, products verified and timed."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

from entrepot.contract import Contract
from entrepot.demo import sms, suppliers
from entrepot.demo.tally import Tally
from entrepot.errors import DemoFailed, OrderTimeout
from entrepot.market.client import Client, Order, Product

WINDOW = 32
"""Orders kept open at once."""

SLOTS = 2 * WINDOW
"""Twice as many slots, so that what a switch quarantines holds nothing up."""

LOOK_S = 0.02
PRODUCT_S = 20.0
"""Time for a product to come, whatever happened to its supplier."""


class Watcher(Protocol):
    """Who is told how it goes."""

    def download(self, came: int, expected: int) -> None:
        """Bytes of the messages that came, and that are expected (0: unknown)."""

    def part(self, title: str, pid: int, does: str) -> None:
        """A process is ready."""

    def way(self, over: str) -> None:
        """What the TCP of the second half runs over."""

    def stage(
        self, title: str, total: int, unit: str = "batches"
    ) -> AbstractContextManager[Callable[[int], None]]:
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


def tokens_of_an_epoch() -> Timed:
    """For an epoch of tokens, of which nothing has come."""
    epoch = suppliers.epoch()
    tally = Tally("sms/tokens", len(epoch), epoch.token_batch)
    return Timed(suppliers.TOKENS_PATTERN, tally, suppliers.TOKENS)


@dataclass
class Open:
    """An order under way."""

    turn: int
    number: int
    order: Order
    at: float


class Consumer:
    """Consumes the epoch of tokens, by pattern: each batch is an id of its own.

    :ivar open: orders under way, oldest first.
    :ivar to_order: batches to be ordered.
    """

    def __init__(self, client: Client, timed: Timed, watch: Watcher) -> None:
        self.client = client
        self.timed = timed
        self.watch = watch
        self.open: deque[Open] = deque()
        self.to_order = deque(timed.tally.missing())
        self._turns = itertools.count()

    @property
    def came(self) -> int:
        """Batches that have come."""
        return len(self.timed.tally)

    @contextmanager
    def stage(self, title: str, count: int) -> Iterator[Callable[[], None]]:
        """A stage at whose end ``count`` batches have come; its value has one more turn."""
        before = self.came
        with self.watch.stage(title, count - before) as done, self.timed.clock():

            def turn() -> None:
                self.turn()
                done(self.came - before)

            yield turn

    def until(self, count: int, title: str) -> None:
        """Go on until ``count`` batches of the epoch have come."""
        with self.stage(title, count) as turn:
            while self.came < count:
                turn()

    def turn(self) -> None:
        """Keep the window full, and take what has come."""
        missing = min(WINDOW - len(self.open), len(self.to_order))
        if missing:
            numbers = [self.to_order.popleft() for _ in range(missing)]
            now = time.perf_counter()
            names = [suppliers.TOKENS_PRODUCT.format(number) for number in numbers]
            orders = self.client.orders(names)
            self.open += map(Open, self._turns, numbers, orders, [now] * missing)
        over = [each for each in self.open if each.order.done]
        for each in over:
            self.open.remove(each)
            self._take(each)
        if not over:
            try:
                self._take(self.open[0])
            except OrderTimeout:
                self._check_age(self.open[0])
            else:
                self.open.popleft()

    def _take(self, each: Open) -> None:
        with each.order.result(LOOK_S) as product:
            self.timed.take(product, each.number, each.at)

    def _check_age(self, each: Open) -> None:
        if time.perf_counter() - each.at > PRODUCT_S:
            raise DemoFailed(f"batch {each.number} did not come within {PRODUCT_S:g} s")
