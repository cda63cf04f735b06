"""Plans reach forked and spawned processes, whole, without a lock."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from entrepot.training.epochs import Shard
from entrepot.training.loader_plan import Plan, SharedPlans
from tests.peer.waiting import until


@pytest.fixture
def plans() -> Iterator[SharedPlans]:
    plans = SharedPlans()
    yield plans
    plans.close()
    plans.close()


def test_what_was_written_is_read(plans: SharedPlans) -> None:
    assert plans.read() == Plan(0)
    plan = Plan(7, "é" * 4096, Shard(10, 1, 2**64 - 1, 1, 3, 4, ((0, 3),)), [(0, 2), (5, 6)])
    plans.write(plan)
    assert plans.number() == 7
    assert plans.read() == plan
    plans.write(Plan(8, "short"))
    assert plans.read() == Plan(8, "short")


def test_no_half_of_a_plan_is_read(plans: SharedPlans) -> None:
    """Plans of many pages, whose parts all say the same."""
    over = threading.Event()

    def write() -> None:
        for number in range(1, 400):
            plans.write(_plan(number))
        over.set()

    writer = threading.Thread(target=write)
    writer.start()
    last = 0
    while not over.is_set():
        plan = plans.read()
        assert plan == _plan(plan.number)
        assert plan.number >= last
        last = plan.number
    writer.join()
    assert plans.read() == _plan(399)


def _plan(number: int) -> Plan:
    if not number:
        return Plan(0)
    return Plan(number, str(number) * 3000, None, [(number, number + 1)] * (number % 7))


def _answer(plans: SharedPlans, pipe: Any) -> None:
    while True:
        plan = plans.read()
        pipe.send(plan.source)
        if plan.closed:
            return
        number = plan.number
        while plans.number() == number:
            os.sched_yield()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_another_process_sees_each_plan(plans: SharedPlans, method: str) -> None:
    context: Any = multiprocessing.get_context(method)
    plans.write(Plan(1, "one"))
    ours, theirs = context.Pipe()
    process = context.Process(target=_answer, args=(plans, theirs))
    process.start()
    assert ours.recv() == "one"
    plans.write(Plan(2, "two"))
    assert ours.recv() == "two"
    plans.write(Plan(3, "over", closed=True))
    assert ours.recv() == "over"
    process.join()
    process.close()
    ours.close()
    theirs.close()


def test_who_has_the_plans_knows_that_their_maker_ended(plans: SharedPlans) -> None:
    """A child makes them and ends; a grandchild has them."""
    assert not plans.orphaned()
    answers, theirs = multiprocessing.Pipe()
    pid = os.fork()
    if pid == 0:
        made = SharedPlans()
        if os.fork() == 0:
            until(made.orphaned)
            theirs.send("it has ended")
        os._exit(0)
    os.waitpid(pid, 0)
    assert answers.recv() == "it has ended"
    assert not plans.orphaned()
    answers.close()
    theirs.close()
