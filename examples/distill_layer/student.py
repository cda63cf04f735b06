"""A layer of its own learns to do what a layer of the teacher's does.

python -m examples.distill_layer.student
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import torch
from torch import nn

from entrepot.training import SoftDataLoader
from examples.distill_layer.model import ROWS, Block, contract_of, shape_of

PRODUCT = "layer_1"
HEADS = 4


def train(student: nn.Module, loader: SoftDataLoader) -> Iterator[tuple[int, float, float]]:
    """One epoch of the loader: step, the student's error, and that of a layer that does nothing."""
    optimizer = torch.optim.Adam(student.parameters(), 3e-3)
    for step, batch in enumerate(loader, 1):
        loss = nn.functional.mse_loss(student(batch["x"]), batch["y"])
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        yield step, float(loss.detach()), float((batch["x"] - batch["y"]).square().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frontend", default="tcp://127.0.0.1:5555", help="the broker's")
    parser.add_argument("--steps", type=int, default=200)
    given = parser.parse_args()
    torch.manual_seed(0)
    width, _ = shape_of()
    loader = SoftDataLoader(
        given.frontend,
        contract_of(width),
        PRODUCT,
        batch_size=ROWS,
        length=given.steps * ROWS,
    )
    with loader:
        for step, error, idle in train(Block(width, HEADS), loader):
            if step in (1, given.steps) or step % 50 == 0:
                print(f"step {step:3}  error {error:.4f}  of doing nothing {idle:.4f}", flush=True)


if __name__ == "__main__":
    main()
