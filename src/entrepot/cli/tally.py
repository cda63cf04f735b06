"""What came of the orders of ``entrepot client pull``, and how long it took."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from entrepot.cli import output

if TYPE_CHECKING:
    from entrepot.market.client import Client, Product

KEPT_LATENCIES = 1_000_000


@dataclass
class Tally:
    """What came, and how long it took."""

    product: str
    wanted: int
    came: int = 0
    nbytes: int = 0
    began: float = field(default_factory=time.perf_counter)
    last_at: float = 0.0
    latencies: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT_LATENCIES))
    _ordered: deque[float] = field(default_factory=deque)

    def timed(
        self, client: Client, prefetch: int | None, timeout_s: float | None
    ) -> Iterator[Product]:
        """The products, in the order of their orders; notes when each order is placed."""
        return client.stream(self._names(), prefetch=prefetch, timeout_s=timeout_s)

    def _names(self) -> Iterator[str]:
        for _ in range(self.wanted):
            self._ordered.append(time.perf_counter())
            yield self.product

    def take(self, product: Product) -> None:
        """Count a product that came."""
        now = time.perf_counter()
        self.latencies.append(now - self._ordered.popleft())
        self.last_at = now
        self.came += 1
        self.nbytes += product.nbytes

    @property
    def seconds(self) -> float:
        """From the first order to the last product."""
        return self.last_at - self.began if self.came else 0.0

    @property
    def rate(self) -> float:
        """Products a second."""
        return self.came / self.seconds if self.came else 0.0

    def summary(self) -> dict[str, Any]:
        """Figures of the whole. The rate is from the first order to the last product."""
        took_s = self.seconds
        ordered = sorted(self.latencies)
        return {
            "product": self.product,
            "wanted": self.wanted,
            "came": self.came,
            "nbytes": self.nbytes,
            "seconds": took_s,
            "orders_per_s": self.rate if self.came else None,
            "mb_per_s": self.nbytes / took_s / 1e6 if self.came else None,
            "latency_p50_s": output.percentile(ordered, 0.50),
            "latency_p99_s": output.percentile(ordered, 0.99),
        }
