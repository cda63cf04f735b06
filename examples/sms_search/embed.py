"""Serves the stage whose weights are trained far from the head: an embedding, averaged.

python -m examples.sms_search.embed
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from entrepot.cli import told
from entrepot.logs import setup
from entrepot.settings import read_settings
from entrepot.stages import TorchStageServer
from examples.sms_search.words import VOCABULARY

OPTIMIZERS: dict[str, Any] = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}


class Average(nn.Module):
    """The mean of the embeddings of a message's words."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, dim, padding_idx=0)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """``(batch, width)`` numbers of words; ``(batch, dim)``."""
        counts = (tokens > 0).sum(1, keepdim=True).clamp(min=1)
        summed: torch.Tensor = self.embedding(tokens).sum(1)
        return summed / counts


def build(config: Mapping[str, Any]) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The stage of one trial, from its hyper-parameters."""
    torch.manual_seed(config["seed"])
    module = Average(config["dim"])
    return module, OPTIMIZERS[config["opt"]](module.parameters(), lr=config["lr"])


def main() -> None:
    with told(as_json=False):
        parser = argparse.ArgumentParser(description=__doc__)
        parser.add_argument(
            "--backend", default=read_settings().supplier.endpoint, help="the broker's"
        )
        parser.add_argument("--stage", default="embed", help="its name; one serves it at a time")
        parser.add_argument(
            "--store", help="where checkpoints are kept: a folder, or a bucket's URL"
        )
        parser.add_argument("--device", help="where the weights live, such as cuda")
        given = parser.parse_args()
        setup("info")
        torch.set_num_threads(1)  # several processes on one machine would be in each other's way
        TorchStageServer(
            given.backend, given.stage, build, store=given.store, device=given.device
        ).run()


if __name__ == "__main__":
    main()
