"""Under DistributedDataParallel every rank stops at the same module, and training goes on."""

from __future__ import annotations

import gc
import multiprocessing
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from entrepot.capture import ModelIOCatcher
from tests.unit.capture.models import Transformer, made


def _rank(rank: int, meeting: str, answers: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    try:
        answer = _trained(rank)
        # A model that is the last to have the group takes it down with the interpreter's lock held,
        # for which a thread of the group may wait: neither would end.
        gc.collect()
    finally:
        dist.destroy_process_group()
    answers.put((rank, *answer))


def _trained(rank: int) -> tuple[int, int, float]:
    """In how many steps the product was right, in how many the model stopped early; and the sum of
    the weights."""
    inner = made(Transformer)
    assert isinstance(inner, Transformer)
    model = DistributedDataParallel(inner)
    catcher = ModelIOCatcher(model)
    tokens = torch.full((2, 6), 3 + rank)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    same = stopped = 0
    for step in range(3):
        name = f"module.layers.{step}"
        inner.ran = 0
        with catcher.for_product(f"outputs[{name}]") as captured:
            assert catcher.run(tokens) is None
        stopped += inner.ran == step
        x: torch.Tensor = inner.embed(tokens)
        for layer in list(inner.layers)[: step + 1]:
            x = layer(x, scale=0.5)
        same += torch.equal(captured[name]["outputs"][0], x.detach())
        # A stop must not leave the gradients' exchange waiting.
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        torch.autograd.backward(loss)
        optimizer.step()
    weights = torch.cat([p.detach().flatten() for p in inner.parameters()])
    return same, stopped, float(weights.double().sum())


def test_every_rank_stops_at_the_same_module(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    ranks = [
        context.Process(target=_rank, args=(rank, str(tmp_path / "meeting"), answers))
        for rank in range(2)
    ]
    for process in ranks:
        process.start()
    got = sorted(answers.get(timeout=100) for _ in ranks)
    for process in ranks:
        process.join()
        assert process.exitcode == 0
        process.close()
    answers.close()
    answers.join_thread()
    assert [(same, stopped) for _, same, stopped, _ in got] == [(3, 3), (3, 3)]
    assert got[0][3] == got[1][3]
