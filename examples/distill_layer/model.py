"""The model that is taught from, and the layer that learns.

A small transformer over bytes, built here, or any model of Hugging Face's by name.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from entrepot import Contract, TensorSpec
from entrepot.errors import ConfigurationError, MissingExtra

MODEL = os.environ.get("DISTILL_MODEL", "")
"""A name at Hugging Face's, or a folder; empty for the transformer that is built here."""

LENGTH = 32
"""Tokens of a sample."""

ROWS = 16
"""Samples of a batch, and so of a forward."""

TEXT = Path(__file__).parents[2] / "docs"
"""What is read to the teacher: any text does."""


class Block(nn.Module):
    """A transformer's layer, which attends to what came before."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts: torch.Tensor = self.qkv(self.norm1(x))
        q, k, v = parts.view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        more: torch.Tensor = self.down(nn.functional.gelu(self.up(self.norm2(x))))
        return x + more


class Transformer(nn.Module):
    """Bytes to what comes next. Its weights are random, and the same each time."""

    def __init__(self, layers: int = 3, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.width = width
        self.embed = nn.Embedding(256, width)
        self.place = nn.Embedding(LENGTH, width)
        self.layers = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, 256)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x: torch.Tensor = self.embed(tokens) + self.place.weight
        for layer in self.layers:
            x = layer(x)
        logits: torch.Tensor = self.head(x)
        return logits


@dataclass(frozen=True)
class Taught:
    """A model, and what the example needs to know of it.

    :ivar width: of what a layer is given, and gives.
    :ivar layers: the name of the list of its layers in ``named_modules()``.
    """

    model: nn.Module
    width: int
    layers: str

    @property
    def depth(self) -> int:
        """How many layers there are."""
        layers = self.model.get_submodule(self.layers)
        assert isinstance(layers, nn.ModuleList)
        return len(layers)


def taught(name: str = MODEL) -> Taught:
    """The model of that name."""
    if not name:
        torch.manual_seed(7)
        small = Transformer()
        return Taught(small, small.width, "layers")
    model = _transformers().AutoModel.from_pretrained(name)
    lists = {
        path: len(module)
        for path, module in model.named_modules()
        if isinstance(module, nn.ModuleList)
        and not any(part.isdigit() for part in path.split("."))  # experts within a layer
    }
    if not lists:
        raise ConfigurationError(f"{name} has no list of layers; give another model")
    return Taught(model, model.config.hidden_size, max(lists, key=lambda path: lists[path]))


def shape_of(name: str = MODEL) -> tuple[int, int]:
    """Width and number of layers, without the weights."""
    if not name:
        small = taught()
        return small.width, small.depth
    config = _transformers().AutoConfig.from_pretrained(name)
    return int(config.hidden_size), int(config.num_hidden_layers)


def contract_of(width: int) -> Contract:
    """What a product is: what a layer is given for one text, and what it makes of it."""
    return Contract([TensorSpec(name, (LENGTH, width), "float32") for name in ("x", "y")])


class Texts:
    """Batches of text from the top of all files, and from the top again.

    >>> next(iter(Texts()))["tokens"].shape
    torch.Size([16, 32])
    """

    def __init__(self, name: str = MODEL) -> None:
        self._name = name

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        text = "\n".join(file.read_text() for file in sorted(TEXT.glob("*.md")))
        argument, ids = "tokens", list(text.encode())
        if self._name:
            tokenizer = _transformers().AutoTokenizer.from_pretrained(self._name)
            argument, ids = "input_ids", tokenizer(text)["input_ids"]
        whole = len(ids) // (ROWS * LENGTH) * (ROWS * LENGTH)
        for batch in torch.tensor(ids[:whole]).view(-1, ROWS, LENGTH):
            yield {argument: batch}


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise MissingExtra(
            f"DISTILL_MODEL={MODEL or 'NAME'} needs Hugging Face's transformers, which is not "
            f"installed; pip install transformers, or leave DISTILL_MODEL out"
        ) from error
    return transformers
