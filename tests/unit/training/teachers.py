"""Teachers of a small transformer, and what they should make."""

from __future__ import annotations

from typing import Any

import torch

from entrepot.contract import Contract
from entrepot.market.supplier import Work
from entrepot.tensors import TensorSpec
from entrepot.training import Teacher
from tests.unit.capture.models import WIDTH, Transformer, made

ROWS = 4
LENGTH = 6
XY = Contract([TensorSpec(name, (LENGTH, WIDTH), "float32") for name in "xy"])
Y = Contract([TensorSpec("y", (LENGTH, WIDTH), "float32")])
NAMES = {
    r"layer_(\d+)": r"inputs[layers.\1]|outputs[layers.\1]",
    r"train/(?P<index>\d+)/(?P<layer>\w+)": r"outputs[layers.\g<layer>]",
}


def tokens(seed: int, rows: int = ROWS) -> torch.Tensor:
    return torch.randint(0, 32, (rows, LENGTH), generator=torch.Generator().manual_seed(seed))


BATCHES = [tokens(seed) for seed in range(3)]


def model() -> Transformer:
    one = made(Transformer)
    assert isinstance(one, Transformer)
    return one


def expected(layer: int, batch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What a layer is given and gives."""
    one = model()
    with torch.no_grad():
        x = one.embed(batch)
        for each in list(one.layers)[:layer]:
            x = each(x, scale=0.5)
        return x, one.layers[layer](x, scale=0.5)


def serve(teacher: Teacher, *product_ids: str) -> list[Any]:
    """What one call answers: products, decoded, and errors."""
    nbytes = teacher.contract.nbytes
    works = [Work(f"o{number}", name, nbytes) for number, name in enumerate(product_ids)]
    outs = [memoryview(bytearray(nbytes)) for _ in works]
    return [
        answer
        if isinstance(answer, Exception)
        else teacher.contract.decode(out[:answer], framework="torch")
        for answer, out in zip(teacher(works, outs), outs, strict=True)
    ]


def is_row(product: Any, layer: int, batch: torch.Tensor, row: int) -> bool:
    x, y = expected(layer, batch)
    return torch.equal(product["y"], y[row]) and (
        "x" not in product or torch.equal(product["x"], x[row])
    )


SAMPLES = tokens(9, rows=50)


def indexed(asked: list[list[int]] | None = None, **options: Any) -> Teacher:
    def load(indices: list[int]) -> torch.Tensor:
        if asked is not None:
            asked.append(indices)
        return SAMPLES[indices]

    return Teacher(model(), Y, load, names=NAMES, **options)
