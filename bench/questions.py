"""The other questions: scale, bytes, overlap, loss of a supplier, and doing nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Any

import psutil

from bench.processes import LOAD, OURS, Processes, cpu_s, two_ends
from bench.report import Figures
from tests.peer.process import CHECKOUT, LineProcess
from tests.peer.waiting import until

SUPPLIERS = 200
WAITING = 10_000
MIB = 1 << 20
SHM_RINGS = {"shm_ratio": (16 * MIB, 8, 4), "shm_ratio_1mib": (MIB, 64, 16)}
"""For each figure: bytes of a product, slots of the ring, credit of the supplier.

Both rings are larger than a cache. The products of one ring's credit are a fair part of it, so that
neither side waits for the other.
"""
OVERLAP_S = 0.005
OVERLAP_CREDIT = 2
"""Orders that the supplier has in hand, so that the next is there when it has made one."""


# --- scale ------------------------------------------------------------------------------


def scale(figures: Figures, quick: bool) -> None:
    """Orders a second when very much waits, over when little does.

    In the large case 200 suppliers, all busy, are of 200 classes that overlap: each serves all
    jobs and products of its own, and of the 10,000 products that wait one in ten is somebody's
    own.
    """
    rounds, seconds = (3, 0.7) if quick else (5, 3.0)
    with Processes() as processes:
        few, few_pid = _market(processes, [[0]])
        numbers = list(range(SUPPLIERS))
        many, many_pid = _market(processes, [numbers[::2], numbers[1::2]])
        for _ in range(rounds):
            small, small_s = few.ask(
                "saturate", waiting=10, suppliers=1, warm=200, seconds=seconds, broker=few_pid
            )
            large, large_s = many.ask(
                "saturate",
                waiting=WAITING,
                suppliers=SUPPLIERS,
                warm=2 * SUPPLIERS,
                seconds=seconds,
                broker=many_pid,
            )
            figures.add(scale_ratio=large / small)
            figures.detail(small_per_s=small, large_per_s=large)
            figures.detail(small_broker_us=1e6 * small_s, large_broker_us=1e6 * large_s)


def _market(processes: Processes, numbers: list[list[int]]) -> tuple[LineProcess, int]:
    broker, client = processes.start(OURS), processes.start(LOAD)
    loads = [processes.start(LOAD) for _ in numbers]
    frontend, backend = broker.ask("broker")
    for load, some in zip(loads, numbers, strict=True):
        load.ask("supply", backend=backend, numbers=some)
    client.ask("connect", frontend=frontend)
    return client, broker.pid


# --- bytes ------------------------------------------------------------------------------


def shm(figures: Figures, quick: bool) -> None:
    """Bytes a second, written, checked and handed over, over a copy into the same ring."""
    rounds, seconds = (3, 0.6) if quick else (7, 2.0)
    with Processes() as processes:
        clients = {
            name: _moving(processes, nbytes, slots, credit)
            for name, (nbytes, slots, credit) in SHM_RINGS.items()
        }
        for _ in range(rounds):
            for name, (_, client) in clients.items():
                nbytes, slots, _ = SHM_RINGS[name]
                copied = client.ask("memcpy", nbytes=nbytes, slots=slots, seconds=seconds)
                figures.add(**{name: _streamed(client, nbytes, slots, copied, seconds) / copied})
                figures.detail(**{f"{name}_memcpy_mb_s": copied / 1e6})


def _moving(
    processes: Processes, nbytes: int, slots: int, credit: int, medium: str = "shm"
) -> tuple[LineProcess, LineProcess]:
    broker, supplier, client = (processes.start(OURS) for _ in range(3))
    frontend, backend = broker.ask("broker")
    supplier.ask("supplier", backend=backend, patterns=["p"], credit=credit, nbytes=nbytes)
    client.ask("client", frontend=frontend, slot_nbytes=nbytes, slots=slots, medium=medium)
    client.ask("stream", product="p", count=slots, prefetch=slots)  # touch every page
    return supplier, client


# --- mediums between machines -----------------------------------------------------------

TCP_RINGS = {"tcp_ratio": (16 * MIB, 8, 4), "tcp_ratio_64kib": (64 << 10, 64, 16)}
"""As :data:`SHM_RINGS`."""


def mediums(figures: Figures, quick: bool) -> None:
    """Bytes a second by file and by TCP, checked; and small orders a second by TCP."""
    rounds, seconds = (2, 0.3) if quick else (7, 2.0)
    with Processes() as processes:
        _, filed = _moving(processes, 16 * MIB, 8, 4, "file")
        ends = {name: _moving(processes, *ring, medium="tcp") for name, ring in TCP_RINGS.items()}
        _, small = _moving(processes, 64, 64, 1, "tcp")
        for _ in range(rounds):
            copied = filed.ask("memcpy", nbytes=16 * MIB, slots=8, seconds=seconds)
            streamed = _streamed(filed, 16 * MIB, 8, copied, seconds)
            written = filed.ask("pwrite", nbytes=16 * MIB, slots=8, seconds=seconds)
            figures.add(file_ratio=streamed / copied, file_over_pwrite=streamed / written)
            figures.detail(file_memcpy_mb_s=copied / 1e6, file_pwrite_mb_s=written / 1e6)
            for name, (supplier, client) in ends.items():
                nbytes, slots, _ = TCP_RINGS[name]
                supplier.ask("pour", port=client.ask("listen"), nbytes=nbytes)
                bare = client.ask("receive", nbytes=nbytes, slots=slots, seconds=seconds)
                figures.add(**{name: _streamed(client, nbytes, slots, bare, seconds) / bare})
                figures.detail(**{f"{name}_bare_mb_s": bare / 1e6})
            figures.add(orders_tcp_per_s=small.ask("pump", product="p", seconds=seconds))


def _streamed(
    client: LineProcess, nbytes: int, slots: int, ceiling: float, seconds: float
) -> float:
    """Bytes a second through ``stream``; as many products as fill about the time."""
    count = max(8, int(seconds * ceiling / nbytes * 0.5))
    spent: float = client.ask("stream", product="p", count=count, prefetch=slots)
    return count * nbytes / spent


# --- overlap ----------------------------------------------------------------------------


def overlap(figures: Figures, quick: bool) -> None:
    """Milliseconds a sample when making it and using it each take 5."""
    rounds, count = (3, 150) if quick else (5, 1000)
    with Processes() as processes:
        broker, supplier, client = (processes.start(OURS) for _ in range(3))
        frontend, backend = broker.ask("broker")
        slow: Any = {"slow": "p", "slow_s": OVERLAP_S, "credit": OVERLAP_CREDIT}
        supplier.ask("supplier", backend=backend, patterns=["p"], **slow)
        client.ask("client", frontend=frontend)
        for _ in range(rounds):
            spent = client.ask("stream", product="p", count=count, prefetch=16, consume_s=OVERLAP_S)
            figures.add(overlap_ms=1000 * spent / count)


# --- many orders in one call -------------------------------------------------------------

CALL_S = 0.005
TOGETHER = 16


def together(figures: Figures, quick: bool) -> None:
    """Orders a second where a call takes 5 ms however many it makes: 16 at once, or one."""
    rounds, seconds = (3, 0.5) if quick else (5, 2.0)
    with Processes() as processes:
        broker, one, many, client = (processes.start(OURS) for _ in range(4))
        frontend, backend = broker.ask("broker")
        one.ask("supplier", backend=backend, patterns=["one"], call_s=CALL_S)
        many.ask(
            "supplier",
            backend=backend,
            patterns=["many"],
            call_s=CALL_S,
            batch=TOGETHER,
            credit=2 * TOGETHER,
        )
        client.ask("client", frontend=frontend)
        for product in ("one", "many"):
            client.ask("pump", product=product, seconds=0.1)
        for _ in range(rounds):
            figures.add(
                alone_per_s=client.ask("pump", product="one", seconds=seconds),
                together_per_s=client.ask("pump", product="many", seconds=seconds),
            )


# --- loss -------------------------------------------------------------------------------


def requeue(figures: Figures, quick: bool) -> None:
    """Seconds from kill -9 of the supplier that has the order until another begins it."""
    with Processes() as processes:
        broker, client = processes.start(OURS), processes.start(OURS)
        frontend, backend = broker.ask("broker")
        client.ask("client", frontend=frontend)
        for _ in range(3 if quick else 7):
            doomed, spare = processes.start(OURS), processes.start(OURS)
            doomed.ask("supplier", backend=backend, patterns=["p"], hold="p")
            client.begin("one_at_a_time", product="p", count=1)
            until(lambda process=doomed: process.ask("calls"))  # type: ignore[misc]
            spare.ask("supplier", backend=backend, patterns=["p"])
            killed = time.monotonic()
            doomed.kill()
            client.finish()
            figures.add(requeue_s=spare.ask("called_at")[0] - killed)
            spare.ask("stop")


# --- nothing ----------------------------------------------------------------------------


def idle(figures: Figures, quick: bool) -> None:
    """What ``entrepot broker`` takes with a client and a supplier that have nothing to do."""
    frontend, backend = two_ends()
    command = [sys.executable, "-m", "entrepot.cli", "broker"]
    command += ["--frontend", frontend, "--backend", backend]
    with Processes() as processes:
        supplier, client = processes.start(OURS), processes.start(OURS)
        broker = subprocess.Popen(
            command,
            env=os.environ | {"PYTHONPATH": str(CHECKOUT / "src")},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            supplier.ask("supplier", backend=backend, patterns=["p"])
            client.ask("client", frontend=frontend)
            client.ask("one_at_a_time", product="p", count=10)
            seconds = 4.0 if quick else 20.0
            before, started = cpu_s(broker.pid), time.monotonic()
            time.sleep(seconds)
            spent = cpu_s(broker.pid) - before
            figures.add(
                idle_cpu=spent / (time.monotonic() - started),
                idle_rss_mb=psutil.Process(broker.pid).memory_info().rss / 1e6,
            )
        finally:
            broker.kill()
            broker.wait()
