"""Small models of the kinds that are captured."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

WIDTH = 16


def as_tensor(value: Any) -> torch.Tensor:
    """``value``, which torch's types do not know to be a tensor."""
    assert isinstance(value, torch.Tensor)
    return value


class Block(nn.Module):
    """One layer of a transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.norm2 = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).chunk(3, dim=-1)
        x = x + scale * as_tensor(self.out(nn.functional.scaled_dot_product_attention(q, k, v)))
        return x + as_tensor(self.down(torch.relu(self.up(self.norm2(x)))))


class Transformer(nn.Module):
    """Tokens to logits; ``head`` is called after all layers."""

    def __init__(self, layers: int = 3) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(layers))
        self.head = nn.Linear(WIDTH, 32)
        self.ran = 0

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, scale=0.5)
            self.ran += 1
        return as_tensor(self.head(x))


class Residual(nn.Module):
    """A small ResNet: convolutions, batch norms and activations in place."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.relu = nn.ReLU(inplace=True)
        self.conv = nn.Conv2d(8, 8, 3, padding=1)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.relu(self.norm(self.stem(x)))
        x = self.relu(x + self.conv(x))
        return as_tensor(self.head(self.pool(x).flatten(1)))


class Recurrent(nn.Module):
    """An LSTM, whose output is a tuple of a tensor and a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, WIDTH, num_layers=2, batch_first=True)
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out, _ = self.lstm(x)
        return as_tensor(self.head(out[:, -1]))


@dataclass
class Outputs(OrderedDict[str, Any]):
    """As large libraries return: a mapping that is a dataclass as well."""

    hidden: torch.Tensor | None = None
    cache: tuple[torch.Tensor, ...] | None = None

    def __post_init__(self) -> None:
        for name in ("hidden", "cache"):
            value = getattr(self, name)
            if value is not None:
                super().__setitem__(name, value)

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, value)
        object.__setattr__(self, name, value)


@dataclass(frozen=True)
class Plain:
    """A dataclass that is nothing else."""

    hidden: torch.Tensor
    note: str


def inputs_of(model: nn.Module) -> torch.Tensor:
    """A batch that the model takes."""
    generator = torch.Generator().manual_seed(5)
    if isinstance(model, Transformer):
        return torch.randint(0, 32, (2, 6), generator=generator)
    if isinstance(model, Residual):
        return torch.randn(2, 3, 6, 6, generator=generator)
    return torch.randn(2, 5, 8, generator=generator)


def made(kind: type[nn.Module]) -> nn.Module:
    """A model with weights of its own, the same each time."""
    torch.manual_seed(3)
    return kind().eval()
