"""A small transformer over bytes, in three parts: two that are stages, and a head."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

CONFIG: dict[str, Any] = {"width": 64, "layers": 2, "lr": 3e-3, "seed": 0}
LENGTH = 48
ROWS = 24
BYTES = 256

TEXT = Path(__file__).parents[2] / "LICENSE"
"""What is learned: any text does, and this one does not change."""


class Embedding(nn.Module):
    """Bytes, and where they are."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.bytes = nn.Embedding(BYTES, width)
        self.places = nn.Embedding(LENGTH, width)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.bytes(text) + self.places.weight[: text.shape[1]]
        return made


class Blocks(nn.Module):
    """Layers that attend to what came before."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True
            )
            for _ in range(layers)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        for layer in self.layers:
            x = layer(x, src_mask=mask, is_causal=True)
        return x


def _trained(module: nn.Module, config: dict[str, Any]) -> tuple[nn.Module, torch.optim.Optimizer]:
    return module, torch.optim.Adam(module.parameters(), config["lr"])


def build_embed(config: dict[str, Any]) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The first part and its optimizer."""
    torch.manual_seed(config["seed"])
    return _trained(Embedding(config["width"]), config)


def build_blocks(config: dict[str, Any]) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The second."""
    torch.manual_seed(config["seed"] + 1)
    return _trained(Blocks(config["width"], config["layers"]), config)


def build_head(config: dict[str, Any]) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The third, which is where the loss is."""
    torch.manual_seed(config["seed"] + 2)
    head = nn.Sequential(nn.LayerNorm(config["width"]), nn.Linear(config["width"], BYTES))
    return _trained(head, config)


BUILDS = {"embed": build_embed, "blocks": build_blocks}
"""The stages that are served, by name."""


def batches(steps: int, seed: int = 0) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Bytes of text, and the byte that follows each."""
    data = torch.frombuffer(bytearray(TEXT.read_bytes()), dtype=torch.uint8).long()
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        places = torch.randint(0, len(data) - LENGTH - 1, (ROWS,), generator=generator)
        rows = torch.stack([data[place : place + LENGTH + 1] for place in places.tolist()])
        yield rows[:, :-1], rows[:, 1:]
