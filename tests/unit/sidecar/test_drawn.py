"""Pictures: every point in its box, whatever the numbers."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from entrepot.sidecar.drawn import (
    HEIGHT,
    SPARK_HEIGHT,
    SPARK_WIDTH,
    WIDTH,
    chart,
    nice,
    parts,
    spark,
)

COUNTS = st.lists(st.integers(0, 10**9), max_size=50)


def points(said: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, _, y in (each.partition(",") for each in said.split())]


@given(COUNTS)
def test_lines_stay_in_the_box(values: list[int]) -> None:
    at = [100.0 + place for place in range(len(values))]
    made = chart(at, {"queued": values}, (100.0, 150.0))
    for x, y in points(made.lines[0].points):
        assert 0 <= x <= WIDTH
        assert 0 <= y <= HEIGHT
    assert made.lines[0].most == max(values, default=0)
    assert next(value for _, value in made.ticks) == 0


@given(st.floats(0, 1e12))
def test_the_axis_ends_above_all_and_not_far(most: float) -> None:
    top = nice(most)
    assert top >= most
    assert top <= max(4.0, most * 2.5 * (1 + 1e-9))
    assert (top / 4).is_integer()


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=70))
def test_sparks_stay_in_their_box(values: list[float]) -> None:
    for x, y in points(spark(values)):
        assert 0 <= x <= SPARK_WIDTH
        assert 0 <= y <= SPARK_HEIGHT or not math.isfinite(max(values) - min(values))


def test_a_spark_needs_two_numbers() -> None:
    assert spark([]) == spark([1.0]) == spark([math.nan, 1.0]) == ""
    assert spark([3.0, 3.0]) == "0.0,19.0 96.0,19.0"


@given(st.dictionaries(st.text(max_size=3), st.integers(0, 1000), max_size=6))
def test_the_parts_of_a_bar_fill_it(counts: dict[str, int]) -> None:
    found = parts(counts, 100.0)
    whole = 100.0 if any(counts.values()) else 0.0
    assert sum(wide for _, _, wide in found) == pytest.approx(whole)
    for (_, begin, wide), (_, after, _) in itertools.pairwise(found):
        assert math.isclose(begin + wide, after)
