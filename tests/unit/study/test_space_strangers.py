"""A knob that a space does not have: what is said of it, with none, one and many that it has."""

from __future__ import annotations

import pytest

from entrepot.errors import PointError, SpaceError
from entrepot.study import Space

NONE = Space()
ONE = Space().choice("opt", ["adam", "sgd"])
TWO = ONE.real("lr", 0, 1)
MANY = TWO
for _number in range(10):
    MANY = MANY.bool(f"flag{_number}")

HAS = [
    (NONE, "no knobs"),
    (ONE, "the knob 'opt'"),
    (TWO, "the knobs 'opt', 'lr'"),
    (
        MANY,
        "the knobs 'opt', 'lr', 'flag0', 'flag1', 'flag2', 'flag3', 'flag4', ... (12 in all)",
    ),
]


@pytest.mark.parametrize(("space", "has"), HAS, ids=["none", "one", "two", "many"])
def test_a_knob_that_depends_on_none_is_said(space: Space, has: str) -> None:
    with pytest.raises(SpaceError) as refused:
        space.real("momentum", 0, 1, when={"optimiser": "sgd"})
    assert str(refused.value) == (
        f"knob 'momentum' depends on 'optimiser', which is not there yet; add that first: "
        f"the space has {has}"
    )


@pytest.mark.parametrize(("space", "has"), HAS, ids=["none", "one", "two", "many"])
def test_a_point_of_a_knob_that_is_none_is_said(space: Space, has: str) -> None:
    with pytest.raises(PointError) as refused:
        space.point(width=3)
    assert str(refused.value) == f"the space has no knob 'width'; it has {has}"
    with pytest.raises(PointError) as refused:
        space.read("width=3,height=4")
    assert str(refused.value) == f"the space has no knob 'width', 'height'; it has {has}"
