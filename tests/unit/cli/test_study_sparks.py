"""A curve in a few characters."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from entrepot.cli.study_sparks import LEVELS, NONE, spark


@pytest.mark.parametrize(
    ("curve", "drawn"),
    [
        ([], ""),
        ([1.0], "▄"),
        ([2.0, 2.0], "▄▄"),
        ([0.0, 0.5, 1.0], "▁▅█"),
        ([1.0, math.nan, 0.0, -math.inf], "█·▁·"),
        ([math.nan], "·"),
        ([-1.7e308, 1.7e308], "▁█"),
        ([0.0, 5e-324], "▄▄"),
    ],
)
def test_a_curve_goes_from_its_lowest_to_its_highest(curve: list[float], drawn: str) -> None:
    assert spark(curve) == drawn


def test_a_long_curve_ends_with_its_last_report() -> None:
    curve = [0.0] * 999 + [1.0]
    assert spark(curve, 10) == "▁" * 9 + "█"


@given(st.lists(st.floats(), max_size=200), st.integers(1, 40))
def test_whatever_is_reported_is_drawn(curve: list[float], width: int) -> None:
    drawn = spark(curve, width)
    assert len(drawn) == min(width, len(curve))
    assert set(drawn) <= {*LEVELS, NONE}
