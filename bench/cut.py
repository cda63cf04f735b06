"""What it costs that a stage of a model is in another process.

    python bench/cut.py                # half a minute
    python bench/cut.py --quick        # seconds

A step is a forward and a backward through a stage that computes little, with an activation of 1 MiB
each way: four of them. It is timed with the stage elsewhere, and with the same module here, in
turn; the overhead is the difference. The broker, the stage and this are three processes, one
thread each for torch. On a busy machine the processor time says more.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

if __package__ in (None, ""):  # run as a file
    sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

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


def steps(figures: Figures, quick: bool) -> None:
    """Steps by both mediums and in one process, in turn."""
    torch.set_num_threads(1)
    rounds, count = (3, 20) if quick else (7, 100)
    x = torch.randn(ROWS, WIDTH, requires_grad=True)
    gradient = torch.randn(ROWS, WIDTH)
    local, _ = build({})
    with (
        Host("torch._dynamo", "bench.cut_stage") as host,
        host.start("bench.cut_stage") as broker,
        host.start("bench.cut_stage") as far,
    ):
        frontend, backend = broker.ask("broker")
        far.ask("stage", backend=backend)
        with (
            Client(frontend, ShmMedium.create(SLOT_NBYTES, SLOTS)) as by_shm,
            Client(frontend, TCPMedium.create(SLOT_NBYTES, SLOTS)) as by_tcp,
        ):
            shm = TorchStage(by_shm, "scale", run="shm")
            tcp = TorchStage(by_tcp, "scale", run="tcp")
            stages: list[torch.nn.Module] = [shm, tcp, local]
            for _ in range(10):
                for stage in stages:
                    _step(stage, x, gradient)
            pids = (os.getpid(), broker.pid, far.pid)
            for _ in range(rounds):
                times: list[list[float]] = [[], [], []]
                spent = []
                for stage, taken in zip(stages, times, strict=True):
                    before = sum(map(cpu_s, pids))
                    for _ in range(count):
                        taken.append(_timed(lambda stage=stage: _step(stage, x, gradient)))  # type: ignore[misc]
                    spent.append(1000 * (sum(map(cpu_s, pids)) - before) / count)
                optimizer = [_timed(shm.step) for _ in range(count)]
                by_each = [statistics.median(taken) for taken in times]
                figures.add(
                    step_overhead_ms_shm=by_each[0] - by_each[2],
                    step_overhead_ms_tcp=by_each[1] - by_each[2],
                    whole_step_ms=by_each[0],
                    compute_ms=by_each[2],
                    optimizer_step_ms=statistics.median(optimizer),
                )
                figures.add(
                    step_cpu_ms_shm=spent[0], step_cpu_ms_tcp=spent[1], compute_cpu_ms=spent[2]
                )


QUESTIONS: dict[str, Question] = {"steps": steps}


if __name__ == "__main__":
    sys.exit(main(__doc__, CUT, QUESTIONS))
