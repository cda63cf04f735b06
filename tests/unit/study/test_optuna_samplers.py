"""Optuna's samplers behind our question: what they are told, and what comes of their answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, cast

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.samplers import (
    BaseSampler,
    CmaEsSampler,
    GPSampler,
    NSGAIISampler,
    RandomSampler,
    TPESampler,
)
from optuna.trial import FrozenTrial, TrialState

from entrepot.errors import ConfigurationError, PointError, SamplerFailed, SpaceError
from entrepot.store.memory import MemoryStore
from entrepot.study import Point, Sampler, Space, Study
from entrepot.study.goals import Score
from entrepot.study.knobs import IntKnob, Knob, RealKnob
from entrepot.study.samplers.base import History
from entrepot.study.samplers.optuna import distribution
from tests.unit.study.spaces import points, spaces

SPACE = (
    Space()
    .real("lr", 1e-5, 1e-1, log=True)
    .real("dropout", 0.0, 0.5)
    .int("batch", 16, 128, step=16)
    .int("width", 8, 1024, log=True)
    .choice("opt", ["adam", "sgd"])
    .real("momentum", 0.0, 0.99, when={"opt": "sgd"})
    .bool("amp")
)
PLANE = Space().real("x", -5, 5).real("y", -5, 5)

Make = Callable[[int], BaseSampler]

MAKERS: dict[str, Make] = {
    "random": lambda seed: RandomSampler(seed=seed),
    "tpe": lambda seed: TPESampler(seed=seed, n_startup_trials=4),
    "cmaes": lambda seed: CmaEsSampler(seed=seed, n_startup_trials=1),
    "nsga2": lambda seed: NSGAIISampler(seed=seed, population_size=4),
}


class Spy(RandomSampler):
    """Notes what it is asked, in the words of Optuna."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed=seed)
        self.trials: list[FrozenTrial] = []
        self.directions: list[str] = []
        self.ranges: dict[str, BaseDistribution] = {}

    def before_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:
        self.trials = study.get_trials()[:-1]
        self.directions = [direction.name for direction in study.directions]

    def sample_independent(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        self.ranges[param_name] = param_distribution
        return super().sample_independent(study, trial, param_name, param_distribution)


class Breaks(RandomSampler):
    """Raises where it is asked."""

    def sample_relative(self, *_: Any) -> dict[str, Any]:
        raise ZeroDivisionError("no more numbers")


def number(point: Point, name: str) -> float:
    return float(cast(float, point[name]))


def is_too_wide(knob: Knob) -> bool:
    """Whether floats cannot do what Optuna does with them."""
    match knob:
        case RealKnob():
            return not knob.log and math.isinf(knob.high - knob.low)
        case IntKnob():
            return max(abs(knob.low), abs(knob.high)) > 2**53
    return False


def searched(
    space: Space, sampler: Sampler, score: Callable[[Point], Score], trials: int
) -> list[tuple[Point, Score]]:
    history: list[tuple[Point, Score]] = []
    for trial in range(trials):
        point = sampler.ask(space, trial, history)
        assert point is not None
        history.append((point, score(point)))
    return history


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    yield
    optuna.logging.set_verbosity(before)


# --- what it is told --------------------------------------------------------------------


def test_ranges_are_the_knobs_and_a_knob_that_is_not_asked_for_is_not_suggested() -> None:
    assert {knob.name: distribution(knob) for knob in SPACE} == {
        "lr": FloatDistribution(1e-5, 1e-1, log=True),
        "dropout": FloatDistribution(0.0, 0.5),
        "batch": IntDistribution(16, 128, step=16),
        "width": IntDistribution(8, 1024, log=True),
        "opt": CategoricalDistribution(("adam", "sgd")),
        "momentum": FloatDistribution(0.0, 0.99),
        "amp": CategoricalDistribution((False, True)),
    }
    for trial in range(20):
        spy = Spy(trial)
        point = Sampler.optuna(spy).ask(SPACE, trial)
        assert point is not None
        assert spy.ranges == {name: distribution(SPACE[name]) for name in point}
        assert ("momentum" in point) == (point["opt"] == "sgd")


def test_it_is_told_scores_in_their_own_direction_and_which_points_still_run() -> None:
    spy = Spy()
    held = PLANE.point(x=1, y=2)
    history: History = [
        (PLANE.point(x=0, y=0), {"loss": 0.25, "gain": 3.0}),
        (held, None),
        (PLANE.point(x=0, y=1), {"loss": math.nan, "gain": 1.0}),
        (PLANE.point(x=0, y=2), {"loss": math.inf, "gain": -1.0}),
    ]
    Sampler.optuna(spy, goal={"loss": "min", "gain": "max"}).ask(PLANE, 7, history)
    assert spy.directions == ["MINIMIZE", "MAXIMIZE"]
    told = [(trial.state, trial.values, trial.params) for trial in spy.trials]
    assert told == [
        (TrialState.COMPLETE, [0.25, 3.0], {"x": 0.0, "y": 0.0}),
        (TrialState.RUNNING, None, {"x": 1.0, "y": 2.0}),
        (TrialState.COMPLETE, [math.inf, -1.0], {"x": 0.0, "y": 2.0}),
    ]


def test_a_conditional_point_is_told_as_it_is() -> None:
    spy = Spy()
    history = [(SPACE.at([0.5] * 4 + [unit, 0.5, 0.5]), 1.0) for unit in (0.1, 0.9)]
    Sampler.optuna(spy, goal="max").ask(SPACE, 2, history)
    assert spy.directions == ["MAXIMIZE"]
    assert [trial.params for trial in spy.trials] == [dict(point) for point, _ in history]


def test_what_runs_keeps_tpe_away_from_it() -> None:
    space = Space().real("x", 0, 1)
    scored: History = [(space.point(x=n / 20), abs(n / 20 - 0.5)) for n in range(20)]
    held: History = [(space.point(x=0.5 + n / 1000), None) for n in range(-20, 21)]

    def near(history: History) -> int:
        found = [Sampler.optuna(MAKERS["tpe"]).ask(space, n, history) for n in range(40)]
        return sum(1 for point in found if point and abs(number(point, "x") - 0.5) < 0.03)

    assert near([*scored, *held]) < near(scored)


# --- what it answers --------------------------------------------------------------------


@given(space=spaces(), data=st.data(), trial=st.integers(0, 100))
@settings(max_examples=40)
def test_every_answer_is_a_point_of_the_space(
    space: Space, data: st.DataObject, trial: int
) -> None:
    history = [
        (point, data.draw(st.none() | st.floats(allow_nan=True)))
        for point in data.draw(st.lists(points(space), max_size=4))
    ]
    sampler = Sampler.optuna(MAKERS["random"])
    if any(map(is_too_wide, space)):
        with pytest.raises(SpaceError, match="Optuna's samplers"):
            sampler.ask(space, trial, history)
        return
    point = sampler.ask(space, trial, history)
    assert point is not None
    assert space.read(str(point)) == point


@pytest.mark.parametrize("name", MAKERS)
def test_an_answer_is_a_function_of_seed_trial_and_history(name: str) -> None:
    def score(point: Point) -> float:
        return number(point, "x") ** 2 + number(point, "y") ** 2

    def run(seed: int) -> list[str]:
        sampler = Sampler.optuna(MAKERS[name], seed=seed)
        return [str(point) for point, _ in searched(PLANE, sampler, score, 20)]

    first = run(3)
    assert run(3) == first
    assert run(4) != first
    assert len(set(first)) > 10


def test_a_class_is_made_anew_for_each_trial_and_one_that_is_made_is_kept() -> None:
    one, two = (Sampler.optuna(RandomSampler, seed=1).ask(PLANE, 5) for _ in range(2))
    assert one == two
    made = Sampler.optuna(RandomSampler(seed=1))
    assert made.ask(PLANE, 5) != made.ask(PLANE, 5)


def test_cmaes_remembers_what_it_noted_and_closes_in() -> None:
    def score(point: Point) -> float:
        return (number(point, "x") - 1) ** 2 + (number(point, "y") + 2) ** 2

    found = searched(PLANE, Sampler.optuna(MAKERS["cmaes"]), score, 120)
    last = [score for _, score in found[-20:]]
    assert max(map(float, cast(list[float], last))) < 0.5


def test_nsga2_follows_the_front_of_several_goals() -> None:
    def scores(point: Point) -> dict[str, float]:
        x, y = number(point, "x"), number(point, "y")
        return {"loss": x**2 + y**2, "gain": -((x - 2) ** 2) - y**2}

    generations: list[int] = []

    class Noted(NSGAIISampler):
        def after_trial(self, *_: Any) -> None:
            raise AssertionError("nothing is told behind our question")

        def sample_relative(
            self, study: optuna.Study, trial: FrozenTrial, search_space: Any
        ) -> dict[str, Any]:
            found = super().sample_relative(study, trial, search_space)
            now = study._storage.get_trial(trial._trial_id).system_attrs
            generations.append(now["Noted:generation"])
            return found

    sampler = Sampler.optuna(
        lambda seed: Noted(seed=seed, population_size=10), goal={"loss": "min", "gain": "max"}
    )
    found = [point for point, _ in searched(PLANE, sampler, scores, 120)]
    assert generations == [trial // 10 for trial in range(120)], "also where a point comes twice"
    assert len(set(map(str, found))) < 120

    def off(some: list[Point]) -> float:
        """How far from the front, where x is from 0 to 2 and y is 0."""
        outside = [
            max(0.0, -number(point, "x"), number(point, "x") - 2) + abs(number(point, "y"))
            for point in some
        ]
        return sorted(outside)[len(outside) // 2]

    assert off(found[-30:]) < off(found[:30])


def test_a_gaussian_process_needs_torch_and_is_asked_the_same() -> None:
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        history = [(PLANE.point(x=n - 2, y=0), float((n - 2) ** 2)) for n in range(5)]
        sampler = Sampler.optuna(lambda seed: GPSampler(seed=seed, n_startup_trials=2))
        assert sampler.ask(PLANE, 5, history) is not None
    finally:
        torch.set_num_threads(before)


def test_a_study_runs_with_one() -> None:
    study = Study(MemoryStore(), "spam", PLANE, Sampler.optuna(MAKERS["tpe"]), me="me")
    for trial in study.work(trials=8):
        with trial:
            trial.report(abs(number(trial.point, "x")))
    assert len(study.table()) == 8


# --- what cannot be ---------------------------------------------------------------------


def test_a_sampler_that_raises_is_named_with_what_it_said() -> None:
    with pytest.raises(SamplerFailed, match=r"Breaks.*ZeroDivisionError.*no more numbers") as info:
        Sampler.optuna(lambda seed: Breaks(seed=seed)).ask(PLANE, 3)
    assert isinstance(info.value.__cause__, ZeroDivisionError)


def test_a_function_that_raises_is_named_with_what_it_said() -> None:
    with pytest.raises(SamplerFailed, match="ZeroDivisionError"):
        Sampler.optuna(lambda seed: 1 // 0).ask(PLANE, 3)


def test_one_that_can_do_one_goal_is_refused_several_in_words() -> None:
    sampler = Sampler.optuna(MAKERS["cmaes"], goal={"loss": "min", "gain": "max"})
    with pytest.raises(SamplerFailed, match="CmaEsSampler"):
        sampler.ask(PLANE, 0)


@pytest.mark.parametrize("sampler", [None, "tpe", 3])
def test_what_is_no_sampler_is_refused_where_it_is_typed(sampler: Any) -> None:
    with pytest.raises(ConfigurationError, match="CmaEsSampler"):
        Sampler.optuna(sampler)


def test_a_function_that_makes_something_else_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="returned"):
        Sampler.optuna(lambda seed: "tpe").ask(PLANE, 0)


def test_a_score_of_another_goal_and_a_point_of_another_space_are_refused() -> None:
    sampler = Sampler.optuna(MAKERS["random"])
    with pytest.raises(ConfigurationError):
        sampler.ask(PLANE, 1, [(PLANE.point(x=0, y=0), {"loss": 1.0})])
    with pytest.raises(PointError):
        sampler.ask(PLANE, 1, [(Space().real("z", 0, 1).point(z=0.5), 1.0)])
