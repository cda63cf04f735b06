"""The loop in several processes: each trial once, also when workers are told to end or killed."""

from __future__ import annotations

import multiprocessing
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from entrepot.store import Store
from entrepot.study import Sampler, Study, trials
from tests.unit.study.test_study import SPACE, study, until

WORKER = """
import os, sys, time
from entrepot.store import Store
from entrepot.study import Sampler, Space, Study
space = Space().real("lr", 1e-4, 1.0, log=True).choice("opt", ["adam", "sgd"])
url, me, budget, stale, slow, least = sys.argv[1], sys.argv[2], *map(float, sys.argv[3:])
study = Study(Store.open(url, durable=False), "spam", space, Sampler.sobol(0), me=me, stale=stale)
for trial in study.work(trials=int(budget)):
    with trial:
        trial.report(1.0)
        while len({one.meta.who for one in study.trials()}) < least:
            time.sleep(0.005)  # the others have not begun
        time.sleep(slow)
        trial.report(trial.point["lr"])
"""


def worker(
    url: str, me: str, budget: int, stale: float, slow: float, least: int = 1
) -> subprocess.Popen[bytes]:
    """:param least: workers that have begun before the first trial of any of them ends."""
    numbers = map(str, (budget, stale, slow, least))
    return subprocess.Popen([sys.executable, "-c", WORKER, url, me, *numbers])


def test_four_processes_try_what_one_would_and_each_trial_once(tmp_path: Path) -> None:
    store = Store(tmp_path / "store", durable=False)
    workers = [worker(store.url, f"m{number}", 200, 3600, 0.0, 2) for number in range(4)]
    assert [one.wait(100) for one in workers] == [0] * 4
    found = trials(store, study="spam")
    assert [one.trial for one in found] == list(range(200))
    assert {one.attempt for one in found} == {0}
    sampler = Sampler.sobol(0)
    assert [one.meta.point for one in found] == [
        str(sampler.ask(SPACE, trial)) for trial in range(200)
    ]
    assert len(Counter(one.meta.who for one in found)) >= 2
    assert store.skipped.faults == {}
    store.close()


def test_sigterm_hands_the_trial_back_at_once(tmp_path: Path) -> None:
    store = Store(tmp_path / "store", durable=False)
    one = worker(store.url, "m0", 1, 3600, 60)
    until(lambda: any(t.tail.length for t in trials(store, study="spam")))
    one.send_signal(signal.SIGTERM)
    assert one.wait(20) == 128 + signal.SIGTERM
    (left,) = trials(store, study="spam")
    assert left.state == "released"
    other = worker(store.url, "m1", 1, 3600, 0)
    assert other.wait(30) == 0
    assert [(t.state, t.meta.who, t.attempt) for t in trials(store, study="spam")] == [
        ("done", "m1", 1)
    ]
    store.close()


def test_killed_workers_cost_a_trial_run_twice_and_no_more(tmp_path: Path) -> None:
    """Kill -9 at whatever moment; those that are left end with exactly the budget."""
    store = Store(tmp_path / "store", durable=False)
    doomed = [worker(store.url, f"d{number}", 12, 2.0, 0.05) for number in range(2)]
    for count, one in enumerate(doomed, 1):
        until(lambda count=count: len(trials(store, study="spam")) >= 2 * count)  # type: ignore[misc]
        one.kill()
        one.wait()
    last = worker(store.url, "m0", 12, 2.0, 0.0)
    assert last.wait(60) == 0
    found = trials(store, study="spam")
    assert [each.trial for each in found] == list(range(12))
    assert {each.state for each in found} == {"done"}
    assert max(each.attempt for each in found) <= 2
    for each in found:
        story = store.scan(f"spam/trial/{each.trial}/")
        assert [record.name.rsplit("/", 1)[1] for record in story] == [
            str(number) for number in range(each.attempt + 1)
        ]
    store.close()


def _use_in_child(made: Study, answers: Any) -> None:
    for trial in made.work(trials=2):
        with trial:
            trial.report(0.5)
    answers.put([one.state for one in made.trials()])


def test_a_forked_child_can_work_on_the_same_study(tmp_path: Path) -> None:
    store = Store(tmp_path / "store", durable=False)
    made = study(store)
    loop = made.work(trials=2)
    next(loop).finish(0.5)
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    child = context.Process(target=_use_in_child, args=(made, answers))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    child.close()
    assert answers.get() == ["done", "done"]
    answers.close()
    store.close()
