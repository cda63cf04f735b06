"""What both loaders' samples are made by, and a supplier of them: ``python -m bench.loader_parts``.

Without torch, as a supplier may be.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from entrepot.contract import Contract
from entrepot.market.supplier import Supplier, Work
from entrepot.tensors import TensorSpec
from tests.peer.lines import commands, serve

FLOATS = (1 << 20) // 4 - 2
CONTRACT = Contract([TensorSpec("x", (FLOATS,), "float32"), TensorSpec("label", (), "int64")])
"""1 MiB a sample."""

WORK_S = 0.005

Sample = dict[str, NDArray[np.float32] | NDArray[np.int64]]


def _turn(values: NDArray[np.float64]) -> None:
    np.sin(values, out=values)


def turns_of(seconds: float) -> int:
    """Turns that take so long on a core that nobody else is on just now."""
    values = np.linspace(0, 1, 4096)
    best = float("inf")
    for _ in range(20):
        began = time.perf_counter()
        for _ in range(20):
            _turn(values)
        best = min(best, (time.perf_counter() - began) / 20)
    return max(1, round(seconds / best))


def samples(turns: int) -> Iterator[Sample]:
    """Each takes 5 ms of work on a core, or of sleep with no turns."""
    label = 0
    values = np.linspace(0, 1, 4096)
    while True:
        for _ in range(turns):
            _turn(values)
        if not turns:
            time.sleep(WORK_S)
        label += 1
        yield {"x": np.full(FLOATS, label, np.float32), "label": np.asarray(label, np.int64)}


class Driven:
    """The commands."""

    def supply(self, backend: str, turns: dict[str, int]) -> None:
        """Make each product in so many turns; returns once the broker knows it."""
        made = {name: samples(count) for name, count in turns.items()}

        def make(work: Work, out: memoryview) -> int:
            return CONTRACT.encode_into(out, **next(made[work.product_id]))

        self._supplier = Supplier(backend, dict.fromkeys(turns, make), credit=2)
        self._supplier.start()
        self._supplier.wait_registered(60)


if __name__ == "__main__":
    serve(commands(Driven()))
