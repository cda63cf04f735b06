"""Steps that a thread makes, and signals that come between two of them."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Generator
from pathlib import Path

import pytest

from entrepot.cli.drawing import drawn
from entrepot.cli.signals import STOPS, Interrupted

WAIT_S = 20.0


def test_all_is_given_in_order_and_handlers_are_what_they_were() -> None:
    before = [signal.getsignal(number) for number in STOPS]
    with drawn(number for number in range(100)) as items:
        assert list(items) == list(range(100))
    assert [signal.getsignal(number) for number in STOPS] == before


@pytest.mark.parametrize("number", STOPS)
def test_a_signal_comes_between_two_steps(number: signal.Signals) -> None:
    said: list[str] = []
    go = threading.Event()

    def source() -> Generator[int, None, None]:
        try:
            yield 0
            go.wait(WAIT_S)
            said.append("came to its end")
            yield 1
            said.append("went on")
        finally:
            said.append("closed")

    given = []

    def take() -> None:
        with drawn(source(), WAIT_S) as items:
            for item in items:
                given.append(item)
                signal.raise_signal(number)
            go.set()

    with pytest.raises(Interrupted) as told:
        take()
    assert told.value.number is number
    assert said == ["came to its end", "closed"]
    assert given == [0]


def test_a_fault_of_a_step_is_raised_where_its_item_is_waited_for() -> None:
    def source() -> Generator[int, None, None]:
        yield 0
        raise OSError("no such disk")

    given = []

    def take() -> None:
        with drawn(source()) as items:
            for item in items:
                given.append(item)  # also what came before the fault

    with pytest.raises(OSError, match="no such disk"):
        take()
    assert given == [0]


def test_no_further_step_is_made_for_who_has_left() -> None:
    steps = 0
    go = threading.Event()

    def source() -> Generator[int, None, None]:
        nonlocal steps
        for steps in range(10_000):
            yield steps
            go.wait(WAIT_S)

    def leave() -> None:
        with drawn(source()) as items:
            assert next(items) == 0
            go.set()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        leave()
    assert steps < 9_999


STUCK = """
import signal, threading
from entrepot.cli.drawing import drawn
from entrepot.mediums import ShmMedium

def source():
    with ShmMedium.create(64, 2) as medium:
        yield medium.address
        threading.Event().wait()

with drawn(source(), 0.1) as items:
    for item in items:
        print(item, flush=True)
        signal.raise_signal(signal.SIGTERM)
"""


def test_who_does_not_leave_is_ended_and_leaves_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-c", STUCK], timeout=WAIT_S, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (143, "")
    name = done.stdout.strip().removeprefix("shm:")
    assert name.startswith("entrepot-")
    assert not (Path("/dev/shm") / name).exists()
