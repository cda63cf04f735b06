"""The loop: budgets, endings, rescues and pruning, by one process."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from entrepot.errors import BudgetShrank, ConfigurationError, PointError, StudyError
from entrepot.store import Store
from entrepot.store.memory import MemoryStore
from entrepot.study import Pruner, Sampler, Space, Study, Trial, rescue, take

SPACE = Space().real("lr", 1e-4, 1.0, log=True).choice("opt", ["adam", "sgd"])


def loss(trial: Trial) -> float:
    lr = trial.point["lr"]
    assert isinstance(lr, float)
    return math.log10(lr) ** 2 + (trial.point["opt"] == "sgd")


def study(store: Store, **options: Any) -> Study:
    options.setdefault("sampler", Sampler.sobol(0))
    options.setdefault("me", "m0")
    return Study(store, "spam", SPACE, **options)


def until(seen: Callable[[], bool], limit_s: float = 60.0) -> None:
    limit = time.monotonic() + limit_s
    while not seen():
        assert time.monotonic() < limit, "it did not come"
        time.sleep(0.01)


def test_the_loop_runs_the_budget_and_ends() -> None:
    made = study(MemoryStore())
    seen = []
    for trial in made.work(trials=20):
        with trial:
            seen.append(trial.number)
            trial.report(loss(trial))
    assert seen == list(range(20))
    assert [one.state for one in made.trials()] == ["done"] * 20
    best = made.best()
    scores = [one.score for one in made.trials() if isinstance(one.score, float)]
    assert (best.score, len(scores)) == (min(scores), 20)
    assert list(made.work(trials=20)) == []


def test_points_are_those_that_the_sampler_gives_one_machine() -> None:
    made = study(MemoryStore())
    for trial in made.work(trials=12):
        with trial:
            assert trial.point == Sampler.sobol(0).ask(SPACE, trial.number)
            trial.report(1.0)


def test_each_ending_is_written_down() -> None:
    made = study(MemoryStore(), pruner=Pruner.threshold(upper=10.0))
    ends: list[str] = []

    def ending(trial: Trial) -> None:
        if trial.number == 0:
            trial.report(0.5)
        elif trial.number == 1:
            assert not trial.report(0.5).should_stop
            verdict = trial.report(11.0)
            assert verdict.should_stop
            assert "11" in str(verdict.because)
        elif trial.number == 2:
            trial.score = 0.25
        elif trial.number == 3:
            trial.report(0.5)
            raise ArithmeticError("no such number")
        elif trial.number == 4:
            trial.prune("by hand")
        elif trial.number == 5:
            trial.finish(score=0.125)
        else:
            trial.report(math.nan)

    for trial in made.work(trials=6):
        try:
            with trial:
                ending(trial)
        except ArithmeticError as error:
            ends.append(str(error))
    assert ends == ["no such number"]
    found = made.trials()
    assert [one.state for one in found] == ["done", "pruned", "done", "failed", "pruned", "done"]
    assert [one.score for one in found] == [0.5, 11.0, 0.25, 0.5, None, 0.125]
    assert found[3].meta.because == "ArithmeticError: no such number"
    assert found[4].meta.because == "by hand"
    assert found[1].meta.because.startswith("report 2 is 11")


def test_nan_always_prunes() -> None:
    made = study(MemoryStore(), pruner=Pruner.median(warmup=100))
    for trial in made.work(trials=1):
        with trial:
            trial.report(0.5)
            assert trial.report(math.nan).because == "report 2 is NaN"
    (one,) = made.trials()
    assert one.state == "pruned"


def test_a_loop_that_is_left_hands_its_trial_back() -> None:
    store = MemoryStore()
    made = study(store)
    loop = made.work(trials=3)
    first = next(loop)
    assert [one.state for one in made.trials()] == ["running"]
    loop.close()  # type: ignore[attr-defined]
    assert [one.state for one in made.trials()] == ["released"]
    other = study(store.view(), me="m1")
    for trial in other.work(trials=3):
        with trial:
            assert (trial.number, trial.attempt) in [(0, 1), (1, 0), (2, 0)]
            trial.report(0.5)
    assert [one.meta.who for one in made.trials()] == ["m1"] * 3
    assert first.point == Sampler.sobol(0).ask(SPACE, 0)


def test_ctrl_c_hands_the_trial_back_and_passes() -> None:
    made = study(MemoryStore())
    loop = made.work(trials=3)
    trial = next(loop)
    trial.report(0.5)
    assert not trial.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert [one.state for one in made.trials()] == ["released"]


def test_a_trial_that_ends_without_a_word_is_handed_back_and_told_of() -> None:
    made = study(MemoryStore())
    loop = made.work(trials=1)
    with next(loop):
        pass
    assert [one.state for one in made.trials()] == ["released"]
    with pytest.raises(StudyError, match="trial 0 ended without a report"):
        next(loop)
    with pytest.raises(StudyError, match="trial 0 ended without a report"):
        list(made.work(trials=1))  # nobody enters them


def test_what_a_loop_hands_back_is_left_to_others() -> None:
    store = MemoryStore()
    numbers = []
    for trial in study(store).work(trials=3):
        with trial:
            numbers.append(trial.number)
            if trial.number == 1:
                trial.release()
            else:
                trial.report(0.5)
    assert numbers == [0, 1, 2]
    assert [t.number for t in study(store.view()).work(trials=3) if t.prune("seen") is None] == [1]  # type: ignore[func-returns-value]


def test_a_trial_that_was_rescued_meanwhile_ends_quietly() -> None:
    store = MemoryStore()
    made = study(store)
    numbers = []
    for trial in made.work(trials=2):
        with trial:
            numbers.append((trial.number, trial.attempt))
            if len(numbers) == 1:
                held = rescue(store.view(), study="spam", trial=0, me="m1")
                assert held is not None
                from entrepot.study import report

                other = store.view()
                report(other, held.point, [3.0], study="spam", trial=0, me="m1", state="done")
            trial.report(1.0)
    assert numbers == [(0, 0), (1, 0)]
    assert [(one.meta.who, one.score) for one in made.trials()] == [("m1", 3.0), ("m0", 1.0)]


def test_a_silent_trial_is_rescued_with_its_point_and_its_checkpoint() -> None:
    store = MemoryStore()
    dead = study(store, stale=3600)
    loop = dead.work(trials=1)
    first = next(loop)
    first.report(0.75)
    first.keep(b"weights")
    heir = study(store.view(), me="m1", stale=0.0)
    for trial in heir.work(trials=1):
        with trial:
            assert (trial.number, trial.attempt) == (0, 1)
            assert trial.point == first.point
            assert trial.checkpoint == b"weights"
            trial.report(0.5)
    assert [(one.meta.who, one.score) for one in heir.trials()] == [("m1", 0.5)]
    loop.close()  # type: ignore[attr-defined]


def test_a_long_epoch_beats_and_is_not_rescued() -> None:
    store = MemoryStore()
    made = study(store, stale=1.0)
    eager = study(store.view(), me="m1", stale=1.0)
    for trial in made.work(trials=1):
        with trial:
            trial.report(1.0)
            until(lambda: int(eager.trials()[0].meta.beat) >= 8)
            assert eager.trials()[0].meta.who == "m0"
            assert list(eager.work(trials=1, wait=False)) == []
            trial.report(0.5)
    (one,) = made.trials()
    assert (one.meta.who, one.score, one.attempt) == ("m0", 0.5, 0)


def test_a_worker_waits_for_what_others_run_and_takes_over() -> None:
    store = MemoryStore()
    made = study(store, stale=3600)
    loop = made.work(trials=1)
    held = next(loop)
    got: list[tuple[int, int]] = []

    def other() -> None:
        for trial in study(store.view(), me="m1", stale=3600).work(trials=1):
            with trial:
                got.append((trial.number, trial.attempt))
                trial.report(0.5)

    thread = threading.Thread(target=other)
    thread.start()
    held.release()
    thread.join(60)
    assert not thread.is_alive()
    assert got == [(0, 1)]
    assert list(loop) == []


def test_a_grid_ends_with_its_last_point() -> None:
    made = Study(MemoryStore(), "spam", SPACE, Sampler.grid(3), me="m0")
    points = []
    for trial in made.work(trials=100):
        with trial:
            points.append(str(trial.point))
            trial.report(1.0)
    assert len(points) == len(set(points)) == 6


def test_several_goals_have_a_front() -> None:
    made = Study(
        MemoryStore(), "spam", SPACE, Sampler.random(0), goal={"loss": "min", "ms": "min"}, me="m0"
    )
    scores = [(1.0, 5.0), (2.0, 2.0), (3.0, 3.0), (5.0, 1.0), (1.0, 6.0)]
    for trial in made.work(trials=5):
        with trial:
            trial.score = dict(zip(("loss", "ms"), scores[trial.number], strict=True))
    assert [one.trial for one in made.best()] == [0, 1, 3]


def test_a_queued_point_is_tried_first() -> None:
    made = study(MemoryStore())
    point = {"lr": 0.5, "opt": "sgd"}
    assert made.enqueue(point) == 0
    loop = made.work(trials=3)
    first = next(loop)
    assert first.point == point
    first.finish(0.5)
    with pytest.raises(PointError):
        made.enqueue({"lr": 5.0, "opt": "sgd"})


def test_a_budget_that_shrank_is_refused_and_nothing_is_written() -> None:
    store = MemoryStore()
    for trial in study(store).work(trials=5):
        with trial:
            trial.report(0.5)
    before = store.keys()
    with pytest.raises(BudgetShrank, match="at least 5"):
        study(store.view()).work(trials=3)
    assert store.keys() == before
    for trial in study(store.view()).work(trials=6):
        with trial:
            assert trial.number == 5
            trial.report(0.5)


@pytest.mark.parametrize(
    "wrong",
    [
        {"goal": "low"},
        {"goal": "max", "sampler": Sampler.tpe("min")},
        {"pruner": "median"},
        {"sampler": "tpe"},
        {"stale": -1.0},
        {"max_attempts": 0},
        {"me": "x" * 300},
    ],
)
def test_wrong_arguments_are_refused_where_they_are_typed(wrong: dict[str, Any]) -> None:
    store = MemoryStore()
    with pytest.raises(ConfigurationError):
        study(store, **wrong)
    assert store.keys() == MemoryStore().keys()


def test_a_trial_of_another_space_is_left_alone() -> None:
    store = MemoryStore()
    wide = Space().real("width", 1.0, 2.0)
    assert take(store, wide.point(width=1.5), study="spam", trial=0, me="m9", goal="min")
    made = study(store.view(), stale=0.0)
    for trial in made.work(trials=2):  # which ends: it is not ours to wait for
        with trial:
            assert trial.number == 1
            trial.report(0.5)
    (left, _) = made.trials()
    assert (left.state, left.attempt, left.meta.point) == ("running", 0, "width=1.5")


def test_looking_for_the_silent_costs_no_write_for_each_trial() -> None:
    store = MemoryStore()
    other = study(store.view(), me="m1")
    running = other.work(trials=30)
    next(running)
    made = study(store)
    stamps = 0
    stamp = store._stamp

    def counted() -> float:
        nonlocal stamps
        stamps += 1
        return stamp()

    store._stamp = counted  # type: ignore[method-assign]
    for trial in made.work(trials=30, wait=False):
        with trial:
            trial.report(0.5)
    assert len(made.trials()) == 30
    assert stamps <= 3
    running.close()  # type: ignore[attr-defined]
