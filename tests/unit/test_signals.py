"""A handler runs in time, also when its signal comes as the main thread goes to sleep."""

from __future__ import annotations

import hashlib
import os
import random
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import FrameType
from typing import IO

import pytest

from entrepot.signals import handling, heard
from tests.peer.waiting import until

WAIT_S = 20.0

ROUNDS = 3000
"""A handler that ``signal.signal`` alone has set is late for ever in one of some 1,000 rounds."""

FRAME = """
import random, sys, threading, time

def wants_the_interpreter():
    while True: time.sleep(20e-6)

# Who lets go of the interpreter's lock on the way to sleep then waits for another to take it.
threading.Thread(target=wants_the_interpreter, daemon=True).start()

def going_to_sleep(gate):
    sys.stdout.write("w"); sys.stdout.flush()
    begins = time.perf_counter() + random.uniform(0, 200e-6)
    while time.perf_counter() < begins: pass
    gate.acquire()  # as a function does that waits for its GPU, a queue, another thread

{wait}

while sys.stdin.read(1):
    gate = threading.Lock()
    gate.acquire()
    wait(gate)
    sys.stdout.write("e"); sys.stdout.flush()
"""

BY_HANDLER = """
import signal
from entrepot.signals import handling

def wait(gate):
    with handling({signal.SIGTERM: lambda number, frame: gate.release()}):
        going_to_sleep(gate)
"""

BY_EXCEPTION = """
from entrepot.study.leaving import Terminated, terminated

def wait(gate):
    try:
        with terminated():
            going_to_sleep(gate)
    except Terminated:
        pass
"""


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Others that want the same cores."""
    spin = [sys.executable, "-c", "while True: pass"]
    others = [subprocess.Popen(spin) for _ in range(processes)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def read(stream: IO[bytes]) -> bytes:
    ready, _, _ = select.select([stream], [], [], WAIT_S)
    assert ready, "it sleeps on"
    return os.read(stream.fileno(), 1)


@pytest.mark.parametrize("wait", [BY_HANDLER, BY_EXCEPTION], ids=["handler", "exception"])
def test_a_signal_at_any_moment_of_going_to_sleep_is_handled(wait: str) -> None:
    chance = random.Random(7)
    child = subprocess.Popen(
        [sys.executable, "-c", FRAME.format(wait=wait)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        with busy(3):
            for _ in range(ROUNDS):
                os.write(child.stdin.fileno(), b"x")
                assert read(child.stdout) == b"w"
                moment = time.perf_counter() + chance.uniform(0, 150e-6)
                while time.perf_counter() < moment:
                    pass
                child.send_signal(signal.SIGTERM)
                assert read(child.stdout) == b"e"
    finally:
        child.kill()
        child.communicate()


def test_one_that_is_sent_again_as_its_handler_begins_is_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And none is on its way when handlers are what they were: SIGTERM may be the end then."""
    ran, sending, sent = threading.Event(), threading.Event(), threading.Event()
    seen: list[int] = []
    strange: list[int] = []
    kill = signal.pthread_kill

    def handled(number: int, _frame: FrameType | None) -> None:
        seen.append(number)
        ran.set()

    def late(thread: int, number: int) -> None:
        sending.set()
        assert ran.wait(WAIT_S)
        kill(thread, number)
        sent.set()

    monkeypatch.setattr(signal, "pthread_kill", late)
    data = bytes(256 << 20)
    before = signal.signal(signal.SIGTERM, lambda number, _: strange.append(number))
    try:
        told = 0
        while not sending.is_set():  # on a busy machine it may come before or after that time
            ran.clear()
            with handling({signal.SIGTERM: handled}):
                timer = threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGTERM))
                timer.start()
                told += 1
                hashlib.sha256(data)  # tenths of a second, in which no handler runs
                timer.join()
                assert ran.wait(WAIT_S)
        assert sent.wait(WAIT_S)
        time.sleep(0)  # what came is handled by now
        assert (seen, strange) == ([signal.SIGTERM] * told, [])
    finally:
        signal.signal(signal.SIGTERM, before)


def test_each_signal_is_handled_once_and_handlers_are_restored() -> None:
    seen: list[int] = []
    called: list[None] = []
    before = signal.getsignal(signal.SIGTERM)
    with handling(
        {signal.SIGTERM: lambda number, _: seen.append(number)}, lambda: called.append(None)
    ):
        for count in range(1, 51):
            os.kill(os.getpid(), signal.SIGTERM)
            until(lambda count=count: (len(seen), len(called)) == (count, count))  # type: ignore[misc]
    assert seen == [signal.SIGTERM] * 50
    assert signal.getsignal(signal.SIGTERM) is before


def test_two_that_the_interpreter_takes_for_one_are_two() -> None:
    """The second of them means more than the first."""
    seen: list[int] = []
    with handling({signal.SIGTERM: lambda number, _: seen.append(number)}):
        for _ in range(20):
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
            os.kill(os.getpid(), signal.SIGTERM)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
            os.kill(os.getpid(), signal.SIGTERM)
        until(lambda: len(seen) == 40)


def test_what_somebody_else_hears_is_theirs() -> None:
    theirs: list[int] = []
    called: list[None] = []
    seen: list[int] = []
    with heard(theirs.append):
        with handling(
            {signal.SIGTERM: lambda number, _: seen.append(number)}, lambda: called.append(None)
        ):
            os.kill(os.getpid(), signal.SIGTERM)
            until(lambda: theirs and seen)
        with handling({signal.SIGINT: lambda number, _: seen.append(number)}):
            os.kill(os.getpid(), signal.SIGINT)  # and they hear on
            until(lambda: len(theirs) == 2 == len(seen))
    assert called == []


def test_an_exception_of_the_handler_is_raised_where_the_main_thread_is() -> None:
    class Told(Exception):
        pass

    def tell(_number: int, _frame: object) -> None:
        raise Told

    def told() -> None:
        with handling({signal.SIGTERM: tell}):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(WAIT_S)

    with pytest.raises(Told):
        told()
    assert signal.set_wakeup_fd(-1) == -1


def test_a_forked_child_hears_nothing_of_its_parents() -> None:
    seen: list[int] = []
    with handling({signal.SIGTERM: lambda number, _: seen.append(number)}):
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
        os.kill(os.getpid(), signal.SIGTERM)
        until(lambda: len(seen) == 1)
    assert seen == [signal.SIGTERM]


def handler_in_a_child() -> object:
    """What a process that is forked now does at SIGTERM."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, str(signal.getsignal(signal.SIGTERM)).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as said:
        shown = said.read()
    assert os.waitpid(child, 0)[1] == 0
    return shown


@pytest.mark.parametrize("apart", [False, True], ids=["main thread", "another thread"])
def test_a_forked_child_has_the_handlers_of_before(apart: bool) -> None:
    """By ours, one that is sent as it goes to sleep would be handled when it wakes."""
    mine = signal.getsignal(signal.SIGTERM)
    with handling({signal.SIGTERM: lambda number, frame: None}):
        with handling({signal.SIGTERM: lambda number, frame: None}):
            if apart:
                with ThreadPoolExecutor(1) as pool:
                    shown = pool.submit(handler_in_a_child).result()
            else:
                shown = handler_in_a_child()
            assert shown == str(mine)
        outer = signal.getsignal(signal.SIGTERM)
        assert handler_in_a_child() == str(mine)
        signal.signal(
            signal.SIGTERM, signal.SIG_IGN
        )  # and what a user has set in the block is kept
        assert handler_in_a_child() == str(signal.SIG_IGN)
        signal.signal(signal.SIGTERM, outer)
    assert signal.getsignal(signal.SIGTERM) is mine
