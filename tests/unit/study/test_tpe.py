"""TPE: what running trials change and what they do not, and where it looks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import ks_2samp

from bench.liars import HELD, SCORED, SPACE
from entrepot.errors import ConfigurationError, PointError
from entrepot.study import Point, Sampler, Space
from entrepot.study.goals import Score, dominates
from entrepot.study.samplers.base import History
from entrepot.study.samplers.fronts import best_first
from entrepot.study.samplers.layout import Floats, layout_of
from entrepot.study.samplers.parzen import Parzen
from entrepot.study.samplers.tpe import TPESampler, good_count
from tests.unit.study.spaces import points, spaces


def near_what_is_held(sampler: Sampler, history: History, asks: int = 200) -> int:
    """How many of so many proposals have a learning rate within a factor of two of the held."""
    found = [sampler.ask(SPACE, trial, history) for trial in range(asks)]
    return sum(
        1
        for point in found
        if point is not None and abs(math.log(float(str(point["lr"])) / 0.085)) < 0.7
    )


class Voting(TPESampler):
    """The mutant: a running trial counts when it is decided how many trials are good."""

    def _ask(self, space: Space, trial: int, history: History, /) -> Point:
        told = [(point, math.inf if score is None else score) for point, score in history]
        return super()._ask(space, trial, told)


# --- running trials ---------------------------------------------------------------------


def keeps_away(make: Callable[[int], Sampler], seeds: int = 3) -> bool:
    """Whether knowing what is held draws no proposals to it, over some seeds."""
    alone = sum(near_what_is_held(make(seed), SCORED) for seed in range(seeds))
    told = sum(near_what_is_held(make(seed), [*SCORED, (HELD, None)]) for seed in range(seeds))
    return told <= alone


def tpe(quantile: float) -> Callable[[int], Sampler]:
    return lambda seed: Sampler.tpe("min", startup=4, quantile=quantile, seed=seed)


def voting(quantile: float) -> Callable[[int], Sampler]:
    return lambda seed: Voting("min", 4, 24, quantile, seed)


def test_a_held_point_draws_nobody_to_it_where_a_vote_would_tip_the_piles() -> None:
    # A quarter of eight is two, and of nine three: the third best lies beside the held point.
    assert (good_count(8, 0.25), good_count(9, 0.25)) == (2, 3)
    assert keeps_away(tpe(0.25))
    assert not keeps_away(voting(0.25)), "this quantile does not tell the mutant apart"


def test_at_another_quantile_the_mutant_would_pass() -> None:
    # Three of eight and of nine: a test at this quantile tests nothing.
    assert good_count(8, 0.3) == good_count(9, 0.3) == 3
    assert keeps_away(tpe(0.3))
    assert keeps_away(voting(0.3))


def test_a_held_point_pushes_away_where_the_good_ones_are_all_around_it() -> None:
    alone = near_what_is_held(tpe(0.3)(0), SCORED)
    told = near_what_is_held(tpe(0.3)(0), [*SCORED, *[(HELD, None)] * 4])
    assert alone > 50
    assert told < alone / 2


def test_a_made_up_score_draws_proposals_to_what_is_held() -> None:
    made_up = [*SCORED, (HELD, 9.0)]
    for seed in range(3):
        alone = near_what_is_held(tpe(0.25)(seed), SCORED)
        assert near_what_is_held(tpe(0.25)(seed), made_up) >= alone + 20


@given(st.integers(2, 300), st.floats(0.01, 1.0))
def test_how_many_are_good_is_a_share_of_the_scored(scored: int, quantile: float) -> None:
    count = good_count(scored, quantile)
    assert 1 <= count <= min(25, scored - 1)
    assert count == max(1, min(math.ceil(quantile * scored), 25, scored - 1))


@pytest.mark.parametrize("seed", [0, 1, 2, 3, 7, 11, 1234])
def test_no_two_trials_see_the_same_candidates(seed: int) -> None:
    history = [
        (point, float(trial))
        for trial in range(10)
        if (point := Sampler.random(9).ask(SPACE, trial))
    ]
    sampler = Sampler.tpe("min", seed=seed)
    found = {str(sampler.ask(SPACE, trial, history)) for trial in range(200)}
    assert len(found) == 200


def test_machines_that_know_the_same_ask_for_different_points() -> None:
    history = [(point, score) for point, score in SCORED] * 2
    sampler = Sampler.tpe("min")
    assert len({sampler.ask(SPACE, trial, history) for trial in range(12, 20)}) == 8


def test_nothing_that_was_tried_or_is_held_is_tried_again_while_there_is_something_new() -> None:
    space = Space().int("n", 1, 4).choice("k", ["a", "b", "c"]).bool("b")
    sampler = Sampler.tpe("min", startup=3, candidates=6)
    history: list[tuple[Point, float | None]] = []
    for trial in range(24):
        point = sampler.ask(space, trial, history)
        assert point is not None
        running = trial % 3 == 0
        history.append((point, None if running else float(str(point["n"])) + trial))
    after_startup = [str(point) for point, _ in history[6:]]
    assert len(set(after_startup)) == 18
    for trial in range(100, 110):
        assert sampler.ask(space, trial, history) is not None


@pytest.mark.parametrize("seed", range(3))
def test_a_small_space_is_tried_to_the_last_point_before_any_comes_again(seed: int) -> None:
    space = (
        Space().int("n", 1, 20, log=True).bool("b").choice("k", ["x", "y", "z"], when={"b": True})
    )
    sampler = Sampler.tpe("min", startup=0, candidates=1, seed=seed)
    history: list[tuple[Point, float | None]] = [(space.at([0, 0, 0]), 1.0)] * 2
    for trial in range(79):
        point = sampler.ask(space, trial, history)
        assert point is not None
        history.append((point, None if trial % 3 else float(trial)))
    assert len({str(point) for point, _ in history}) == 80
    assert sampler.ask(space, 80, history) is not None


# --- what is asked of the history -------------------------------------------------------


def test_before_startup_it_is_random_search_seed_for_seed() -> None:
    for seed in range(3):
        for known in range(10):
            history = [*SCORED, *SCORED][:known]
            told = [*history, (HELD, None), (HELD, math.nan)]
            answer = Sampler.tpe("min", seed=seed).ask(SPACE, known, told)
            assert answer == Sampler.random(seed).ask(SPACE, known)
    assert Sampler.tpe("min").ask(SPACE, 12, [*SCORED, *SCORED]) != Sampler.random(0).ask(SPACE, 12)


def test_one_score_is_never_enough() -> None:
    for startup in (0, 1, 2):
        sampler = Sampler.tpe("min", startup=startup)
        assert sampler.ask(SPACE, 5, SCORED[:1]) == Sampler.random(0).ask(SPACE, 5)
        assert sampler.ask(SPACE, 5, SCORED[:2]) != Sampler.random(0).ask(SPACE, 5)


@given(spaces(), st.data())
@settings(max_examples=40)
def test_a_score_that_is_nan_is_as_if_it_were_not_there(space: Space, data: st.DataObject) -> None:
    known = data.draw(st.lists(points(space), min_size=3, max_size=12))
    history = [(point, float(number)) for number, point in enumerate(known)]
    # One that was tried before, since no point is proposed again that was tried with any score.
    twice = data.draw(st.sampled_from(known))
    with_nan = [*history[:2], (twice, math.nan), *history[2:]]
    sampler = Sampler.tpe("min", startup=2)
    assert sampler.ask(space, 20, with_nan) == sampler.ask(space, 20, history)


@given(spaces(), st.data(), st.integers(0, 50))
@settings(max_examples=40)
def test_making_large_is_making_small_upside_down(
    space: Space, data: st.DataObject, trial: int
) -> None:
    known = data.draw(st.lists(points(space), min_size=3, max_size=12))
    scores = data.draw(
        st.lists(st.floats(allow_nan=False), min_size=len(known), max_size=len(known))
    )
    up = [(point, score) for point, score in zip(known, scores, strict=True)]
    down = [(point, -score) for point, score in up]
    wanted = Sampler.tpe("min", startup=2).ask(space, trial, up)
    assert Sampler.tpe("max", startup=2).ask(space, trial, down) == wanted


@pytest.mark.filterwarnings("error")
@given(spaces(), st.data())
@settings(max_examples=60)
def test_every_history_has_an_answer(space: Space, data: st.DataObject) -> None:
    scores = st.none() | st.floats() | st.sampled_from([0.0, math.inf, -math.inf])
    history = data.draw(st.lists(st.tuples(points(space), scores), max_size=30))
    history = history + history[: data.draw(st.integers(0, len(history)))]
    sampler = Sampler.tpe("min", startup=2, candidates=data.draw(st.integers(1, 30)))
    point = sampler.ask(space, data.draw(st.integers(0, 99)), history)
    assert point is not None
    assert space.read(str(point)) == point


def test_points_may_be_of_an_equal_space_or_plain_mappings() -> None:
    twin = Space.from_dict(SPACE.to_dict())
    sampler = Sampler.tpe("min", startup=2)
    wanted = sampler.ask(SPACE, 9, SCORED)
    read = [(twin.read(str(point)), score) for point, score in SCORED]
    assert sampler.ask(SPACE, 9, read) == wanted
    plain = [(dict(point), score) for point, score in SCORED]
    assert sampler.ask(SPACE, 9, plain) == wanted  # type: ignore[arg-type]  # what people write


@pytest.mark.parametrize(
    ("error", "said", "entry"),
    [
        (PointError, "no knob 'x'", ({"x": 1}, 0.5)),
        (PointError, "'lr' is missing", (None, 0.5)),
        (ConfigurationError, "the score is '0.5'", (HELD, "0.5")),
        (ConfigurationError, "the score is True", (HELD, True)),
        (ConfigurationError, "the score is {'loss': 1.0}", (HELD, {"loss": 1.0})),
    ],
)
def test_a_history_that_is_none_is_refused(
    error: type[Exception], said: str, entry: object
) -> None:
    with pytest.raises(error) as refused:
        Sampler.tpe("min", startup=2).ask(SPACE, 9, [*SCORED, entry])  # type: ignore[list-item]
    assert said in str(refused.value)


# --- where it looks ---------------------------------------------------------------------


def searched(
    space: Space, score: Callable[[Point], Score], sampler: Sampler, trials: int
) -> list[Point]:
    history: list[tuple[Point, Score]] = []
    for trial in range(trials):
        point = sampler.ask(space, trial, history)
        assert point is not None
        history.append((point, score(point)))
    return [point for point, _ in history]


def number(point: Point, name: str) -> float:
    return float(str(point[name]))


@pytest.mark.parametrize("seed", range(3))
def test_it_finds_where_a_log_knob_is_best(seed: int) -> None:
    def loss(point: Point) -> float:
        return abs(math.log10(number(point, "lr")) + 4.5)

    last = searched(SPACE, loss, Sampler.tpe("min", seed=seed), 80)[20:]
    assert sum(1 for point in last if 1e-5 <= number(point, "lr") < 1e-4) > 40


@pytest.mark.parametrize("seed", range(3))
def test_it_finds_the_option_and_the_number_that_are_best(seed: int) -> None:
    def gain(point: Point) -> float:
        return (2.0 if point["opt"] == "sgd" else 0.0) - abs(number(point, "batch") - 40) / 50

    last = searched(SPACE, gain, Sampler.tpe("max", seed=seed), 80)[20:]
    assert sum(1 for point in last if point["opt"] == "sgd") > 40
    assert sum(1 for point in last if abs(number(point, "batch") - 40) < 20) > 40


@pytest.mark.parametrize("seed", range(3))
def test_it_finds_the_branch_that_is_best_and_what_is_best_in_it(seed: int) -> None:
    space = (
        Space()
        .choice("model", ["svm", "net", "tree"])
        .real("c", 0, 1, when={"model": "svm"})
        .real("width", 0, 1, when={"model": "net"})
    )

    def loss(point: Point) -> float:
        if point["model"] == "net":
            return abs(number(point, "width") - 0.8)
        return 0.5 if point["model"] == "tree" else 0.3 + number(point, "c")

    last = searched(space, loss, Sampler.tpe("min", seed=seed), 80)[30:]
    inside = [point for point in last if point["model"] == "net"]
    assert len(inside) > 30
    assert sum(1 for point in inside if abs(number(point, "width") - 0.8) < 0.2) > 0.7 * len(inside)


def test_an_option_that_was_never_tried_is_tried_in_time() -> None:
    space = Space().choice("k", list("abcde")).real("x", 0, 1)
    history = [(space.point(k="a", x=n / 30), n / 30) for n in range(30)]
    sampler = Sampler.tpe("min")
    found = {str(point["k"]) for t in range(30, 110) if (point := sampler.ask(space, t, history))}
    assert found == set("abcde")


@pytest.mark.parametrize("seed", range(3))
def test_of_several_goals_it_follows_the_front(seed: int) -> None:
    space = Space().real("x", 0, 1).real("y", 0, 1)

    def scores(point: Point) -> dict[str, float]:
        x, y = number(point, "x"), number(point, "y")
        return {"loss": x + (y - 0.5) ** 2, "gain": x - (y - 0.5) ** 2}

    sampler = Sampler.tpe({"loss": "min", "gain": "max"}, seed=seed)
    last = searched(space, scores, sampler, 90)[30:]
    assert sum(1 for point in last if abs(number(point, "y") - 0.5) < 0.15) > 35
    reached = [number(point, "x") for point in last]
    assert min(reached) < 0.3
    assert max(reached) > 0.7


# --- the parts --------------------------------------------------------------------------


@given(
    st.lists(st.lists(st.integers(0, 4), min_size=2, max_size=3), min_size=1, max_size=25).filter(
        lambda rows: len({len(row) for row in rows}) == 1
    ),
    st.data(),
)
def test_fronts_come_first_and_nothing_in_one_dominates_another(
    rows: list[list[int]], data: st.DataObject
) -> None:
    count = data.draw(st.integers(0, len(rows)))
    losses = np.array(rows, float)
    good, bad = best_first(losses, count)
    assert len(good) == count
    assert sorted([*good.tolist(), *bad.tolist()]) == list(range(len(rows)))
    for worse in bad:
        for better in good:
            assert not dominates(tuple(losses[worse]), tuple(losses[better]))


def test_one_goal_is_ranked_and_ties_keep_their_order() -> None:
    good, bad = best_first(np.array([[3.0], [1.0], [2.0], [1.0], [math.inf]]), 3)
    assert (good.tolist(), bad.tolist()) == ([1, 3, 2], [0, 4])


def test_where_a_front_does_not_fit_its_ends_and_its_lonely_ones_do() -> None:
    front = np.array([[0.0, 1.0], [0.05, 0.9], [0.1, 0.85], [0.5, 0.5], [1.0, 0.0]])
    assert sorted(best_first(front, 3)[0].tolist()) == [0, 3, 4]


@given(spaces(), st.data())
@settings(max_examples=40)
def test_units_are_snapped_to_points_of_the_space(space: Space, data: st.DataObject) -> None:
    units = [[data.draw(st.floats(0, 1)) for _ in space] for _ in range(3)]
    layout = layout_of(space)
    snapped = layout.snap(np.array(units))
    made = [space.at(row) for row in units]
    wanted = layout.rows(made)
    assert np.array_equal(np.isnan(snapped), np.isnan(wanted))
    assert [layout.point(row) for row in snapped] == made
    # A real knob's range may have a few floats only: what its value says of the unit is little.
    steps = [column for column, knob in enumerate(space) if knob.options is not None]
    np.testing.assert_allclose(snapped[:, steps], wanted[:, steps], atol=1e-6)


def density(space: Space, kernels: Sequence[Point], width: float, stray: float) -> Parzen:
    layout = layout_of(space)
    widths: Floats = np.full((len(kernels), len(layout.ordered)), width)
    strays = np.full(len(layout.unordered), stray)
    return Parzen(layout, layout.rows(kernels), np.ones(len(kernels)), widths, strays, 0.5)


SMALL = Space().real("x", 0, 1).choice("k", ["a", "b", "c"]).real("y", 0, 1, when={"k": ["b", "c"]})
KERNELS = [
    SMALL.point(x=0.1, k="a"),
    SMALL.point(x=0.7, k="b", y=0.95),
    SMALL.point(x=1, k="b", y=0),
]


class TestDensity:
    made: ClassVar[Parzen] = density(SMALL, KERNELS, 0.1, 0.3)

    def test_it_integrates_to_one(self) -> None:
        cells = (np.arange(400) + 0.5) / 400
        total = 0.0
        alone = np.column_stack([cells, np.full(400, 0.5 / 3), np.full(400, np.nan)])
        total += np.exp(self.made.log_density(alone)).mean() / 3
        grid = np.stack(np.meshgrid(cells, cells), axis=-1).reshape(-1, 2)
        for option in (1.5 / 3, 2.5 / 3):
            rows = np.column_stack([grid[:, 0], np.full(len(grid), option), grid[:, 1]])
            total += np.exp(self.made.log_density(rows)).mean() / 3
        assert total == pytest.approx(1.0, abs=1e-4)

    def test_it_is_drawn_from_as_it_says(self) -> None:
        drawn = layout_of(SMALL).snap(self.made.draw(np.random.default_rng(0).random((40_000, 4))))
        is_a = np.isnan(drawn[:, 2])
        alone = np.column_stack(
            [(np.arange(400) + 0.5) / 400, np.full(400, 0.5 / 3), np.full(400, np.nan)]
        )
        wanted = np.exp(self.made.log_density(alone)) / 3
        assert is_a.mean() == pytest.approx(wanted.mean(), abs=0.012)
        low = drawn[is_a, 0] < 0.3
        assert low.mean() == pytest.approx(wanted[:120].sum() / wanted.sum(), abs=0.02)

    def test_crossed_each_knob_is_drawn_as_before_and_from_a_kernel_of_its_own(self) -> None:
        drawn = np.random.default_rng(0)
        whole = self.made.draw(drawn.random((20_000, 4)))
        crossed = self.made.draw_crossed(drawn.random((20_000, 6)))
        for one, other in zip(whole.T, crossed.T, strict=True):
            assert ks_2samp(one, other).pvalue > 0.001
        near = (abs(whole[:, 0] - 1.0) < 0.1) & (whole[:, 2] < 0.1)
        apart = (abs(crossed[:, 0] - 1.0) < 0.1) & (crossed[:, 2] > 0.9)
        assert near.mean() > 0.1
        assert apart.mean() > 0.02

    def test_it_is_highest_at_its_kernels(self) -> None:
        rows = layout_of(SMALL).rows(
            [*KERNELS, SMALL.point(x=0.4, k="a"), SMALL.point(x=0.7, k="c", y=0.5)]
        )
        logs = self.made.log_density(rows)
        assert logs[:3].min() > logs[3:].max()
