"""Every layer of the teacher's is learned, one after another, and put together.

python -m examples.distill_layerwise.student
"""

from __future__ import annotations

import argparse

import torch
from torch import nn

from entrepot.training import SoftDataLoader
from examples.distill_layer.model import MODEL, ROWS, Block, Texts, contract_of, shape_of, taught
from examples.distill_layer.student import HEADS, train

BATCHES = 8
"""Batches of text on which student and teacher are compared."""


def agreement(students: list[Block]) -> float:
    """Of how many bytes the small transformer foresees the same with the students in it."""
    teacher, student = taught().model.eval(), taught().model.eval()
    student.register_module("layers", nn.ModuleList(students))
    same: list[torch.Tensor] = []
    with torch.no_grad():
        for _, batch in zip(range(BATCHES), Texts(), strict=False):
            same.append(teacher(**batch).argmax(-1) == student(**batch).argmax(-1))
    return float(torch.stack(same).float().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frontend", default="tcp://127.0.0.1:5555", help="the broker's")
    parser.add_argument("--steps", type=int, default=200, help="for each layer")
    given = parser.parse_args()
    torch.manual_seed(0)
    width, depth = shape_of()
    students = [Block(width, HEADS) for _ in range(depth)]
    loader = SoftDataLoader(
        given.frontend,
        contract_of(width),
        "layer_0",
        batch_size=ROWS,
        length=given.steps * ROWS,
    )
    with loader:
        for layer, student in enumerate(students):
            loader.set_model(f"layer_{layer}")
            for step, error, idle in train(student, loader):
                if step == given.steps:
                    print(f"layer_{layer}  error {error:.4f}  of doing nothing {idle:.4f}")
    if not MODEL:
        print(f"student and teacher foresee the same byte in {agreement(students):.0%} of places")


if __name__ == "__main__":
    main()
