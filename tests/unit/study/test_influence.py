"""How much each knob decides."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from entrepot.study.influence import Pair, influence, ranks
from entrepot.study.text import Value

PAIRS = st.lists(
    st.tuples(
        st.fixed_dictionaries({"a": st.integers(-5, 5), "b": st.sampled_from(["x", "y", "z"])}),
        st.floats(-10, 10),
    ),
    max_size=30,
)


def test_a_knob_that_decides_has_one_and_one_that_never_varied_nothing() -> None:
    pairs = [({"lr": 10.0**-n, "fixed": 3, "n": n}, float(n**3)) for n in range(10)]
    found = influence(pairs)
    assert found["lr"] == pytest.approx(1.0)
    assert found["n"] == pytest.approx(1.0)
    assert found["fixed"] == 0.0
    assert list(found) == ["lr", "n", "fixed"], "the greatest first"


def test_below_two_trials_nothing_is_known() -> None:
    assert influence([]) == {}
    assert influence([({"lr": 0.1}, 1.0)]) == {"lr": 0.0}


def test_categories_are_ranked_alphabetically() -> None:
    scores = {"sgd": 3.0, "adam": 1.0, "rmsprop": 2.0}
    assert influence([({"opt": name}, score) for name, score in scores.items()]) == {"opt": 1.0}
    mixed: list[Pair] = [({"x": 10}, 1.0), ({"x": 9}, 2.0), ({"x": "none"}, 3.0)]
    assert influence(mixed)["x"] == 1.0, "with a word among them they are words: 10, 9, none"
    assert influence([({"amp": one}, float(one)) for one in (True, False, True)])["amp"] == 1.0


def test_a_conditional_knob_is_judged_by_the_points_that_have_it() -> None:
    with_it: list[Pair] = [({"opt": "sgd", "momentum": n / 10}, float(n)) for n in range(5)]
    without: list[Pair] = [({"opt": "adam"}, float(n)) for n in (9, 1, 7)]
    assert influence([*without, *with_it])["momentum"] == pytest.approx(1.0)


def test_equal_values_share_the_mean_of_their_ranks() -> None:
    assert ranks([10, 20, 20, 5]) == [2.0, 3.5, 3.5, 1.0]
    assert ranks([]) == []
    # By hand: ranks 1.5 1.5 3 against 1 2 3.
    assert influence([({"a": 1}, 1.0), ({"a": 1}, 2.0), ({"a": 2}, 3.0)])["a"] == pytest.approx(
        1.5 / math.sqrt(1.5 * 2)
    )


def test_scores_that_are_not_finite_are_left_out() -> None:
    pairs = [({"a": n}, float(n)) for n in range(4)]
    assert influence([*pairs, ({"a": 9}, math.nan), ({"a": -9}, math.inf)]) == influence(pairs)


def test_it_is_what_scipy_says() -> None:
    stats = pytest.importorskip("scipy.stats")
    draw = random.Random(0)
    pairs = [({"a": draw.randint(0, 6), "b": draw.random()}, draw.gauss(0, 1)) for _ in range(80)]
    found = influence([({**values}, score) for values, score in pairs])
    for name in ("a", "b"):
        column = [values[name] for values, _ in pairs]
        wanted = abs(stats.spearmanr(column, [score for _, score in pairs]).statistic)
        assert found[name] == pytest.approx(wanted)


@given(PAIRS)
def test_it_is_from_0_to_1_and_knows_no_order_and_no_direction(
    pairs: list[tuple[dict[str, Value], float]],
) -> None:
    found = influence(pairs)
    assert all(0.0 <= one <= 1.0 for one in found.values())
    assert influence(pairs[::-1]) == pytest.approx(found)
    assert influence([(values, -score) for values, score in pairs]) == pytest.approx(found)
