"""An argument that cannot be one is told at once, with its name and value."""

from __future__ import annotations

import functools
import math
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import numpy as np
import pytest

from entrepot.arguments import (
    checked_callable,
    checked_function,
    checked_int,
    checked_kind,
    checked_seconds,
    checked_several,
    checked_text,
    checked_wait,
    shown,
)
from entrepot.errors import ConfigurationError

NO_NUMBERS: list[Any] = ["x", "1", None, True, False, [], {}, object(), 1j, math.nan, np.nan]


@pytest.mark.parametrize("value", [1, 3, 10, np.int64(10), np.uint8(3)])
def test_whole_numbers(value: Any) -> None:
    made = checked_int("n", value, 1, 10)
    assert made == value
    assert type(made) is int, "a number of numpy's cannot be sent"


@pytest.mark.parametrize("value", [*NO_NUMBERS, 1.0, np.float32(1)])
def test_what_is_no_whole_number(value: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^n is a whole number, got "):
        checked_int("n", value, 1)


@pytest.mark.parametrize(("value", "most"), [(0, 10), (-5, 10), (11, 10), (0, None)])
def test_a_whole_number_out_of_range(value: int, most: int | None) -> None:
    span = "at least 1" if most is None else "1 to 10"
    with pytest.raises(ConfigurationError, match=f"^n must be {span}, got {value}$"):
        checked_int("n", value, 1, most)


@pytest.mark.parametrize("value", [1, 0.5, 1e9, np.float32(0.5), np.int32(3)])
def test_times(value: Any) -> None:
    for made in (checked_seconds("t_s", value), checked_wait("t_s", value)):
        assert made == value
        assert type(made) is float


@pytest.mark.parametrize("value", [*NO_NUMBERS, 0, -1, 1e10, math.inf])
def test_what_is_no_time(value: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^t_s is in seconds, more than 0 and at most"):
        checked_seconds("t_s", value)


@pytest.mark.parametrize("value", [each for each in NO_NUMBERS if each is not None])
def test_what_is_no_time_to_wait(value: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^t_s is a number of seconds, or None, got "):
        checked_wait("t_s", value)


def test_a_wait_may_be_over_or_endless() -> None:
    assert [checked_wait("t_s", each) for each in (None, 0, -1, math.inf)] == [
        None,
        0.0,
        -1.0,
        math.inf,
    ]


def test_text() -> None:
    assert checked_text("name", "ñandú", 5) == "ñandú"
    for value, said in (
        (b"bytes", "name is a str, got b'bytes'"),
        (None, "name is a str, got None"),
        ("x" * 6, "name has at most 5 characters, got 6"),
        ("\ud800", "name .* is not text"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            checked_text("name", value, 5)


def test_kinds() -> None:
    checked_kind("n", 5, int, "")
    with pytest.raises(ConfigurationError, match=r"^n must be of type int, got 'x'; write one$"):
        checked_kind("n", "x", int, "write one")
    checked_callable("f", len)
    with pytest.raises(ConfigurationError, match=r"^f is a function, got 5$"):
        checked_callable("f", 5)
    assert checked_several("ids", ["a"]) == ["a"]
    for value in (5, None, "abc", b"abc"):
        with pytest.raises(ConfigurationError, match=r"^ids are several, such as a list, got "):
            checked_several("ids", value)  # type: ignore[arg-type]


def test_what_is_shown_fits_into_a_sentence() -> None:
    class Rude:
        def __repr__(self) -> str:
            raise RuntimeError

    assert shown("x" * 1000) == "'" + "x" * 76 + "..."
    assert shown(Rude()) == "a Rude"


# --- functions --------------------------------------------------------------------------


def plain(name: str) -> bytes:
    return name.encode()


async def coroutine(name: str) -> bytes:
    return name.encode()


def generator(name: str) -> Iterator[bytes]:
    yield name.encode()


async def both(name: str) -> AsyncIterator[bytes]:
    yield name.encode()


@functools.wraps(coroutine)
def wrapped(name: str) -> bytes:
    """What makes a plain function of an async one, as a decorator would."""
    return name.encode()


class Plain:
    def __call__(self, name: str) -> bytes:
        return name.encode()

    def method(self, name: str) -> bytes:
        return name.encode()

    async def later(self, name: str) -> bytes:
        return name.encode()


class Async:
    async def __call__(self, name: str) -> bytes:
        return name.encode()


class Yields:
    def __call__(self, name: str) -> Iterator[bytes]:
        yield name.encode()


PLAIN: list[Callable[..., Any]] = [
    plain,
    wrapped,
    Plain(),
    Plain().method,
    functools.partial(plain),
    str.encode,
    len,
    bytearray,
    lambda name: name.encode(),
]


@pytest.mark.parametrize("function", PLAIN)
def test_a_function_that_is_done_when_it_returns(function: Callable[..., Any]) -> None:
    assert checked_function("f", function) is function


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (coroutine, "f is async .*; give a plain function, which may call asyncio.run"),
        (Async(), "f is async"),
        (Plain().later, "f is async"),
        (functools.partial(functools.partial(coroutine), "x"), "f is async"),
        (functools.partial(Async()), "f is async"),
        (generator, "f is a generator .*; give a plain function that returns where this one yie"),
        (Yields(), "f is a generator"),
        (both, "f is a generator"),
        (5, "f must be callable, got 5"),
    ],
)
def test_a_function_that_only_begins_is_refused(function: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        checked_function("f", function)
