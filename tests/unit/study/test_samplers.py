"""What every sampler promises, and each that needs only the trial's number."""

from __future__ import annotations

import itertools
import json
import math
import random
import subprocess
import sys
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import qmc

from entrepot.errors import ConfigurationError, SpaceError
from entrepot.study import Point, Sampler, Space
from entrepot.study.samplers import halton, sobol
from entrepot.study.samplers.base import History
from entrepot.study.samplers.grid import deal
from tests.unit.study.spaces import points, spaces

SPACE = (
    Space()
    .real("lr", 1e-5, 1e-1, log=True)
    .int("batch", 16, 128, step=16)
    .choice("opt", ["adam", "sgd"])
    .real("momentum", 0.0, 0.99, when={"opt": "sgd"})
)
CUBE = Space().real("a", 0, 1).real("b", 0, 1).real("c", 0, 1)

Make = Callable[[int], Sampler]

BY_NUMBER: dict[str, Make] = {
    "random": Sampler.random,
    "halton": Sampler.halton,
    "sobol": Sampler.sobol,
    "lhs": Sampler.lhs,
}
ALL: dict[str, Make] = {
    **BY_NUMBER,
    "grid": lambda seed: Sampler.grid(),
    "tpe": lambda seed: Sampler.tpe("min", seed=seed),
}


def asked(
    sampler: Sampler, space: Space, trials: Sequence[int], history: History = ()
) -> list[str]:
    return [str(sampler.ask(space, trial, history)) for trial in trials]


def units(sampler: Sampler, space: Space, trials: int) -> np.ndarray:
    """``[trial, knob]``"""
    found = [sampler.ask(space, trial) for trial in range(trials)]
    return np.array([np.frombuffer(point.row) for point in found if point is not None])


# --- every sampler ----------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
@given(data=st.data(), seed=st.integers(0, 3))
@settings(max_examples=30)
def test_an_answer_is_a_point_of_the_space_and_a_function_of_the_question(
    name: str, data: st.DataObject, seed: int
) -> None:
    space = data.draw(spaces())
    trial = data.draw(st.integers(0, 200))
    history = [
        (point, data.draw(st.none() | st.floats(allow_nan=True)))
        for point in data.draw(st.lists(points(space), max_size=14))
    ]
    sampler = ALL[name](seed)
    point = sampler.ask(space, trial, history)
    if point is None:
        assert name == "grid"
        return
    assert space.read(str(point)) == point
    data.draw(st.just(None))
    ALL[name](seed + 1).ask(space, trial + 1, history)
    assert ALL[name](seed).ask(space, trial, list(history)) == point


@pytest.mark.parametrize("name", ALL)
def test_any_order_of_asking_gives_the_same_points(name: str) -> None:
    trials = list(range(40))
    shuffled = trials.copy()
    random.Random(3).shuffle(shuffled)
    in_order = dict(zip(trials, asked(ALL[name](5), SPACE, trials), strict=True))
    assert dict(zip(shuffled, asked(ALL[name](5), SPACE, shuffled), strict=True)) == in_order


def test_another_process_gives_the_same_points() -> None:
    code = (
        "import json\n"
        "from tests.unit.study.test_samplers import ALL, SPACE, asked\n"
        "print(json.dumps({n: asked(m(5), SPACE, [70, 3, 20_000]) for n, m in ALL.items()}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONHASHSEED": "1", "PYTHONPATH": "."},
    )
    here = {name: asked(make(5), SPACE, [70, 3, 20_000]) for name, make in ALL.items()}
    assert json.loads(done.stdout) == here


@pytest.mark.parametrize("name", BY_NUMBER)
def test_other_seeds_give_other_points(name: str) -> None:
    first = [asked(BY_NUMBER[name](seed), SPACE, [0])[0] for seed in range(8)]
    assert len(set(first)) == 8


@pytest.mark.parametrize("name", [*BY_NUMBER, "grid"])
def test_what_needs_only_the_number_looks_at_no_history(name: str) -> None:
    sampler = ALL[name](0)
    assert sampler.looks_back is False
    poison: History = None  # type: ignore[assignment]  # whatever looks at it fails
    assert sampler.ask(SPACE, 3, poison) == sampler.ask(SPACE, 3)


@pytest.mark.parametrize("name", BY_NUMBER)
def test_they_never_run_out(name: str) -> None:
    assert isinstance(BY_NUMBER[name](0).ask(SPACE, 10_000_000), Point)


@pytest.mark.parametrize("name", BY_NUMBER)
def test_log_knobs_are_even_in_their_logarithm(name: str) -> None:
    space = Space().real("lr", 1e-6, 1.0, log=True)
    found = [BY_NUMBER[name](1).ask(space, trial) for trial in range(400)]
    below = sum(1 for point in found if point is not None and float(str(point["lr"])) < 1e-3)
    assert 150 < below < 250


@pytest.mark.parametrize("name", BY_NUMBER)
def test_a_knob_that_is_not_asked_for_moves_no_other(name: str) -> None:
    plain = Space().choice("opt", ["adam", "sgd"]).real("lr", 0, 1).real("m", 0, 1)
    bound = (
        Space().choice("opt", ["adam", "sgd"]).real("lr", 0, 1).real("m", 0, 1, when={"opt": "sgd"})
    )
    for trial in range(20):
        free, held = (BY_NUMBER[name](2).ask(space, trial) for space in (plain, bound))
        assert free is not None
        assert held is not None
        assert {**free, **held} == dict(free)


@pytest.mark.parametrize("name", ["random", "lhs"])
def test_a_new_knob_leaves_the_draws_of_the_others(name: str) -> None:
    before = BY_NUMBER[name](2).ask(CUBE, 5)
    after = BY_NUMBER[name](2).ask(Space().real("z", 0, 1).real("c", 0, 1).real("a", 0, 1), 5)
    assert before is not None
    assert after is not None
    assert (before["a"], before["c"]) == (after["a"], after["c"])


def test_samplers_are_equal_when_they_answer_the_same() -> None:
    assert Sampler.sobol(3) == Sampler.sobol(3) != Sampler.sobol(4)
    assert Sampler.tpe("min") == Sampler.tpe("min", seed=0) != Sampler.tpe("max")
    assert len({Sampler.random(1), Sampler.random(1), Sampler.halton(1)}) == 2
    assert repr(Sampler.lhs(1)) == "LatinHypercubeSampler(seed=1, size=100)"


@pytest.mark.parametrize(
    ("said", "make"),
    [
        ("seed is 'x'", lambda: Sampler.random("x")),  # type: ignore[arg-type]
        ("seed is True", lambda: Sampler.halton(True)),
        ("seed is 0.5", lambda: Sampler.sobol(0.5)),  # type: ignore[arg-type]
        ("seed is None", lambda: Sampler.tpe("min", seed=None)),  # type: ignore[arg-type]
        ("steps is 1", lambda: Sampler.grid(1)),
        ("steps is 2.0", lambda: Sampler.grid(2.0)),  # type: ignore[arg-type]
        ("size is 0", lambda: Sampler.lhs(0, 0)),
        ("size is 20000", lambda: Sampler.lhs(0, 20_000)),
        ("the goal is 'best'", lambda: Sampler.tpe("best")),  # type: ignore[arg-type]
        ("the goal is {}", lambda: Sampler.tpe({})),
        ("the goal for 'a' is 1", lambda: Sampler.tpe({"a": 1})),  # type: ignore[dict-item]
        ("names a score 1", lambda: Sampler.tpe({1: "min"})),  # type: ignore[dict-item]
        ("startup is -1", lambda: Sampler.tpe("min", startup=-1)),
        ("candidates is 0", lambda: Sampler.tpe("min", candidates=0)),
        ("quantile is 0", lambda: Sampler.tpe("min", quantile=0)),
        ("quantile is 1.5", lambda: Sampler.tpe("min", quantile=1.5)),
        ("quantile is nan", lambda: Sampler.tpe("min", quantile=math.nan)),
        ("trial is -1", lambda: Sampler.random().ask(SPACE, -1)),
        ("trial is '3'", lambda: Sampler.random().ask(SPACE, "3")),  # type: ignore[arg-type]
        ("the space is 'lr'", lambda: Sampler.random().ask("lr", 3)),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_is_refused_where_it_is_typed(said: str, make: object) -> None:
    with pytest.raises(ConfigurationError) as refused:
        make()  # type: ignore[operator]
    assert said in str(refused.value)


@pytest.mark.parametrize("name", ALL)
def test_a_space_without_knobs_is_refused(name: str) -> None:
    with pytest.raises(SpaceError, match="has no knobs"):
        ALL[name](0).ask(Space(), 0)


# --- grid -------------------------------------------------------------------------------


def all_of(space: Space, steps: int) -> list[Point]:
    grid = Sampler.grid(steps)
    found: list[Point] = []
    for trial in itertools.count():
        point = grid.ask(space, trial)
        if point is None:
            assert trial == grid.total(space)
            assert grid.ask(space, trial + 1) is None
            return found
        found.append(point)
    raise AssertionError


def test_a_grid_has_every_combination_once_the_first_knob_fastest() -> None:
    space = Space().real("x", 0, 1).int("n", 1, 2).choice("k", ["a", "b"])
    assert [tuple(point.values()) for point in all_of(space, 3)] == [
        (x, n, k) for k in ("a", "b") for n in (1, 2) for x in (0.0, 0.5, 1.0)
    ]


@given(spaces(), st.integers(2, 4))
@settings(max_examples=50)
def test_no_two_points_of_a_grid_are_the_same_and_all_read_back(space: Space, steps: int) -> None:
    grid = Sampler.grid(steps)
    total = grid.total(space)
    found = [grid.ask(space, trial) for trial in range(min(total, 300))]
    assert len({str(point) for point in found}) == len(found)
    assert all(point is not None and space.read(str(point)) == point for point in found)
    assert grid.ask(space, total - 1) is not None
    assert grid.ask(space, total) is None


@given(spaces(most=3))
@settings(max_examples=50)
def test_a_grid_is_the_points_of_all_the_products_without_their_repeats(space: Space) -> None:
    # Every combination of every knob, and of each then only what is asked for.
    products = itertools.product(*(knob.grid(2) for knob in space))
    whole = set()
    for product in itertools.islice(products, 2_000):
        made: dict[str, object] = {}
        for knob, value in zip(space, product, strict=True):
            if space.asked(knob, made):  # type: ignore[arg-type]  # values of the space's own
                made[knob.name] = value
        whole.add(str(space.point(made)))
    assert {str(point) for point in all_of(space, 2)} == whole


def test_a_grid_counts_conditional_knobs_only_where_they_are_asked_for() -> None:
    space = (
        Space()
        .choice("model", ["svm", "net", "tree"])
        .real("gamma", 0, 1, when={"model": "svm"})
        .int("layers", 1, 3, when={"model": "net"})
        .real("drop", 0, 1, when={"layers": [2, 3]})
    )
    found = [str(point) for point in all_of(space, 2)]
    assert sorted(found) == sorted(
        ["model=tree", "model=svm,gamma=0.0", "model=svm,gamma=1.0"]
        + ["model=net,layers=1"]
        + [f"model=net,layers=3,drop={drop}" for drop in ("0.0", "1.0")]
    )
    assert [line.split(",")[0] for line in found[:3]] == ["model=svm", "model=net", "model=tree"]


@pytest.mark.parametrize(
    ("space", "steps", "values"),
    [
        (Space().int("n", 1, 4), 5, [1, 2, 3, 4]),
        (Space().int("n", 0, 100), 5, [0, 25, 50, 75, 100]),
        (Space().int("n", 0, 100, step=20), 4, [0, 40, 60, 100]),
        (Space().int("n", 1, 10_000, log=True), 5, [1, 10, 100, 1_000, 10_000]),
        (Space().choice("k", list("abcdef")), 2, list("abcdef")),
        (Space().bool("b"), 5, [False, True]),
        (Space().real("x", -1, 1), 5, [-1.0, -0.5, 0.0, 0.5, 1.0]),
    ],
)
def test_a_grid_has_both_ends_and_narrow_knobs_whole(
    space: Space, steps: int, values: list[object]
) -> None:
    assert [next(iter(point.values())) for point in all_of(space, steps)] == values


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_dealing_gives_every_value_each_of_its_ways_once_and_in_turn(ways: list[int]) -> None:
    dealt = [deal(number, ways) for number in range(sum(ways))]
    assert sorted(dealt) == [
        (place, way) for place, count in enumerate(ways) for way in range(count)
    ]
    assert [place for place, _ in dealt[: len(ways)]] == list(range(len(ways)))
    with pytest.raises(IndexError):
        deal(sum(ways), ways)


def test_a_grid_that_is_too_large_says_so() -> None:
    space = Space()
    for number in range(30):
        space = space.real(f"x{number}", 0, 1)
    with pytest.raises(SpaceError, match=r"9\.3e\+20 points"):
        Sampler.grid(5).ask(space, 0)
    tangled = Space()
    for number in range(4):
        tangled = tangled.int(f"n{number}", 0, 999)
    with pytest.raises(SpaceError, match="too much to count"):
        Sampler.grid(1000).total(tangled.bool("b", when={f"n{number}": 1 for number in range(4)}))


# --- evenness ---------------------------------------------------------------------------


def cells(found: np.ndarray, parts: Sequence[int]) -> np.ndarray:
    """How many points fall into each box, when each axis is cut into so many parts."""
    places = tuple((found[:, axis] * part).astype(int) for axis, part in enumerate(parts))
    counts = np.zeros(tuple(parts), int)
    np.add.at(counts, places, 1)
    return counts


@pytest.mark.parametrize("seed", range(4))
def test_sobol_points_fill_equal_boxes_equally(seed: int) -> None:
    found = units(Sampler.sobol(seed), CUBE, 64)
    for power in range(7):
        assert (cells(found[:, :2], (2**power, 2 ** (6 - power))) == 1).all()


@pytest.mark.parametrize("seed", range(4))
def test_and_so_do_any_that_begin_at_a_multiple(seed: int) -> None:
    sampler = Sampler.sobol(seed)
    found = np.array(
        [np.frombuffer(point.row) for t in range(192, 256) if (point := sampler.ask(CUBE, t))]
    )
    for power in range(7):
        assert (cells(found[:, :2], (2**power, 2 ** (6 - power))) == 1).all()


@pytest.mark.parametrize("trials", [16, 256, 4096])
def test_each_of_many_sobol_knobs_visits_each_part_once(trials: int) -> None:
    space = Space()
    for number in range(40):
        space = space.real(f"x{number}", 0, 1)
    found = units(Sampler.sobol(7), space, trials)
    assert all((cells(found[:, [axis]], (trials,)) == 1).all() for axis in range(40))


def test_unscrambled_the_points_are_scipys() -> None:
    engine = sobol.Engine(sobol.directions_of(20, 12), np.zeros(20, np.uint64))
    theirs = qmc.Sobol(20, scramble=False).random(4096)
    assert [engine.at(number) for number in range(4096)] == theirs.tolist()


def test_a_sequence_does_not_change_when_it_is_walked_further() -> None:
    for number in (0, 1, 9_999, 16_383):
        near = sobol._engine(3, 5, 14).at(number)
        assert sobol._engine(3, 5, 18).at(number) == near


def test_beyond_the_end_of_the_sequence_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(ConfigurationError, match="another seed"):
        Sampler.sobol().ask(SPACE, sobol.MAX_TRIALS)


def test_scrambling_changes_all_places_and_keeps_no_two_knobs_alike() -> None:
    found = units(Sampler.sobol(0), CUBE, 512)
    assert len(np.unique(found)) == found.size
    assert np.abs(np.corrcoef(found.T) - np.eye(3)).max() < 0.1


@pytest.mark.parametrize("seed", range(8))
def test_halton_does_not_begin_in_a_corner_and_fills_squares_of_its_bases(seed: int) -> None:
    space = CUBE.real("d", 0, 1)
    found = units(Sampler.halton(seed), space, 25)
    assert (found[0] > 0.0).all()
    for axis, base in enumerate((2, 3, 5)):
        assert (cells(found[: base**2, [axis]], (base**2,)) == 1).all()
    assert halton.primes(4)[:4] == (2, 3, 5, 7)


def test_halton_is_more_even_than_random() -> None:
    def filled(sampler: Sampler) -> int:
        return int((cells(units(sampler, CUBE, 64)[:, :2], (8, 8)) > 0).sum())

    for seed in range(4):
        assert filled(Sampler.halton(seed)) >= 48 > filled(Sampler.random(seed))


@pytest.mark.parametrize("size", [1, 7, 100])
def test_a_latin_hypercube_visits_every_part_of_every_knob_once(size: int) -> None:
    sampler = Sampler.lhs(3, size)
    for cube in range(3):
        found = np.array(
            [
                np.frombuffer(point.row)
                for trial in range(cube * size, (cube + 1) * size)
                if (point := sampler.ask(CUBE, trial))
            ]
        )
        assert all((cells(found[:, [axis]], (size,)) == 1).all() for axis in range(3))


def test_latin_hypercubes_differ_and_so_do_their_knobs() -> None:
    found = units(Sampler.lhs(0, 50), CUBE, 100)
    order = np.argsort(found[:50], axis=0)
    assert (order[:, 0] != order[:, 1]).sum() > 25
    assert (order[:, 0] != np.argsort(found[50:], axis=0)[:, 0]).sum() > 25
