"""How long the store takes to answer, and how often it does not: the sidecar's own figures."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from entrepot.errors import EntrepotError

BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper ends of the histogram, in seconds."""


class Meter:
    """Counts and times what is asked of a store, by operation.

    :ivar outcomes: how often, by (operation, ``ok`` or ``error``).
    :ivar spent_s: seconds in all, by operation.
    :ivar buckets: how many took at most so long, by operation; not cumulative, the last beyond all.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.outcomes: Counter[tuple[str, str]] = Counter()
        self.spent_s: Counter[str] = Counter()
        self.buckets: dict[str, list[int]] = {}
        self._clock = clock

    @contextmanager
    def timed(self, operation: str) -> Iterator[None]:
        """Times the block, which counts as an error if it raises EntrepotError."""
        began = self._clock()
        outcome = "ok"
        try:
            yield
        except EntrepotError:
            outcome = "error"
            raise
        finally:
            spent = self._clock() - began
            self.outcomes[operation, outcome] += 1
            self.spent_s[operation] += spent  # type: ignore[assignment]
            buckets = self.buckets.setdefault(operation, [0] * (len(BUCKETS_S) + 1))
            buckets[sum(1 for end in BUCKETS_S if spent > end)] += 1
