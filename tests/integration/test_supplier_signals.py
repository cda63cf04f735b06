"""SIGTERM to a script's supplier whose function goes to sleep just then: heard, each time."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time

from entrepot import Broker, Client, ShmMedium
from tests.peer.waiting import until
from tests.unit.test_signals import busy, read

ANY = "tcp://127.0.0.1:*"
ROUNDS = 300

SCRIPT = """
import os, random, sys, threading, time
from entrepot import Supplier

class Round:
    def __init__(self):
        self.gate = threading.Lock()
        self.gate.acquire()
        self.supplier = Supplier(sys.argv[1], {"x": self.make}, credit=1)

    def make(self, work, out):
        os.write(1, b"w")
        begins = time.perf_counter() + random.uniform(0, 200e-6)
        while time.perf_counter() < begins: pass
        self.gate.acquire()  # until the supplier is to end
        return 0

    def open_when_told(self):
        while not self.supplier._worklist.stopping: time.sleep(0.001)
        self.gate.release()

while os.read(0, 1):
    each = Round()
    opener = threading.Thread(target=each.open_when_told)
    opener.start()
    each.supplier.run()
    opener.join()
    os.write(1, b"e")
"""

LONG_CALL = """
import ctypes, os, sys, threading
from entrepot import Supplier

libc = ctypes.CDLL(None)
mutex = ctypes.create_string_buffer(64)  # a pthread_mutex_t of zeros
libc.pthread_mutex_lock(mutex)

def end_the_call():
    os.read(0, 1)
    libc.pthread_mutex_unlock(mutex)

def make(work, out):
    os.write(1, b"w")
    libc.pthread_mutex_lock(mutex)  # which no signal interrupts
    return 0

threading.Thread(target=end_the_call).start()

Supplier(sys.argv[1], {"x": make}, credit=4).run()
os.write(1, b"e")
"""


def started(script: str, broker: Broker) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", script, broker.backend],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


def test_a_signal_at_any_moment_ends_the_supplier() -> None:
    chance = random.Random(7)
    with (
        Broker(ANY, ANY) as broker,
        Client(broker.frontend, ShmMedium.create(64, 4)) as client,
        started(SCRIPT, broker) as child,
    ):
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            with busy(3):
                for _ in range(ROUNDS):
                    os.write(child.stdin.fileno(), b"x")
                    order = client.order("x")
                    assert read(child.stdout) == b"w"
                    moment = time.perf_counter() + chance.uniform(0, 150e-6)
                    while time.perf_counter() < moment:
                        pass
                    child.send_signal(signal.SIGTERM)
                    assert read(child.stdout) == b"e"
                    order.result(10).release()
        finally:
            child.kill()


def test_what_is_not_begun_goes_back_while_a_long_call_goes_on() -> None:
    """A call that no signal interrupts, of a library in C: the handler comes after it."""
    with (
        Broker(ANY, ANY) as broker,
        Client(broker.frontend, ShmMedium.create(64, 8)) as client,
        started(LONG_CALL, broker) as child,
    ):
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            orders = [client.order("x") for _ in range(4)]
            assert read(child.stdout) == b"w"
            until(lambda: client.stats()["orders"]["in_flight"] == 4)
            child.send_signal(signal.SIGTERM)
            until(lambda: client.stats()["orders"]["queued"] == 3)
            assert not orders[0].done
            os.write(child.stdin.fileno(), b"x")
            assert read(child.stdout) == b"e"
            assert child.wait(20) == 0
        finally:
            child.kill()
