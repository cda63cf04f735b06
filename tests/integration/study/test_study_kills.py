"""kill -9 of any process at any moment: the study ends with its budget, and every story is whole.

A schedule is a seed. It says after which system call of its store each process is killed: before,
after, or with half of a write written. Whoever is killed is replaced, until there were enough.
"""

from __future__ import annotations

import os
import random
import time
import traceback
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from entrepot.store import Store
from entrepot.store.folder import FolderStore
from entrepot.store.record import Fault
from entrepot.study import Sampler, Space, Study, next_free, trials
from tests.peer.process import LineProcess
from tests.peer.waiting import until
from tests.unit.store.folder_faults import Killing, When

SPACE = Space().real("lr", 1e-4, 1.0, log=True).choice("opt", ["adam", "sgd"])
BUDGET = 40
WORKERS = 3
KILLS = 20
MOST_CALLS = {When.BEFORE: 250, When.AFTER: 250, When.WITHIN: 30}
"""Of how many calls, or writes, a process is killed at one: it makes more for what it runs."""
STALE_S = 1.0
LIMIT_S = 90.0


@dataclass(frozen=True)
class Schedule:
    """What is random.

    :ivar links: whether the file system has hard links.
    """

    path: Path
    max_attempts: int
    links: bool

    def store(self, calls: Killing) -> FolderStore:
        return FolderStore(self.path / "store", durable=False, calls=calls, torn_grace_s=3.0)

    def work(self, calls: Killing) -> None:
        """A machine, from its start to the study's end."""
        store = self.store(calls)
        study = Study(
            store,
            "spam",
            SPACE,
            Sampler.random(0),
            me=f"p{os.getpid()}",
            stale=STALE_S,
            max_attempts=self.max_attempts,
        )
        for trial in study.work(trials=BUDGET):
            self.log(f"took {trial.number} {trial.attempt}")
            with trial:
                trial.report(1.0)
                trial.report(0.5)
                trial.finish()
                self.log(f"done {trial.number} {trial.attempt}")
        store.close()

    def log(self, line: str) -> None:
        """What was promised to this process; a line is one write, which no kill cuts in two."""
        log = os.open(self.path / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(log, f"{line}\n".encode())
        os.close(log)

    def start(self, at: int, when: When) -> int:
        """Fork a machine that is killed at its call ``at``, if that is not 0."""
        child = os.fork()
        if child:
            return child
        code = 1
        try:
            calls = Killing(links=self.links)
            calls.arm(at, when)
            self.work(calls)
            code = 0
        except BaseException:
            (self.path / f"error-{os.getpid()}").write_text(traceback.format_exc())
        finally:
            os._exit(code)

    def logged(self, word: str) -> list[tuple[int, int]]:
        lines = (self.path / "log").read_text().splitlines()
        said = [line.split() for line in lines if line.startswith(word)]
        return [(int(number), int(attempt)) for _, number, attempt in said]

    def errors(self) -> str:
        return "\n".join(each.read_text() for each in self.path.glob("error-*"))


def ended(children: set[int]) -> list[tuple[int, int]]:
    """Which of the children are gone by now, with what."""
    found = [os.waitpid(child, os.WNOHANG) for child in sorted(children)]
    return [(child, status) for child, status in found if child]


def carried_out(schedule: Schedule, seed: int) -> int:
    """Run the schedule to its end; how many were killed."""
    rng = random.Random(seed)
    whens = [rng.choice(list(When)) for _ in range(KILLS)]
    to_kill = [(rng.randrange(1, MOST_CALLS[when]), when) for when in whens]
    killed = 0
    limit = time.monotonic() + LIMIT_S
    children: set[int] = set()
    try:
        while True:
            while len(children) < WORKERS and to_kill:
                children.add(schedule.start(*to_kill.pop()))
            if not children:
                break
            for child, status in ended(children):
                children.remove(child)
                killed += os.WIFSIGNALED(status)
                assert os.WIFSIGNALED(status) or os.waitstatus_to_exitcode(status) == 0, (
                    schedule.errors()
                )
            assert time.monotonic() < limit, "a number is blocked"
            time.sleep(0.002)
        # All that were to be killed are; one that lives ends the study.
        last = schedule.start(0, When.BEFORE)
        children.add(last)
        while not (gone := ended(children)):
            assert time.monotonic() < limit, "a number is blocked"
            time.sleep(0.01)
        children.clear()
        assert os.waitstatus_to_exitcode(gone[0][1]) == 0, schedule.errors()
    finally:
        for child in children:
            os.kill(child, 9)
            os.waitpid(child, 0)
    return killed


def check(schedule: Schedule) -> None:
    with schedule.store(Killing(links=schedule.links)) as store:
        found = trials(store, study="spam")
        assert [one.trial for one in found] == list(range(BUDGET)), "exactly the budget"
        assert next_free(store, study="spam") == BUDGET
        sampler = Sampler.random(0)
        done = set(schedule.logged("done"))
        took = Counter(schedule.logged("took"))
        assert set(took.values()) == {1}, "an attempt is one process's"
        for one in found:
            story = store.scan(f"spam/trial/{one.trial}/")
            # All attempts from the first to the last, each with the point of the number.
            assert [int(record.name.rsplit("/", 1)[1]) for record in story] == list(
                range(len(story))
            )
            point = str(sampler.ask(SPACE, one.trial))
            assert {record.meta["point"] for record in story} == {point}
            states = [record.meta["state"] for record in story]
            finished = [state for state in states if state not in ("running", "released")]
            assert finished, "a trial that nobody runs, and that is not finished"
            assert one.state in finished
            for attempt, state in enumerate(states):
                if (one.trial, attempt) in done:
                    assert state == "done", "what was acknowledged is lost"
                if state == "failed":
                    assert story[attempt].meta["because"] == "lost"
                    assert attempt >= schedule.max_attempts
            assert len(story) <= schedule.max_attempts + 1
        # Without links a claim may be cut in two; of a trial that ended all the same it may stay.
        torn = store.skipped.faults
        assert set(torn.values()) <= (set() if schedule.links else {Fault.TORN})


@pytest.mark.parametrize("seed", range(3))
def test_whoever_is_killed_and_whenever(tmp_path: Path, seed: int) -> None:
    schedule = Schedule(tmp_path, max_attempts=3, links=True)
    assert carried_out(schedule, seed) >= KILLS // 2, "hardly anybody was killed"
    check(schedule)


def test_who_is_killed_at_a_trial_is_followed_on_any_store(shared: Store) -> None:
    """Two hang at a trial each, and beat; killed, they fall silent, and the third has it all."""
    with ExitStack() as stack:
        doomed, other, last = (
            stack.enter_context(LineProcess("tests.integration.study.parties")) for _ in range(3)
        )
        for one in (doomed, other, last):
            one.ask("open", url=shared.url)
        # They look for nobody themselves, however busy the machine is.
        doomed.begin("work", me="m0", budget=8, stale=600.0, hangs_at=2)
        until(lambda: [one.trial for one in trials(shared, study="spam")] == [0, 1, 2])
        other.begin("work", me="m1", budget=8, stale=600.0, hangs_at=5)
        until(lambda: [one.trial for one in trials(shared, study="spam")] == [0, 1, 2, 3, 4, 5])
        for one in (doomed, other):
            one.kill()
        assert last.ask("work", me="m2", budget=8, stale=3.0) == 4
    found = trials(shared, study="spam")
    assert [(one.trial, one.state) for one in found] == [(n, "done") for n in range(8)]
    assert [one.attempt for one in found] == [0, 0, 1, 0, 0, 1, 0, 0]
    assert [one.meta.who for one in found] == ["m0"] * 2 + ["m2"] + ["m1"] * 2 + ["m2"] * 3


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(3, 53))
def test_whoever_is_killed_and_whenever_again_and_again(tmp_path: Path, seed: int) -> None:
    schedule = Schedule(tmp_path, max_attempts=1 + seed % 4, links=seed % 2 == 0)
    carried_out(schedule, seed)
    check(schedule)
