"""A supplier that may not register yet says so once, and then from time to time."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from entrepot.errors import PatternRefused
from entrepot.market import worklist as module
from entrepot.market.protocol import Reply
from entrepot.market.worklist import COMPLAIN_S, Worklist

TAKEN = Reply(code="pattern_taken", error="pattern 'x' is registered by supplier 'first'")
FULL = Reply(code="too_many_peers", error="2 peers are connected (max_peers)")


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def make(clock: Callable[[], float], timeout_s: float = 10.0) -> Worklist:
    return Worklist(
        "tcp://127.0.0.1:9",
        ["x"],
        name="second",
        credit=1,
        batch=1,
        exclusive=True,
        contracts={},
        timeout_s=timeout_s,
        silence_s=5.0,
        tidy=lambda: None,
        settled=list,
        clock=clock,
    )


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.__dict__["why"] for record in caplog.records if record.name == module.__name__]


def test_who_waits_for_a_pattern_names_the_one_that_has_it_once(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    worklist = make(clock)
    with caplog.at_level(logging.WARNING):
        for _ in range(39):
            assert worklist.denied(TAKEN) is None
            clock.now += 0.25
    assert said(caplog) == [TAKEN.error]
    clock.now += 0.25
    fault = worklist.denied(TAKEN)
    assert isinstance(fault, PatternRefused)
    assert "'first'" in str(fault)


def test_who_waits_for_long_says_so_every_half_a_minute(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    worklist = make(clock)
    with caplog.at_level(logging.WARNING):
        for _ in range(int(4 * COMPLAIN_S)):
            assert worklist.denied(FULL) is None
            clock.now += 0.5
    assert said(caplog) == [FULL.error] * 2


def test_the_next_wait_is_said_again(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    worklist = make(clock, timeout_s=1.0)
    with caplog.at_level(logging.WARNING):
        assert worklist.denied(TAKEN) is None
        clock.now += 1.0
        assert worklist.denied(TAKEN) is not None
        assert worklist.denied(TAKEN) is None
    assert said(caplog) == [TAKEN.error] * 2
