"""The loop as it is printed where the study was first described, by two processes at once."""

from __future__ import annotations

import subprocess
import sys

from entrepot.store import Store
from entrepot.study import Sampler, Space, abandoned, finished, in_flight, trials

PRINTED = """
for trial in range(100):
    point = sampler.ask(space, trial, finished(store, space, study="spam"))
    if not take(store, point, study="spam", trial=trial, me=me, goal="min"):
        continue                                   # somebody else has that one
    ...
    report(store, point, reports, study="spam", trial=trial, me=me,
           state="done", goal="min")
"""

BEFORE = """
import sys, time
from entrepot.store import Store
from entrepot.study import Sampler, Space, finished, report, take, trials
store, me = Store.open(sys.argv[1], durable=False), sys.argv[2]
space = Space().real("lr", 1e-4, 1.0, log=True).choice("opt", ["adam", "sgd"])
sampler = {sampler}

def train(point):
    while len({{one.meta.who for one in trials(store, study="spam")}}) < 2:
        time.sleep(0.005)  # the other has not begun
    return [abs(point["lr"] - 0.01) + 1 / (epoch + 1) for epoch in range(3)]

"""

SPACE = Space().real("lr", 1e-4, 1.0, log=True).choice("opt", ["adam", "sgd"])


def program(sampler: str) -> str:
    assert PRINTED.count("    ...\n") == 1
    work = PRINTED.replace("    ...\n", "    reports = train(point)\n")
    return BEFORE.format(sampler=sampler) + work


def test_the_loop_as_it_is_printed(shared: Store) -> None:
    loop(shared, "Sampler.halton(0)")


def test_the_loop_as_it_is_printed_with_a_sampler_that_looks_back(folder: Store) -> None:
    loop(folder, "Sampler.tpe('min', seed=0)")


def loop(shared: Store, sampler: str) -> None:
    both = [
        subprocess.Popen([sys.executable, "-c", program(sampler), shared.url, me])
        for me in ("m0", "m1")
    ]
    assert [one.wait(100) for one in both] == [0, 0]
    found = trials(shared, study="spam")
    assert [(one.trial, one.attempt, one.state) for one in found] == [
        (number, 0, "done") for number in range(100)
    ]
    assert {one.meta.who for one in found} == {"m0", "m1"}
    assert {one.goal for one in found} == {"min"}
    points = [one.meta.point for one in found]
    assert len(set(points)) == 100
    if "halton" in sampler:
        alone = Sampler.halton(0)
        assert points == [str(alone.ask(SPACE, number)) for number in range(100)]
    pairs = finished(shared, SPACE, study="spam")
    assert [str(point) for point, _ in pairs] == points
    assert [score for _, score in pairs] == [
        abs(float(str(point["lr"])) - 0.01) + 1 / 3 for point, _ in pairs
    ]
    assert in_flight(shared, SPACE, study="spam") == []
    assert abandoned(shared, study="spam", stale=0) == []
    assert shared.skipped.faults == {}
