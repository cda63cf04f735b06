"""What taking and reporting trials costs, beside Optuna's journal and beside the bare calls.

    python bench/study.py                  # minutes
    python bench/study.py --quick          # under a minute
    python bench/study.py --only trials --json out.json

Eight processes share one folder. A trial does nothing: what is measured is asking, claiming and
writing down. Each round has all contenders in turn, on the same disk.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

if __package__ in (None, ""):  # run as a file
    sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.processes import say
from bench.report import Bar, Figures, Question, Subject, main
from entrepot.store import Store
from entrepot.store.record import EMPTY, Record
from entrepot.study import History, Sampler, Space, report, take

PROCESSES = 8
SPACE = Space().real("lr", 1e-5, 1e-1, log=True).int("dim", 8, 48).choice("opt", ["adam", "sgd"])

WHAT = {
    "optuna_trials_per_s": "Optuna's file journal, 8 processes: trials/s",
    "bare_pairs_per_s": "bare calls (write, fsync, link, fsync; again for the end): pairs/s",
    "trials_per_s": "ask, take and report, 8 processes, fsynced: trials/s",
    "trials_over_bare": "the same, over the bare calls",
    "trials_fast_per_s": "the same with durable=False: trials/s",
    "load_10k_s": "load 10,000 finished trials, compacted: s",
    "load_100k_s": "load 100,000 finished trials, compacted: s",
    "refresh_100k_ms": "refresh after one change among 100,000: ms",
}

BARS = (
    Bar("trials_per_s", 1.8, over="optuna_trials_per_s"),
    Bar("trials_over_bare", 0.5),
    Bar("trials_fast_per_s", 15.0, over="optuna_trials_per_s"),
    Bar("load_10k_s", 0.15, at_least=False),
    Bar("load_100k_s", 1.0, at_least=False),
    Bar("refresh_100k_ms", 50.0, at_least=False),
)

STUDY = Subject("Trials, measured", WHAT, BARS)

Worker = Callable[[str, int, int, Any], None]


@contextmanager
def _folder() -> Iterator[Path]:
    """On the real disk, whatever /tmp is."""
    path = Path(tempfile.mkdtemp(prefix="entrepot-bench-", dir=os.environ.get("BENCH_DIR")))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _rate(work: Worker, count: int) -> float:
    """Trials a second that eight processes make together, until the last has made its last.

    How long a process takes to begin and to end is no part of it.
    """
    context = multiprocessing.get_context("spawn")
    with _folder() as path:
        ready = context.Barrier(PROCESSES + 1)
        workers = [
            context.Process(target=_working, args=(work, str(path), number, count, ready))
            for number in range(PROCESSES)
        ]
        for worker in workers:
            worker.start()
        ready.wait(120)
        began = time.perf_counter()
        ready.wait(600)
        spent_s = time.perf_counter() - began
        for worker in workers:
            worker.join()
        if any(worker.exitcode for worker in workers):
            raise RuntimeError("a process of the benchmark failed")
        return count / spent_s


def _working(work: Worker, path: str, number: int, count: int, ready: Any) -> None:
    work(path, number, count, ready)
    ready.wait()


def _ours(path: str, number: int, count: int, ready: Any, durable: bool = True) -> None:
    store = Store(Path(path) / "store", durable=durable)
    sampler, me = Sampler.sobol(0), f"m{number}"
    sampler.ask(SPACE, 0)
    ready.wait()
    # Each has numbers of its own, as the bare calls and Optuna's have: what is lost to others when
    # two claim the same number is tests' to look at.
    for trial in range(number, count, PROCESSES):
        point = sampler.ask(SPACE, trial)
        assert point is not None
        if take(store, point, study="spam", trial=trial, me=me, goal="min"):
            report(store, point, [0.5], study="spam", trial=trial, me=me, state="done")


def _ours_fast(path: str, number: int, count: int, ready: Any) -> None:
    _ours(path, number, count, ready, durable=False)


def _bare(path: str, number: int, count: int, ready: Any) -> None:
    """What a claim and a finish come down to: no less would outlive a power cut."""
    tmp, names = Path(path) / f"tmp{number}", Path(path) / "names"
    names.mkdir(exist_ok=True)
    folder = os.open(names, os.O_RDONLY)
    data = b"x" * 400
    ready.wait()
    for trial in range(number, count, PROCESSES):
        for final in (False, True):
            fd = os.open(tmp, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            os.write(fd, data)
            os.fsync(fd)
            os.close(fd)
            if final:
                tmp.rename(names / str(trial))
            else:
                os.link(tmp, names / str(trial))
                tmp.unlink()
            os.fsync(folder)
    os.close(folder)


def _optuna(path: str, number: int, count: int, ready: Any) -> None:
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    storage = JournalStorage(JournalFileBackend(str(Path(path) / "journal.log")))
    study = optuna.create_study(
        storage=storage,
        study_name="spam",
        load_if_exists=True,
        sampler=optuna.samplers.RandomSampler(seed=number),
    )

    def objective(trial: Any) -> float:
        trial.suggest_float("lr", 1e-5, 1e-1, log=True)
        trial.suggest_int("dim", 8, 48)
        trial.suggest_categorical("opt", ["adam", "sgd"])
        return 0.5

    ready.wait()
    study.optimize(objective, n_trials=count // PROCESSES)


def trials(figures: Figures, quick: bool) -> None:
    """Taking and reporting."""
    count = 160 if quick else 1600
    for turn in range(1 if quick else 5):
        say(f"  round {turn + 1}")
        bare = _rate(_bare, count)
        ours = _rate(_ours, count)
        figures.add(bare_pairs_per_s=bare, trials_per_s=ours, trials_over_bare=ours / bare)
        figures.add(trials_fast_per_s=_rate(_ours_fast, 20 * count))  # over a second of them
        figures.add(optuna_trials_per_s=_rate(_optuna, count))


def _filled(path: Path, blocks: int) -> Store:
    """A store with so many closed blocks of 1,000 trials, and the one after them begun."""
    store = Store(path, durable=False)
    sampler = Sampler.sobol(0)
    points = [str(sampler.ask(SPACE, trial)) for trial in range(1000)]
    for block in range(blocks):
        records = []
        for trial in range(block * 1000, block * 1000 + 1000):
            meta = {
                "state": "done",
                "point": points[trial % 1000],
                "score": repr(trial / 7),
                "who": "m0",
                "goal": "min",
                "beat": "1",
                "tail": "3:0.2:0.5,0.3,0.2",
                "space": SPACE.digest,
                "curve": "0.5,0.3,0.2",
                "took": "1.5",
            }
            name = f"spam/trial/{trial}/0"
            records.append(Record(name, EMPTY, meta, 1.7e9 + trial, "host:1", f"{trial:032x}"))
        store.close_block("spam", block, records)
    return store


def load(figures: Figures, quick: bool) -> None:
    """A process that comes new to a study, and one that looks again."""
    with _folder() as path:
        for name, blocks in (("load_10k_s", 10), ("load_100k_s", 100)):
            store = _filled(path / name, blocks)
            for turn in range(3 if quick else 7):
                history = History(store, "spam")
                began = time.perf_counter()
                history.refresh()
                figures.add(**{name: time.perf_counter() - began})
                assert len(history) == blocks * 1000 + (turn if blocks == 100 else 0)
                if blocks == 100:
                    trial = blocks * 1000 + turn
                    point = Sampler.sobol(0).ask(SPACE, trial)
                    assert take(store, point, study="spam", trial=trial, me="m0")
                    began = time.perf_counter()
                    assert history.refresh()
                    figures.add(refresh_100k_ms=1000 * (time.perf_counter() - began))
                    assert history.trials[trial].state == "running"


QUESTIONS: dict[str, Question] = {"trials": trials, "load": load}


if __name__ == "__main__":
    sys.exit(main(__doc__, STUDY, QUESTIONS))
