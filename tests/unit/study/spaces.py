"""Spaces and points of every kind, for properties that hold for all of them."""

from __future__ import annotations

import math

from hypothesis import strategies as st

from entrepot.study.knobs import MAX_INTS, MAX_LOG_INT, ChoiceKnob, Knob, RealKnob, look_alike
from entrepot.study.space import Point, Space
from entrepot.study.text import Value

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NAMES = TEXT.filter(bool)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
OPTIONS = st.one_of(TEXT, st.integers(-(2**63) + 1, 2**63 - 1), FLOATS, st.booleans(), st.none())
UNITS = st.floats(0.0, 1.0)


@st.composite
def reals(draw: st.DrawFn) -> tuple[float, float, bool]:
    """Bounds, and whether they are log."""
    log = draw(st.booleans())
    ends = st.floats(5e-324, 1.7e308) if log else FLOATS
    low, high = draw(st.tuples(ends, ends).filter(lambda pair: pair[0] != pair[1]))
    return min(low, high), max(low, high), log


@st.composite
def ints(draw: st.DrawFn) -> tuple[int, int, bool, int]:
    """Bounds, whether they are log, and the step."""
    if draw(st.booleans()):
        low = draw(st.integers(1, MAX_LOG_INT - 1))
        return low, draw(st.integers(low + 1, MAX_LOG_INT)), True, 1
    low = draw(st.integers(-(2**50), 2**50))
    step = draw(st.integers(1, 2**10))
    steps = draw(st.integers(1, MAX_INTS - 1))
    return low, low + step * steps, False, step


@st.composite
def options(draw: st.DrawFn) -> list[Value]:
    found: list[Value] = []
    said: set[str] = set()
    for option in draw(st.lists(OPTIONS, min_size=1, max_size=6)):
        try:
            ChoiceKnob("x", (), (*found, option))
        except ValueError:
            continue
        found.append(option)
        said.add(str(option))
    return found or ["a"]


@st.composite
def spaces(draw: st.DrawFn, least: int = 1, most: int = 6) -> Space:
    """A space of any kinds of knobs, some of them conditional."""
    space = Space()
    for name in draw(st.lists(NAMES, min_size=least, max_size=most, unique_by=look_alike)):
        when = draw(conditions(space)) if draw(st.booleans()) else None
        match draw(st.sampled_from(["real", "int", "choice", "bool"])):
            case "real":
                low, high, log = draw(reals())
                space = space.real(name, low, high, log, when=when)
            case "int":
                first, last, log, step = draw(ints())
                space = space.int(name, first, last, log, step=step, when=when)
            case "choice":
                space = space.choice(name, draw(options()), when=when)
            case "bool":
                space = space.bool(name, when=when)
    return space


@st.composite
def conditions(draw: st.DrawFn, space: Space) -> dict[str, list[Value]] | None:
    parents = [knob for knob in space if knob.options is not None]
    if not parents:
        return None
    chosen = draw(st.lists(st.sampled_from(parents), min_size=1, max_size=2, unique_by=id))
    return {
        knob.name: [knob.at(unit) for unit in draw(st.lists(UNITS, min_size=1, max_size=3))]
        for knob in chosen
    }


@st.composite
def points(draw: st.DrawFn, space: Space) -> Point:
    """Any point of the space."""
    return space.at([draw(UNITS) for _ in space])


@st.composite
def spaces_and_points(draw: st.DrawFn) -> tuple[Space, Point]:
    space = draw(spaces())
    return space, draw(points(space))


def near(knob: Knob, left: Value, right: Value) -> bool:
    """Equal, or floats that differ by rounding on the knob's scale."""
    if isinstance(knob, RealKnob) and isinstance(left, float) and isinstance(right, float):
        if knob.log:
            return math.isclose(left, right, rel_tol=1e-9, abs_tol=1e-320)
        return abs(left / 2 - right / 2) <= 1e-12 * (knob.high / 2 - knob.low / 2) + 5e-324
    return type(left) is type(right) and left == right
