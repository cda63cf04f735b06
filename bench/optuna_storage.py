"""Optuna's trials over a store, beside its journals: a folder with fsyncs, several processes.

    python bench/optuna_storage.py              # a minute
    python bench/optuna_storage.py --json out.json

A trial asks for two numbers and returns their sum; ``RandomSampler``, so that the storage is what
is timed. Runs of the three take turns, and the middle one counts. ``log`` is the other way to a
storage of one's own: ``JournalStorage`` over a log in the same kind of store, in which each entry
is claimed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

if __package__ in (None, ""):  # run as a file
    sys.path.insert(0, str(Path(__file__).parents[1]))

import optuna
from optuna.storages import BaseStorage, JournalStorage
from optuna.storages.journal import BaseJournalBackend, JournalFileBackend
from rich.console import Console
from rich.table import Table

from bench.report import machine
from entrepot.store import Store
from entrepot.study.optuna import EntrepotStorage

FORK = multiprocessing.get_context("fork")
WORKERS, EACH, ROUNDS = 8, 40, 5


class Log(BaseJournalBackend):
    """A journal in a store: entry n is the record that somebody claimed as ``log/<n>``."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._next = 0

    def read_logs(self, log_number_from: int) -> Iterable[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        while True:
            first = log_number_from + len(found)
            names = [f"log/{number}" for number in range(first, first + 16)]
            for record in self._store.resolve_many(names):
                if record is None:
                    self._next = max(self._next, log_number_from + len(found))
                    return found
                found.append(json.loads(record.meta["entry"]))

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        for log in logs:
            while not self._store.claim(f"log/{self._next}", meta={"entry": json.dumps(log)}):
                self._next += 1


STORAGES: dict[str, Callable[[str], BaseStorage]] = {
    "EntrepotStorage": EntrepotStorage,
    "log": lambda path: JournalStorage(Log(Store(path))),
    "journal": lambda path: JournalStorage(JournalFileBackend(f"{path}/journal")),
}


def objective(trial: optuna.Trial) -> float:
    return trial.suggest_float("x", 0, 1) + trial.suggest_float("y", 0, 1)


def work(name: str, path: str, number: int, ready: Any, start: Any, spent: Any) -> None:
    study = optuna.load_study(
        storage=STORAGES[name](path),
        study_name="bench",
        sampler=optuna.samplers.RandomSampler(seed=number),
    )
    ready.release()
    start.wait()
    began = time.monotonic()
    study.optimize(objective, n_trials=EACH)
    spent.put((began, time.monotonic()))


def run(name: str, path: str) -> tuple[float, float]:
    """Trials a second, and milliseconds to load them all."""
    optuna.create_study(storage=STORAGES[name](path), study_name="bench")
    ready, start, spent = FORK.Semaphore(0), FORK.Event(), FORK.SimpleQueue()
    processes = [
        FORK.Process(target=work, args=(name, path, number, ready, start, spent))
        for number in range(WORKERS)
    ]
    for process in processes:
        process.start()
    for _ in processes:
        ready.acquire()
    start.set()
    times = [spent.get() for _ in processes]
    for process in processes:
        process.join()
    seconds = max(ended for _, ended in times) - min(began for began, _ in times)
    began = time.monotonic()
    study = optuna.load_study(storage=STORAGES[name](path), study_name="bench")
    trials = study.get_trials(deepcopy=False)
    loaded = (time.monotonic() - began) * 1e3
    assert [trial.number for trial in trials] == list(range(WORKERS * EACH))
    return WORKERS * EACH / seconds, loaded


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.formatter_class = argparse.RawDescriptionHelpFormatter
    arguments.add_argument("--json", type=Path, metavar="PATH", help="write the figures there too")
    arguments.add_argument("--at", type=Path, metavar="PATH", help="a folder on the disk to use")
    asked = arguments.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in STORAGES}
    for _ in range(ROUNDS):
        for name, runs in found.items():
            with tempfile.TemporaryDirectory(dir=asked.at) as path:
                runs.append(run(name, path))
    table = Table(title=f"{WORKERS} processes, {WORKERS * EACH} trials", title_justify="left")
    for column in ("storage", "trials/s", "lowest", "highest", "load, ms"):
        table.add_column(column, justify="left" if column == "storage" else "right")
    figures: dict[str, Any] = {}
    for name, runs in found.items():
        rates = sorted(rate for rate, _ in runs)
        load = statistics.median(loaded for _, loaded in runs)
        figures[name] = {"trials_per_s": statistics.median(rates), "runs": rates, "load_ms": load}
        said = (statistics.median(rates), rates[0], rates[-1], load)
        table.add_row(name, *(f"{figure:.0f}" for figure in said))
    Console().print(table)
    if asked.json:
        told = {"storages": figures, "optuna": optuna.__version__, "machine": machine()}
        asked.json.write_text(json.dumps(told, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
