"""Signals reach whoever waits for them, whatever the main thread is doing at that moment."""

from __future__ import annotations

import os
import random
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO

import pytest

from entrepot.cli.signals import (
    AGAIN_S,
    Interrupted,
    exit_code,
    heard,
    interrupting,
    on_stop,
    unbroken,
)
from tests.peer.waiting import until

STOPS = (signal.SIGINT, signal.SIGTERM)
WAIT_S = 20.0

ROUNDS = 1000
"""An Event that the handler itself sets hangs once in some 1,500 of these."""

WAITING = """
import random, sys, threading, time
from entrepot.cli.signals import on_stop

def wait():
    over = threading.Event()
    with on_stop(lambda number: over.set()):
        sys.stdout.write("w"); sys.stdout.flush()
        begins = time.perf_counter() + random.uniform(0, 200e-6)
        while time.perf_counter() < begins: pass
        over.wait()

while sys.stdin.read(1):
    wait()
    sys.stdout.write("e"); sys.stdout.flush()
"""


def read(stream: IO[bytes]) -> bytes:
    ready, _, _ = select.select([stream], [], [], WAIT_S)
    assert ready, "it waits on"
    return os.read(stream.fileno(), 1)


def test_a_signal_at_any_moment_ends_the_wait() -> None:
    chance = random.Random(7)
    child = subprocess.Popen(
        [sys.executable, "-c", WAITING], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        for _ in range(ROUNDS):
            os.write(child.stdin.fileno(), b"x")
            assert read(child.stdout) == b"w"
            moment = time.perf_counter() + chance.uniform(0, 150e-6)
            while time.perf_counter() < moment:
                pass
            child.send_signal(chance.choice(STOPS))
            assert read(child.stdout) == b"e"
    finally:
        child.kill()
        child.communicate()


def test_the_call_is_made_in_a_thread_that_may_lock_and_wait() -> None:
    lock = threading.Lock()
    called: list[tuple[signal.Signals, bool]] = []

    def call(number: signal.Signals) -> None:
        with lock:
            ours = threading.current_thread() is threading.main_thread()
            called.append((number, ours))

    with on_stop(call):
        with lock:  # a handler that wanted it would wait for ever
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGINT)
        until(lambda: len(called) == 2)
    assert called == [(signal.SIGTERM, False), (signal.SIGINT, False)]
    assert [exit_code(number) for number, _ in called] == [143, 130]


def test_handlers_and_descriptor_are_what_they_were() -> None:
    def state() -> list[object]:
        fd = signal.set_wakeup_fd(-1)
        signal.set_wakeup_fd(fd)
        return [fd, *(signal.getsignal(number) for number in STOPS)]

    before = state()
    with on_stop(lambda number: None):
        assert state() != before
    assert state() == before
    with interrupting():
        assert state() != before
    assert state() == before


def test_what_came_before_the_end_of_the_block_is_told() -> None:
    for _ in range(50):
        called: list[signal.Signals] = []
        with on_stop(called.append):
            signal.raise_signal(signal.SIGTERM)
        assert called == [signal.SIGTERM]


def test_a_flood_while_the_call_waits_is_no_harm() -> None:
    go = threading.Event()
    called: list[signal.Signals] = []

    def call(number: signal.Signals) -> None:
        go.wait(WAIT_S)
        called.append(number)

    with heard(call):
        before = signal.signal(signal.SIGTERM, lambda number, frame: None)
        try:
            for _ in range(70_000):  # more than a pipe holds
                signal.raise_signal(signal.SIGTERM)
        finally:
            signal.signal(signal.SIGTERM, before)
        go.set()
    assert called[0] == signal.SIGTERM


def test_a_second_signal_raises_if_the_first_did_not_end_it() -> None:
    now = 100.0
    with on_stop(lambda number: None, lambda: now):
        signal.raise_signal(signal.SIGINT)
        now += AGAIN_S / 2
        signal.raise_signal(signal.SIGINT)  # pressed twice
        now += AGAIN_S
        with pytest.raises(Interrupted) as told:
            signal.raise_signal(signal.SIGTERM)
        assert told.value.number == signal.SIGTERM
        now += AGAIN_S / 2
        signal.raise_signal(signal.SIGTERM)  # it is on its way out
        now += AGAIN_S / 2
        with pytest.raises(Interrupted):
            signal.raise_signal(signal.SIGTERM)


STUCK = """
import signal, sys, threading
from entrepot.cli import signals
from entrepot.cli.signals import on_stop

signals.LEAVE_S = 0.1
signals.AGAIN_S = 0.0

def deaf(number, frame):
    pass

with on_stop(lambda number: None):
    signal.signal(signal.SIGTERM, deaf)  # as a main thread that is stuck outside of Python
    signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(signal.SIGTERM)
    threading.Event().wait()
"""


def test_who_hears_no_exception_is_ended() -> None:
    done = subprocess.run([sys.executable, "-c", STUCK], timeout=WAIT_S, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (143, b"", b"")


class Loses:
    """Is told to stop in its destructor, whose exceptions nobody gets."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGTERM)


def test_what_a_destructor_swallows_is_raised_again(capsys: pytest.CaptureFixture[str]) -> None:
    def wait() -> None:
        with interrupting():
            Loses()
            threading.Event().wait(WAIT_S)
            raise AssertionError("it was lost")

    hook = sys.unraisablehook
    with pytest.raises(Interrupted) as told:
        wait()
    assert told.value.number == signal.SIGTERM
    assert sys.unraisablehook is hook
    assert capsys.readouterr() == ("", "")


def test_interrupting_raises_once() -> None:
    with interrupting():
        with pytest.raises(Interrupted):
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)


def test_what_a_forked_child_is_told_is_not_heard_by_its_parent() -> None:
    """They share the pipe: a pool that ends its workers would end the command."""
    called: list[signal.Signals] = []
    with on_stop(called.append):
        child = os.fork()
        if child == 0:
            signal.raise_signal(signal.SIGTERM)
            os._exit(0)
        os.waitpid(child, 0)
        signal.raise_signal(signal.SIGINT)
        until(lambda: bool(called))
    assert called == [signal.SIGINT]


def test_what_is_not_to_be_broken_is_not_and_ends_with_the_signal() -> None:
    done: list[str] = []

    def work() -> None:
        with unbroken():
            signal.raise_signal(signal.SIGTERM)
            done.append("outer")
            with unbroken():
                signal.raise_signal(signal.SIGINT)
                done.append("inner")
            done.append("end")

    with interrupting():
        with pytest.raises(Interrupted) as told:
            work()
        assert done == ["outer", "inner", "end"]
        assert told.value.number in STOPS
        with unbroken():
            done.append("again")
    assert done[-1] == "again"


STARTS = """
import os, signal, subprocess, sys, time
from entrepot.cli.signals import Interrupted, interrupting
from entrepot.demo.processes import Parts

class Late(subprocess.Popen):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        print(self.pid, flush=True)
        os.kill(os.getpid(), signal.SIGTERM)  # it runs, and nobody has its number yet
        time.sleep(0.001)

subprocess.Popen = Late
try:
    with interrupting(30), Parts(end_s=30) as parts:
        parts.start("waits", module="tests.unit.cli.waits")
except Interrupted:
    print("left", flush=True)
"""


def test_a_part_whose_start_is_interrupted_is_ended_with_the_others() -> None:
    done = subprocess.run(
        [sys.executable, "-c", STARTS], timeout=4 * WAIT_S, capture_output=True, text=True
    )
    pid, said = done.stdout.split()
    assert (said, done.stderr, done.returncode) == ("left", "", 0)
    assert not Path(f"/proc/{pid}").exists()
