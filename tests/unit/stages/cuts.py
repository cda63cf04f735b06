"""A small model, whole and cut, and what trains either."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from entrepot.market.client import Client
from entrepot.stages import TorchStage
from entrepot.stages.forms import digest_of
from entrepot.stages.torch.tensors import values_of
from tests.peer.waiting import LIMIT_S

CONFIG: dict[str, Any] = {"dim": 8, "lr": 0.05, "seed": 3}
WORDS = 50


def build(config: dict[str, Any]) -> tuple[nn.Module, torch.optim.Optimizer]:
    """An embedding of words, averaged."""
    torch.manual_seed(config["seed"])
    module = nn.Sequential(nn.Embedding(WORDS, config["dim"]), nn.Linear(config["dim"], 4), Mean())
    return module, torch.optim.Adam(module.parameters(), config["lr"])


def build_middle(config: dict[str, Any]) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A stage that takes activations and gives activations."""
    torch.manual_seed(config["seed"])
    module = nn.Sequential(nn.Linear(4, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))
    return module, torch.optim.AdamW(module.parameters(), config["lr"])


def build_front() -> nn.Module:
    torch.manual_seed(11)
    return nn.Sequential(nn.Linear(6, 4), nn.Tanh())


def build_head() -> nn.Module:
    torch.manual_seed(7)
    return nn.Linear(4, 2)


class Mean(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean(dim=1)


class Double(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


def stage_of(client: Client, stage: str = "embed", run: str = "r", **changed: Any) -> TorchStage:
    """A run of that stage, of the configuration but for what is changed."""
    return TorchStage(client, stage, run=run, config={**CONFIG, **changed}, timeout_s=LIMIT_S)


def far(server: Any, stage: TorchStage) -> nn.Module:
    """The module of a run, at its server, which is in this process."""
    module: nn.Module = server._runs[stage._link.begin].module
    return module


def batches(steps: int, seed: int = 0) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Words, and a label that depends on them."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        words = torch.randint(0, WORDS, (12, 5), generator=generator)
        yield words, (words.sum(dim=1) % 2)


def activations(steps: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        x = torch.randn(12, 6, generator=generator)
        yield x, (x.sum(dim=1) > 0).long()


def train(
    model: nn.Module, optimizer: Any, data: Iterator[tuple[torch.Tensor, torch.Tensor]]
) -> list[float]:
    """The losses."""
    losses = []
    for x, y in data:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    return losses


def same_weights(one: nn.Module, other: nn.Module) -> bool:
    """Bit by bit."""
    mine, theirs = one.state_dict(), other.state_dict()
    return mine.keys() == theirs.keys() and all(
        torch.equal(mine[name], theirs[name]) for name in mine
    )


def steps(stage: TorchStage, count: int, seed: int = 0) -> None:
    for x, _ in batches(count, seed):
        stage.zero_grad()
        stage(x).square().sum().backward()
        stage.step()


def weights(stage: TorchStage) -> str:
    return stage.describe().parameters


def expected(count: int, data: int = 0, **changed: Any) -> str:
    """The weights of a run that nothing has happened to."""
    module, optimizer = build({**CONFIG, **changed})
    for x, _ in batches(count, data):
        optimizer.zero_grad()
        module(x).square().sum().backward()
        optimizer.step()
    return digest_of(values_of(module.state_dict()))
