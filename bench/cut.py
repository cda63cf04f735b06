"""What it costs that a stage of a model is in another process.

    python bench/cut.py                # half a minute
    python bench/cut.py --quick        # seconds

A step is a forward and a backward through a stage that computes little, with an activation of 1 MiB
each way: four of them. It is timed with the stage elsewhere, and with the same module here, in
turn; the overhead is the difference. The broker, the stage and this are three processes, one
thread each for torch. On a busy machine the processor time says more.

What such a machine gives at best is measured in turn with it: a bare cut, ``bench/cut_bare.py``.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

if __package__ in (None, ""):  # run as a file
    sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

from bench.cut_bare import Near
from bench.cut_stage import ROWS, WIDTH, build
from bench.processes import cpu_s
from bench.report import Bar, Figures, Question, Subject, main
from entrepot.market.client import Client
from entrepot.mediums import ShmMedium, TCPMedium
from entrepot.stages import TorchStage
from tests.peer.host import Host

SLOT_NBYTES = (1 << 20) + (1 << 16)
SLOTS = 8

WHAT = {
    "step_overhead_ms_tcp": "a step through a stage elsewhere, by TCP, over the compute: ms",
    "step_overhead_ms_shm": "the same by shared memory: ms",
    "bare_overhead_ms_tcp": "a bare cut: a socket, a forwarder, and no checks: ms",
    "bare_overhead_ms_shm": "the same by shared memory: ms",
    "over_bare_tcp": "a step by TCP, over the bare cut: times",
    "over_bare_shm": "the same by shared memory: times",
    "whole_step_ms": "a step by shared memory, compute included: ms",
    "compute_ms": "the same step in one process: ms",
    "optimizer_step_ms": "the optimizer's step elsewhere: ms",
    "step_cpu_ms_tcp": "processor time of all three for a step by TCP: ms",
    "step_cpu_ms_shm": "the same by shared memory: ms",
    "compute_cpu_ms": "the same in one process: ms",
}

BARS = (
    Bar("step_overhead_ms_tcp", 4.0, at_least=False),
    Bar("step_overhead_ms_shm", 2.5, at_least=False),
)

CUT = Subject("A forward cut across processes, measured", WHAT, BARS)


def _timed(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return 1000 * (time.perf_counter() - began)


def _step(stage: torch.nn.Module, x: torch.Tensor, gradient: torch.Tensor) -> None:
    x.grad = None
    stage(x).backward(gradient)


@contextmanager
def _bare(host: Host, streamed: bool) -> Iterator[Near]:
    """A bare cut: a forwarder, a far end, and this."""
    with host.start("bench.forwarders") as forwarder, host.start("bench.cut_bare") as far:
        frontend, backend = forwarder.ask("forward", gated=True)
        with closing(Near(frontend, streamed)) as near:
            far.ask("serve", backend=backend, place=near.place, streamed=streamed)
            near.meet()
            yield near


def steps(figures: Figures, quick: bool) -> None:
    """Steps by both mediums, through bare cuts and in one process, in turn."""
    torch.set_num_threads(1)
    rounds, count = (3, 20) if quick else (7, 100)
    x = torch.randn(ROWS, WIDTH, requires_grad=True)
    gradient = torch.randn(ROWS, WIDTH)
    local, _ = build({})
    with (
        Host("torch._dynamo", "bench.cut_stage", "bench.cut_bare") as host,
        host.start("bench.cut_stage") as broker,
        host.start("bench.cut_stage") as far,
        _bare(host, streamed=False) as bare_shm,
        _bare(host, streamed=True) as bare_tcp,
    ):
        frontend, backend = broker.ask("broker")
        far.ask("stage", backend=backend)
        with (
            Client(frontend, ShmMedium.create(SLOT_NBYTES, SLOTS)) as by_shm,
            Client(frontend, TCPMedium.create(SLOT_NBYTES, SLOTS)) as by_tcp,
        ):
            shm = TorchStage(by_shm, "scale", run="shm")
            tcp = TorchStage(by_tcp, "scale", run="tcp")
            ways: dict[str, Callable[[], None]] = {
                "shm": lambda: _step(shm, x, gradient),
                "bare_shm": lambda: bare_shm.step(x, gradient),
                "tcp": lambda: _step(tcp, x, gradient),
                "bare_tcp": lambda: bare_tcp.step(x, gradient),
                "local": lambda: _step(local, x, gradient),
            }
            for _ in range(10):
                for way in ways.values():
                    way()
            pids = (os.getpid(), broker.pid, far.pid)
            for _ in range(rounds):
                ms: dict[str, float] = {}
                cpu_ms: dict[str, float] = {}
                for name, way in ways.items():
                    before = sum(map(cpu_s, pids))
                    ms[name] = statistics.median(_timed(way) for _ in range(count))
                    cpu_ms[name] = 1000 * (sum(map(cpu_s, pids)) - before) / count
                over = {name: each - ms["local"] for name, each in ms.items()}
                figures.add(
                    step_overhead_ms_shm=over["shm"],
                    step_overhead_ms_tcp=over["tcp"],
                    bare_overhead_ms_shm=over["bare_shm"],
                    bare_overhead_ms_tcp=over["bare_tcp"],
                    over_bare_shm=ms["shm"] / ms["bare_shm"],
                    over_bare_tcp=ms["tcp"] / ms["bare_tcp"],
                    whole_step_ms=ms["shm"],
                    compute_ms=ms["local"],
                    optimizer_step_ms=statistics.median(_timed(shm.step) for _ in range(count)),
                )
                figures.add(
                    step_cpu_ms_shm=cpu_ms["shm"],
                    step_cpu_ms_tcp=cpu_ms["tcp"],
                    compute_cpu_ms=cpu_ms["local"],
                )


QUESTIONS: dict[str, Question] = {"steps": steps}


if __name__ == "__main__":
    sys.exit(main(__doc__, CUT, QUESTIONS))
