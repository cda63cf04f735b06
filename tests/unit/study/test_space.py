"""Spaces: what they are made of, what is refused where it is typed, and points there and back."""

from __future__ import annotations

import json
import math
import pickle
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from entrepot.errors import PointError, SpaceError
from entrepot.study import text
from entrepot.study.knobs import MAX_OPTIONS
from entrepot.study.space import MAX_KNOBS, Point, Space
from tests.unit.study.spaces import (
    TEXT,
    UNITS,
    ints,
    near,
    points,
    reals,
    spaces,
    spaces_and_points,
)

SPACE = (
    Space()
    .real("lr", 1e-5, 1e-1, log=True)
    .int("batch", 16, 128, step=16)
    .choice("opt", ["adam", "sgd"])
    .real("momentum", 0.0, 0.99, when={"opt": "sgd"})
    .bool("nesterov", when={"opt": "sgd"})
)


# --- there and back ---------------------------------------------------------------------


@given(spaces_and_points())
def test_a_points_text_reads_back_as_the_same_point(drawn: tuple[Space, Point]) -> None:
    space, point = drawn
    back = space.read(str(point))
    assert back == point
    assert list(back) == list(point)
    for name, value in point.items():
        assert type(back[name]) is type(value)
        assert back[name] == value
    assert hash(back) == hash(point)
    assert str(back) == str(point)


@given(spaces_and_points())
def test_a_points_text_is_one_line_without_outer_blanks(drawn: tuple[Space, Point]) -> None:
    said = str(drawn[1])
    assert said.isprintable()
    assert said == said.strip()
    said.encode()


@given(spaces())
def test_a_space_is_made_again_from_plain_json(space: Space) -> None:
    plain = json.loads(json.dumps(space.to_dict()))
    back = Space.from_dict(plain)
    assert back == space
    assert back.digest == space.digest
    assert str(back) == str(space)
    assert back.knobs == space.knobs


@given(TEXT)
def test_what_is_escaped_reads_back_and_has_no_sign_of_the_line(said: str) -> None:
    escaped = text.escape(said)
    assert text.unescape(escaped) == said
    assert not set(escaped) & set(",=|")
    assert escaped.isprintable()


def test_a_points_text_is_what_is_documented() -> None:
    point = SPACE.point(lr=0.001, batch=32, opt="adam")
    assert str(point) == "lr=0.001,batch=32,opt=adam"
    assert str(SPACE.point(lr=1e-5, batch=16, opt="sgd", momentum=0.5, nesterov=True)) == (
        "lr=1e-05,batch=16,opt=sgd,momentum=0.5,nesterov=True"
    )
    awkward = Space().choice("a=b", ["x,y", " x ", "100 %", "ñ", "a|b\n", ""])
    assert [str(awkward.point({"a=b": value})) for value in awkward["a=b"].grid(2)] == [
        "a%3Db=x%2Cy",
        "a%3Db=%20x%20",
        "a%3Db=100 %25",
        "a%3Db=ñ",
        "a%3Db=a%7Cb%0A",
        "a%3Db=",
    ]


def test_floats_are_not_rounded() -> None:
    space = Space().real("x", -1e300, 1e300)
    for value in (0.1 + 0.2, math.pi, 5e-324, -1e300, 123456789.123456789):
        assert space.read(str(space.point(x=value)))["x"] == value


def test_a_person_may_write_a_point_in_another_order_and_form() -> None:
    point = SPACE.point(lr=0.001, batch=32, opt="adam")
    assert SPACE.read("opt=adam,batch=+32,lr=1e-3") == point
    assert SPACE.read("%6Fpt=%61dam,batch=32,lr=.001") == point


@given(spaces())
def test_a_space_survives_being_sent_to_another_process(space: Space) -> None:
    # multiprocessing sends its arguments so; nothing of ours does.
    assert pickle.loads(pickle.dumps(space)) == space


@given(spaces_and_points())
def test_and_so_does_a_point(drawn: tuple[Space, Point]) -> None:
    assert pickle.loads(pickle.dumps(drawn[1])) == drawn[1]


# --- units ------------------------------------------------------------------------------


@given(spaces_and_points())
def test_every_value_lies_where_its_unit_says(drawn: tuple[Space, Point]) -> None:
    space, point = drawn
    row = np.frombuffer(point.row)
    assert len(row) == len(space)
    for knob, unit in zip(space, row.tolist(), strict=True):
        if knob.name in point:
            assert 0.0 <= unit <= 1.0
            assert near(knob, knob.at(unit), point[knob.name])
        else:
            assert math.isnan(unit)


@given(reals(), UNITS)
def test_a_real_knob_stays_within_its_bounds_and_reaches_both(
    range_: tuple[float, float, bool], unit: float
) -> None:
    low, high, log = range_
    knob = Space().real("x", low, high, log)["x"]
    value = knob.at(unit)
    assert isinstance(value, float)
    assert low <= value <= high
    assert knob.at(0.0) == low or math.isclose(float(str(knob.at(0.0))), low, rel_tol=1e-12)
    assert math.isclose(float(str(knob.at(1.0))), high, rel_tol=1e-12)
    assert 0.0 <= knob.unit(value) <= 1.0


@given(ints(), UNITS)
def test_an_int_knob_has_only_its_steps(range_: tuple[int, int, bool, int], unit: float) -> None:
    low, high, log, step = range_
    knob = Space().int("n", low, high, log, step=step)["n"]
    value = knob.at(unit)
    assert type(value) is int
    assert low <= value <= high
    assert (value - low) % step == 0
    assert knob.at(knob.unit(value)) == value
    assert (knob.at(0.0), knob.at(1.0)) == (low, high)


def test_log_gives_each_decade_the_same_room() -> None:
    knob = Space().real("lr", 1e-4, 1.0, log=True)["lr"]
    assert [knob.at(unit) for unit in (0.0, 0.25, 0.5, 0.75, 1.0)] == pytest.approx(
        [1e-4, 1e-3, 1e-2, 1e-1, 1.0]
    )


def test_ints_have_equal_room_and_log_ints_in_proportion() -> None:
    units = [(i + 0.5) / 6000 for i in range(6000)]
    even = Space().int("n", 1, 3)["n"]
    assert [[even.at(u) for u in units].count(n) for n in (1, 2, 3)] == [2000] * 3
    log = Space().int("n", 1, 3, log=True)["n"]
    whole = math.log(3.5 / 0.5)
    rooms = [math.log((n + 0.5) / (n - 0.5)) / whole for n in (1, 2, 3)]
    counts = [[log.at(u) for u in units].count(n) / 6000 for n in (1, 2, 3)]
    assert counts == pytest.approx(rooms, abs=1e-3)


# --- conditions -------------------------------------------------------------------------


@given(spaces_and_points())
def test_a_knob_is_there_exactly_when_its_conditions_hold(drawn: tuple[Space, Point]) -> None:
    space, point = drawn
    for knob in space:
        held = all(
            parent in point and any(point[parent] == value for value in allowed)
            for parent, allowed in knob.when
        )
        assert (knob.name in point) is held


def test_a_knob_that_depends_on_one_that_is_not_asked_for_is_not_asked_for() -> None:
    space = (
        Space()
        .choice("model", ["svm", "net"])
        .choice("kernel", ["rbf", "linear"], when={"model": "svm"})
        .real("gamma", 0, 1, when={"kernel": "rbf"})
    )
    assert dict(space.at([0.9, 0.1, 0.5])) == {"model": "net"}
    assert dict(space.at([0.1, 0.9, 0.5])) == {"model": "svm", "kernel": "linear"}
    assert dict(space.at([0.1, 0.1, 0.5])) == {"model": "svm", "kernel": "rbf", "gamma": 0.5}


def test_every_condition_of_several_must_hold() -> None:
    space = (
        Space()
        .int("layers", 1, 3)
        .bool("wide")
        .real("drop", 0, 1, when={"layers": [2, 3], "wide": True})
    )
    assert "drop" in space.point(layers=3, wide=True, drop=0.5)
    assert "drop" not in space.point(layers=1, wide=True)
    assert "drop" not in space.point(layers=3, wide=False)


# --- what a point is --------------------------------------------------------------------


def test_a_point_reads_like_a_mapping() -> None:
    point = SPACE.point(opt="adam", lr=0.01, batch=16)

    def train(lr: float, batch: int, opt: str) -> tuple[float, int, str]:
        return lr, batch, opt

    assert isinstance(point, Mapping)
    assert train(**point) == (0.01, 16, "adam")  # type: ignore[arg-type]  # by name, at run time
    assert dict(point) == {"lr": 0.01, "batch": 16, "opt": "adam"}
    assert list(point) == ["lr", "batch", "opt"]
    assert len(point) == 3
    assert point.get("momentum") is None
    assert "momentum" not in point
    assert repr(point) == "Point(lr=0.01, batch=16, opt='adam')"
    assert {**point, "epochs": 3}["epochs"] == 3
    with pytest.raises(KeyError):
        point["momentum"]
    with pytest.raises(TypeError):
        point["lr"] = 1.0  # type: ignore[index]  # points do not change


def test_points_are_equal_when_they_say_the_same() -> None:
    one = SPACE.point(lr=0.01, batch=16, opt="adam")
    assert one == SPACE.point({"opt": "adam", "batch": np.int64(16), "lr": np.float64(0.01)})
    assert one == {"lr": 0.01, "batch": 16, "opt": "adam"}
    assert one != SPACE.point(lr=0.01, batch=32, opt="adam")
    assert len({one, SPACE.read(str(one))}) == 1
    number, word = Space().choice("k", [64]), Space().choice("k", ["64"])
    assert number.point(k=64) != word.point(k="64")
    assert Space().real("x", -1, 1).point(x=-0.0) == Space().real("x", -1, 1).point(x=0.0)


def test_a_number_and_its_word_are_different_options_of_different_spaces() -> None:
    assert Space().choice("k", [64, 128]).read("k=64")["k"] == 64
    assert Space().choice("k", ["64", "128"]).read("k=64")["k"] == "64"
    assert Space().choice("k", [None, True, 0.5, "x"]).read("k=None")["k"] is None


@given(spaces(), st.data())
def test_a_point_of_its_own_values_is_the_same_point(space: Space, data: st.DataObject) -> None:
    point = data.draw(points(space))
    assert space.point(dict(point)) == point
    assert Point(space, point) == point


# --- the hash ---------------------------------------------------------------------------


def test_a_spaces_digest_never_changes() -> None:
    # Records of studies carry it: another value here is another space to every store there is.
    assert SPACE.digest == "2badde8bc465ca7ca9b5401ba7bdbae0"
    assert len(SPACE.digest) == 32


def test_a_spaces_digest_is_the_same_in_another_process() -> None:
    code = (
        "from entrepot.study import Space\n"
        "print(Space().real('lr', 1e-5, 1e-1, log=True).choice('ñ', ['a', 1, None]).digest)"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed},
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert said == {Space().real("lr", 1e-5, 0.1, log=True).choice("ñ", ["a", 1, None]).digest}


@pytest.mark.parametrize(
    "other",
    [
        Space().real("lr", 1e-5, 2e-1, log=True),
        Space().real("lr", 1e-5, 1e-1),
        Space().real("rate", 1e-5, 1e-1, log=True),
        Space().choice("lr", [1e-5, 1e-1]),
        Space().real("lr", 1e-5, 1e-1, log=True).bool("b"),
        Space().bool("b").real("lr", 1e-5, 1e-1, log=True),
        Space().bool("b").real("lr", 1e-5, 1e-1, log=True, when={"b": True}),
    ],
)
def test_another_space_has_another_digest(other: Space) -> None:
    space = Space().real("lr", 1e-5, 1e-1, log=True)
    assert other.digest != space.digest
    assert other != space


def test_true_and_one_are_different_options_to_a_digest() -> None:
    assert Space().choice("k", [True]) != Space().choice("k", [1])


def test_adding_a_knob_leaves_the_space_as_it_was() -> None:
    space = Space().bool("a")
    wider = space.bool("b")
    assert (space.names, wider.names) == (("a",), ("a", "b"))
    assert len(space) == 1
    assert [knob.name for knob in wider] == ["a", "b"]
    assert "b" in wider
    assert "b" not in space


# --- refused where it is typed ----------------------------------------------------------


REFUSED: list[tuple[str, Callable[[], Any]]] = [
    ("is there already", lambda: Space().bool("a").real("a", 0, 1)),
    ("look alike", lambda: Space().bool("ﬁ").bool("fi")),
    ("not empty, got ''", lambda: Space().bool("")),
    ("a string that is not empty, got 3", lambda: Space().bool(3)),  # type: ignore[arg-type]
    ("201 characters", lambda: Space().bool("a" * 201)),
    ("not Unicode", lambda: Space().bool("\ud800")),
    ("which is empty", lambda: Space().real("x", 1.0, 1.0)),
    ("which is empty", lambda: Space().real("x", 2.0, 1.0)),
    ("which is empty", lambda: Space().int("n", 5, 5)),
    ("which is empty", lambda: Space().int("n", 6, 5)),
    ("bounds are finite", lambda: Space().real("x", 0, math.inf)),
    ("bounds are finite", lambda: Space().real("x", math.nan, 1)),
    ("bounds are finite", lambda: Space().real("x", 0, 10**400)),
    ("bounds are numbers", lambda: Space().real("x", "0", 1)),  # type: ignore[arg-type]
    ("bounds are numbers", lambda: Space().real("x", True, 2)),
    ("bounds are numbers", lambda: Space().real("x", None, 2)),  # type: ignore[arg-type]
    ("a low above 0", lambda: Space().real("x", 0, 1, log=True)),
    ("a low above 0", lambda: Space().real("x", -1, 1, log=True)),
    ("True or False", lambda: Space().real("x", 1, 2, log="yes")),  # type: ignore[arg-type]
    ("True or False", lambda: Space().int("x", 1, 9, 2)),  # type: ignore[arg-type]
    ("a low of 1", lambda: Space().int("n", 0, 9, log=True)),
    ("has no step", lambda: Space().int("n", 1, 9, log=True, step=2)),
    ("a log int knob ends", lambda: Space().int("n", 1, 2**41, log=True)),
    ("whole numbers", lambda: Space().int("n", 0.5, 9)),  # type: ignore[arg-type]
    ("whole numbers", lambda: Space().int("n", 0, 9, step=1.5)),  # type: ignore[arg-type]
    ("whole numbers", lambda: Space().int("n", 0, True)),
    ("it is 1 or more", lambda: Space().int("n", 0, 9, step=0)),
    ("write 9 or 12", lambda: Space().int("n", 0, 10, step=3)),
    ("no room", lambda: Space().int("n", 0, 2, step=3)),
    ("a larger step", lambda: Space().int("n", 0, 2**51)),
    ("beyond 64 bits", lambda: Space().int("n", 0, 2**64)),
    ("has no options", lambda: Space().choice("k", [])),
    ("write a list", lambda: Space().choice("k", "adam")),
    ("write a list", lambda: Space().choice("k", {"a": 1})),
    ("write a list", lambda: Space().choice("k", 3)),  # type: ignore[arg-type]
    ("no order", lambda: Space().choice("k", {"a", "b"})),
    ("keep one", lambda: Space().choice("k", ["a", "a"])),
    ("keep one", lambda: Space().choice("k", [1, 1.0])),
    ("keep one", lambda: Space().choice("k", [True, 1])),
    ("read the same", lambda: Space().choice("k", [1, "1"])),
    ("read the same", lambda: Space().choice("k", [None, "None"])),
    ("options are finite", lambda: Space().choice("k", [math.nan])),
    ("look them up", lambda: Space().choice("k", [len])),  # type: ignore[list-item]
    ("look them up", lambda: Space().choice("k", [b"a"])),  # type: ignore[list-item]
    ("beyond 64 bits", lambda: Space().choice("k", [2**64])),
    ("not Unicode", lambda: Space().choice("k", ["\ud800"])),
    ("10,000 options", lambda: Space().choice("k", range(MAX_OPTIONS + 1))),
    ("not there yet", lambda: Space().bool("a", when={"b": True})),
    ("not there yet", lambda: Space().bool("a", when={"a": True})),
    ("not there yet", lambda: Space().bool("a", when={3: True})),  # type: ignore[dict-item]
    ("a real knob", lambda: Space().real("x", 0, 1).bool("a", when={"x": 0.5})),
    ("never is", lambda: Space().choice("o", ["x"]).bool("a", when={"o": "y"})),
    ("never is", lambda: Space().int("n", 1, 3).bool("a", when={"n": 4})),
    ("never is", lambda: Space().bool("b").bool("a", when={"b": 1})),
    ("one of no values", lambda: Space().bool("b").bool("a", when={"b": []})),
    ('write when={"opt"', lambda: Space().bool("a", when={})),
    ('write when={"opt"', lambda: Space().bool("a", when="opt")),  # type: ignore[arg-type]
    ("'knobs': [...]", lambda: Space.from_dict([])),
    ("'knobs': [...]", lambda: Space.from_dict({"knobs": [], "more": 1})),
    ("a knob is one of", lambda: Space.from_dict({"knobs": [{"kind": "_with"}]})),
    ("a knob is one of", lambda: Space.from_dict({"knobs": [{"kind": ["real"]}]})),
    ("cannot be read", lambda: Space.from_dict({"knobs": [{"kind": "real", "name": "x"}]})),
]


@pytest.mark.parametrize(("said", "typed"), REFUSED, ids=range(len(REFUSED)))
def test_what_cannot_be_is_refused_where_it_is_typed(said: str, typed: Callable[[], Any]) -> None:
    with pytest.raises(SpaceError) as refused:
        typed()
    assert said in str(refused.value)


def test_a_space_has_a_largest_number_of_knobs() -> None:
    space = Space()
    for number in range(MAX_KNOBS):
        space = space.bool(f"k{number}")
    with pytest.raises(SpaceError, match="one more than the"):
        space.bool("more")


READ: list[tuple[str, object]] = [
    ("is missing", "lr=0.1,batch=16"),
    ("no knob 'x'", "lr=0.1,batch=16,opt=adam,x=1"),
    ("not name=value", "lr=0.1,batch=16,opt=adam,"),
    ("not name=value", "lr"),
    ("is twice", "lr=0.1,lr=0.1,batch=16,opt=adam"),
    ("is twice", "lr=0.1,%6Cr=0.1,batch=16,opt=adam"),
    ("is not a number", "lr=fast,batch=16,opt=adam"),
    ("is not a number", "lr=nan,batch=16,opt=adam"),
    ("is not a number", "lr=1_0,batch=16,opt=adam"),
    ("is not a number", "lr= 0.1,batch=16,opt=adam"),
    ("beyond what a float", "lr=1e999,batch=16,opt=adam"),
    ("it is logreal(1e-05,0.1)", "lr=0.2,batch=16,opt=adam"),
    ("not a whole number", "lr=0.1,batch=16.0,opt=adam"),
    ("not a whole number", "lr=0.1,batch=٤٨,opt=adam"),
    ("int(16,128,step=16)", "lr=0.1,batch=17,opt=adam"),
    ("beyond what a knob", "lr=0.1,batch=100000000000000000000000,opt=adam"),
    ("one of 'adam', 'sgd'", "lr=0.1,batch=16,opt=lion"),
    ("only where 'opt' is 'sgd'", "lr=0.1,batch=16,opt=adam,momentum=0.5"),
    ("'momentum' is missing", "lr=0.1,batch=16,opt=sgd"),
    ("two hexadecimal digits", "lr=0.1,batch=16,opt=%zz"),
    ("not UTF-8", "lr=0.1,batch=16,opt=%ff"),
    ("'lr' is missing", ""),
    ("a string below", b"lr=0.1"),
    ("a string below", "x" * 2_000_000),
]


@pytest.mark.parametrize(("said", "line"), READ, ids=range(len(READ)))
def test_a_text_that_is_no_point_of_the_space_is_refused(said: str, line: object) -> None:
    with pytest.raises(PointError) as refused:
        SPACE.read(line)
    assert said in str(refused.value)


@given(spaces(), st.one_of(st.text(), TEXT))
def test_any_text_is_a_point_or_a_typed_error(space: Space, said: str) -> None:
    try:
        point = space.read(said)
    except PointError:
        return
    assert space.read(str(point)) == point


@pytest.mark.parametrize(
    ("said", "values"),
    [
        ("is missing", {"lr": 0.1, "batch": 16}),
        ("no knob 'x'", {"lr": 0.1, "batch": 16, "opt": "adam", "x": 1}),
        ("no knob 3", {"lr": 0.1, "batch": 16, "opt": "adam", 3: 1}),
        ("it is a number", {"lr": "0.1", "batch": 16, "opt": "adam"}),
        ("it is a number", {"lr": True, "batch": 16, "opt": "adam"}),
        ("logreal", {"lr": math.nan, "batch": 16, "opt": "adam"}),
        ("logreal", {"lr": 10**400, "batch": 16, "opt": "adam"}),
        ("a whole number", {"lr": 0.1, "batch": 16.0, "opt": "adam"}),
        ("step=16", {"lr": 0.1, "batch": 20, "opt": "adam"}),
        ("one of", {"lr": 0.1, "batch": 16, "opt": ["adam"]}),
        ("names and values", [("lr", 0.1)]),
        ("only where", {"lr": 0.1, "batch": 16, "opt": "adam", "nesterov": True}),
        (
            "one of False, True",
            {"lr": 0.1, "batch": 16, "opt": "sgd", "momentum": 0, "nesterov": 1},
        ),
    ],
)
def test_values_that_are_no_point_of_the_space_are_refused(said: str, values: object) -> None:
    with pytest.raises(PointError) as refused:
        SPACE.point(values)
    assert said in str(refused.value)


def test_messages_stay_short_whatever_was_given() -> None:
    with pytest.raises(PointError) as refused:
        SPACE.read("lr=" + "9" * 100_000)
    assert len(str(refused.value)) < 300
    with pytest.raises(SpaceError) as too:
        Space().choice("k", ["x" * 100_000] * 2)
    assert len(str(too.value)) < 400


def test_a_space_is_written_for_people() -> None:
    assert str(SPACE) == (
        "lr=logreal(1e-05,0.1),batch=int(16,128,step=16),opt=choice(adam|sgd),"
        "momentum=real(0.0,0.99) when opt=sgd,nesterov=choice(False|True) when opt=sgd"
    )
