"""A study has one goal, and whoever comes with another is told both."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from entrepot.errors import ConfigurationError, GoalMismatch, StudyError
from entrepot.store import Store
from entrepot.store.memory import MemoryStore
from entrepot.store.record import EMPTY
from entrepot.study import Space, Study, enqueue, report, take, trials
from entrepot.study.agreed import agreed_goal
from entrepot.study.goals import Goal

SPACE = Space().real("lr", 0.0, 1.0)
POINT = SPACE.point(lr=0.5)
ONE, OTHER = {"loss": "min", "ms": "min"}, {"ms": "min", "loss": "max"}


@pytest.fixture(params=["folder", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path / "store", durable=False) if request.param == "folder" else MemoryStore()
    with made:
        yield made


def again(store: Store) -> Store:
    """The same store, as another machine has it."""
    return store.view() if isinstance(store, MemoryStore) else Store.open(store.url, durable=False)


def worked(store: Store, goal: Any, trials: int = 1) -> None:
    for trial in Study(store, "spam", SPACE, goal=goal, me="m").work(trials=trials):
        with trial:
            trial.score = 0.5 if isinstance(goal, str) else dict.fromkeys(goal, 0.5)


@pytest.mark.parametrize(("first", "second"), [("min", "max"), ("max", "min"), (ONE, OTHER)])
@pytest.mark.parametrize("same", [False, True], ids=["another process", "the same process"])
def test_the_second_goal_is_refused_and_nothing_is_written(
    store: Store, first: Goal, second: Goal, same: bool
) -> None:
    worked(store, first)
    other = store if same else again(store)
    before = {record.name for record in store.scan()}
    ways: list[Callable[[], object]] = [
        lambda: Study(other, "spam", SPACE, goal=second).work(trials=3),
        lambda: Study(other, "spam", SPACE, goal=second).enqueue(POINT),
        lambda: Study(other, "spam", SPACE, goal=second).best(),
        lambda: Study(other, "spam", SPACE, goal=second).table(),
        lambda: take(other, POINT, study="spam", trial=7, me="m", goal=second),
        lambda: enqueue(other, POINT, study="spam", me="m", goal=second),
    ]
    for way in ways:
        with pytest.raises(GoalMismatch) as refused:
            way()
        assert repr(first) in str(refused.value)
        assert repr(second) in str(refused.value)
        assert (refused.value.agreed, refused.value.given) == (first, second)
        assert isinstance(refused.value, StudyError | ConfigurationError)
    assert {record.name for record in store.scan()} == before
    worked(other, first, trials=2)
    assert len(trials(store, study="spam")) == 2


def test_the_order_of_several_goals_is_nothing(store: Store) -> None:
    worked(store, {"loss": "min", "ms": "max"})
    worked(again(store), {"ms": "max", "loss": "min"}, trials=2)
    assert len(trials(store, study="spam")) == 2


def test_a_goal_that_is_told_with_the_report_is_one_as_well(store: Store) -> None:
    assert take(store, POINT, study="spam", trial=0, me="m")
    assert take(store, POINT, study="spam", trial=1, me="m")
    report(store, POINT, [1.0], study="spam", trial=0, me="m", state="done", goal="max")
    with pytest.raises(GoalMismatch):
        report(store, POINT, [1.0], study="spam", trial=1, me="m", state="done", goal="min")
    report(store, POINT, [1.0], study="spam", trial=1, me="m", state="done", goal="max")


def test_a_study_of_before_has_the_goal_of_its_first_trial() -> None:
    store = MemoryStore()
    for trial, goal in enumerate(("", "max", "min")):
        meta = {"state": "done", "point": str(POINT), "score": "0.5", "goal": goal}
        store.bind(f"spam/trial/{trial}/0", EMPTY, meta)
    with pytest.raises(GoalMismatch, match=r"is 'max', .* is 'min'"):
        worked(store, "min", trials=4)
    worked(store, "max", trials=4)
    assert agreed_goal(store, "spam") == "max"


def test_a_study_that_was_deleted_may_have_another_goal(store: Store) -> None:
    worked(store, "min")
    for part in ("trial", "segment", "space"):
        store.delete(f"spam/{part}/")
    worked(again(store), "max")
    with pytest.raises(GoalMismatch):
        worked(store, "min", trials=2)


def test_another_study_may_have_another_goal(store: Store) -> None:
    worked(store, "min")
    assert take(store, POINT, study="ham", trial=0, me="m", goal="max")


def _race(folder: str, goal: Any, ready: Any, told: Any) -> None:
    with Store(folder, durable=False) as store:
        assert ready.wait(60)
        try:
            told.put((goal, take(store, POINT, study="spam", trial=0, me=goal, goal=goal)))
        except GoalMismatch:
            told.put((goal, None))


@pytest.mark.parametrize("_", range(5))
def test_of_many_that_begin_at_once_all_that_go_on_have_one_goal(tmp_path: Path, _: int) -> None:
    folder = str(tmp_path / "store")
    Store(folder, durable=False).close()
    forks = multiprocessing.get_context("fork")
    ready, told = forks.Event(), forks.Queue()
    started = [
        forks.Process(target=_race, args=(folder, goal, ready, told)) for goal in ("min", "max") * 3
    ]
    for process in started:
        process.start()
    ready.set()
    results = [told.get(timeout=60) for _ in started]
    for process in started:
        process.join(60)
        assert process.exitcode == 0
        process.close()
    told.close()
    told.join_thread()
    refused = {goal for goal, won in results if won is None}
    went_on = {goal for goal, won in results if won is not None}
    assert len(refused) == len(went_on) == 1, results
    assert sum(won is True for _, won in results) == 1
    with Store(folder, read_only=True) as store:
        assert {agreed_goal(store, "spam")} == went_on
