"""Where a value lies on an axis, and which values an axis names."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from entrepot.study.scales import axis_of, number_text, scale_of, thinned

FLOATS = st.floats(allow_nan=False, allow_infinity=False)


def test_an_axis_is_logarithmic_from_a_ratio_of_50_on() -> None:
    assert scale_of([0.1, 5.0]).log
    assert not scale_of([0.1, 4.9]).log
    assert not scale_of([0.0, 5.0]).log
    assert not scale_of([-100.0, -1.0]).log
    assert scale_of([0.001, 1.0]).at(0.01) == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([0.0, 1.0], ["0", "0.2", "0.4", "0.6", "0.8", "1"]),
        ([1e-4, 1.0], ["0.0001", "0.001", "0.01", "0.1", "1"]),
        ([1.0, 60.0], ["1", "2", "5", "10", "20", "50"]),
        ([0.0, 100_000.0], ["0", "20,000", "40,000", "60,000", "80,000", "100,000"]),
        ([1.0, 1.0], ["0.6", "0.8", "1", "1.2", "1.4"]),
    ],
)
def test_ticks_are_round(values: list[float], said: list[str]) -> None:
    assert [tick.replace("1e-4", "0.0001") for _, tick in scale_of(values).ticks()] == said


@pytest.mark.parametrize(
    ("value", "said"),
    [(0.0, "0"), (1e-5, "1e-5"), (50_000.0, "50,000"), (-0.25, "-0.25"), (2e300, "2e300")],
)
def test_a_number_is_written_as_people_do(value: float, said: str) -> None:
    assert number_text(value) == said


@given(st.lists(st.floats(), max_size=20), FLOATS)
@example([1e81, 6.9e-305], 1e80)
@example([5e-324, 1.7e308], 1.0)
def test_whatever_the_values_are_there_is_an_axis(values: list[float], other: float) -> None:
    scale = scale_of(values)
    assert scale.low < scale.high
    assert 0.0 <= scale.at(other) <= 1.0
    ticks = scale.ticks()
    assert 2 <= len(ticks) <= 16 or not ticks
    assert all(0.0 <= at <= 1.0 and math.isfinite(at) for at, _ in ticks)
    finite = sorted(value for value in values if math.isfinite(value))
    placed = [scale.at(value) for value in finite]
    assert placed == sorted(placed)


def test_categories_stand_in_alphabetical_order() -> None:
    axis = axis_of(["sgd", "adam", "rmsprop", "adam"])
    assert axis.words == ("adam", "rmsprop", "sgd")
    assert [axis.at(word) for word in axis.words] == [0.0, 0.5, 1.0]
    assert axis_of([True, False]).words == ("False", "True")
    assert axis_of([1, "one", None]).words == ("1", "None", "one")


def test_the_ends_of_an_axis_of_numbers_are_named_and_a_constant_is_named_once() -> None:
    assert [said for _, said in axis_of([1, 2, 7]).ticks()] == ["1", "2", "4", "6", "7"]
    assert axis_of([3, 3]).ticks() == [(0.5, "3")]


@given(st.lists(st.integers(), max_size=300), st.integers(0, 50))
def test_what_is_thinned_keeps_its_ends_and_its_order(items: list[int], most: int) -> None:
    places = thinned(list(range(len(items))), most)
    assert len(places) == min(len(items), most)
    assert places == sorted(set(places))
    if most >= 2 and items:
        assert (places[0], places[-1]) == (0, len(items) - 1)
