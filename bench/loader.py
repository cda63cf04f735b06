"""A loader of products beside a plain DataLoader whose workers make the same samples.

    python bench/loader.py                 # a minute
    python bench/loader.py --quick         # seconds

Samples of 1 MiB in batches of 8, 5 ms each: of work on a core, or of sleep. Two suppliers here, two
workers there; both are asked in turn, round by round, and who is not asked has nothing to do.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

if __package__ in (None, ""):  # run as a file
    sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from torch.utils.data import DataLoader, IterableDataset

from bench.loader_parts import CONTRACT, WORK_S, samples, turns_of
from bench.processes import OURS, Processes, cpu_s
from bench.report import Bar, Figures, Question, Subject, main
from entrepot.training import SoftDataLoader

BATCH = 8
MAKERS = 2
WARM = 8
"""Batches that were made while the other was asked, and some more."""

WHAT = {
    "loader_per_s": "SoftDataLoader, 5 ms of work, 2 suppliers: samples/s",
    "plain_per_s": "DataLoader, 5 ms of work, 2 workers: samples/s",
    "loader_ratio": "the first over the second",
    "loader_sleep_per_s": "SoftDataLoader, 5 ms of sleep, 2 suppliers: samples/s",
    "plain_sleep_per_s": "DataLoader, 5 ms of sleep, 2 workers: samples/s",
    "loader_sleep_ratio": "the first over the second",
}

BARS = (Bar("loader_ratio", 0.95), Bar("loader_sleep_ratio", 1.0))

LOADER = Subject("Loaders, measured", WHAT, BARS)


class Plain(IterableDataset[dict[str, torch.Tensor]]):
    """The same samples, made in the workers."""

    def __init__(self, turns: int) -> None:
        self._turns = turns

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        for sample in samples(self._turns):
            yield {name: torch.from_numpy(array) for name, array in sample.items()}


def _measured(batches: Iterator[Any], count: int, pids: list[int]) -> tuple[float, float]:
    """Samples a second, and milliseconds of a core for each; each is looked at whole."""
    for _ in range(WARM):
        next(batches)
    began, spent = time.perf_counter(), sum(map(cpu_s, pids))
    for _ in range(count):
        float(next(batches)["x"].sum())
    lasted, spent = time.perf_counter() - began, sum(map(cpu_s, pids)) - spent
    return count * BATCH / lasted, 1000 * spent / (count * BATCH)


def _compared(figures: Figures, quick: bool, name: str, turns: int) -> None:
    torch.set_num_threads(1)
    prefix = "" if name == "work" else "_sleep"
    rounds, count = (3, 20) if quick else (7, 60)
    plain = DataLoader(Plain(turns), batch_size=BATCH, num_workers=MAKERS)
    with Processes() as processes:
        broker = processes.start(OURS)
        frontend, backend = broker.ask("broker")
        suppliers = [processes.start("bench.loader_parts") for _ in range(MAKERS)]
        for supplier in suppliers:
            supplier.ask("supply", backend=backend, turns={name: turns})
        with SoftDataLoader(frontend, CONTRACT, name, batch_size=BATCH) as loader:
            ours: Iterator[Any] = iter(loader)
            theirs: Any = iter(plain)
            here = [os.getpid(), broker.pid, *(supplier.pid for supplier in suppliers)]
            there = [os.getpid(), *(worker.pid for worker in theirs._workers)]
            for _ in range(rounds):
                one, one_ms = _measured(ours, count, here)
                other, other_ms = _measured(theirs, count, there)
                figures.add(
                    **{
                        f"loader{prefix}_per_s": one,
                        f"plain{prefix}_per_s": other,
                        f"loader{prefix}_ratio": one / other,
                    }
                )
                figures.detail(
                    **{f"loader{prefix}_cpu_ms": one_ms, f"plain{prefix}_cpu_ms": other_ms}
                )
            del theirs


def work(figures: Figures, quick: bool) -> None:
    """Real work: suppliers and workers need the cores, and so does what is around them."""
    _compared(figures, quick, "work", turns_of(WORK_S))


def sleep(figures: Figures, quick: bool) -> None:
    """Sleep: what is around it shows alone."""
    _compared(figures, quick, "sleep", 0)


QUESTIONS: dict[str, Question] = {"work": work, "sleep": sleep}


if __name__ == "__main__":
    sys.exit(main(__doc__, LOADER, QUESTIONS))
