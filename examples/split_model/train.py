"""Trains the whole: two parts are elsewhere, and the head is here.

python -m examples.split_model.train
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

from entrepot import Client, TCPMedium
from entrepot.stages import CutOptimizer, TorchStage
from examples.split_model.model import BUILDS, CONFIG, batches, build_head

SLOT_NBYTES = 1 << 20


def cut(client: Client, run: str, config: dict[str, Any]) -> tuple[nn.Module, CutOptimizer]:
    """The model, of which two parts are elsewhere, and an optimizer of all three."""
    stages = [TorchStage(client, stage, run=run, config=config) for stage in BUILDS]
    head, optimizer = build_head(config)
    return nn.Sequential(*stages, head), CutOptimizer([*stages, optimizer])


def train(
    model: nn.Module, optimizer: Any, data: Iterable[tuple[torch.Tensor, torch.Tensor]]
) -> Iterator[float]:
    """The loss of each step, in nats a byte."""
    for text, following in data:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(text).flatten(0, 1), following.flatten())
        torch.autograd.backward(loss)
        optimizer.step()
        yield float(loss.detach())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frontend", default="tcp://127.0.0.1:5555", help="the broker's")
    parser.add_argument("--host", default="127.0.0.1", help="where the stages find this machine")
    parser.add_argument("--run", default="split")
    parser.add_argument("--steps", type=int, default=200)
    given = parser.parse_args()
    torch.set_num_threads(1)  # three processes on one machine would be in each other's way
    medium = TCPMedium.create(SLOT_NBYTES, 8, host=given.host)
    with Client(given.frontend, medium) as client:
        model, optimizer = cut(client, given.run, CONFIG)
        print(model)
        for step, loss in enumerate(train(model, optimizer, batches(given.steps)), 1):
            if step in (1, given.steps) or step % 50 == 0:
                print(f"step {step:3}  loss {loss:.4f}", flush=True)
        for stage in optimizer.stages:
            said = stage.describe()
            print(f"{said.stage:6} at {said.host}: step {said.step}, {said.parameters[:12]}")
            stage.end()


if __name__ == "__main__":
    main()
