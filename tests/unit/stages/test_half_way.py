"""Gradients and steps that fail half way: nothing torn is stepped with, or gone on from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from entrepot.errors import OutOfStep, StageFailed, StageLost
from entrepot.market.broker import Broker
from entrepot.market.client import Client
from entrepot.stages import CutOptimizer, TorchStageServer
from entrepot.store import Store
from tests.unit.stages.conftest import Serve
from tests.unit.stages.cuts import (
    build_head,
    same_weights,
    stage_of,
    train,
)

# --- what fails half way ----------------------------------------------------------------


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        if Bad.backward:
            raise ArithmeticError("no gradient today")
        return gradient


class Bad:
    backward = False
    step = False


class FailsToStep(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        if Bad.step:
            raise MemoryError("no room for moments")
        return super().step(closure)


@pytest.fixture
def _fails() -> Iterator[None]:
    Bad.backward = Bad.step = True
    yield
    Bad.backward = Bad.step = False


def build_bad(config: dict[str, Any]) -> Any:
    torch.manual_seed(0)

    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> Any:
            return self.second(Fails.apply(self.first(x)))  # type: ignore[no-untyped-call]

    module = Module()
    return module, FailsToStep(module.parameters(), 0.1)


@pytest.mark.usefixtures("_fails")
def test_a_gradient_that_fails_half_way_is_not_stepped_with(
    client: Client, broker: Broker, serve: Serve
) -> None:
    server: Any = serve(TorchStageServer(broker.backend, "bad", build_bad))
    stage = stage_of(client, stage="bad")
    with pytest.raises(StageFailed, match="ArithmeticError: no gradient today"):
        stage(torch.ones(2, 3)).sum().backward()
    with pytest.raises(OutOfStep, match=r"a backward failed half way; call zero_grad\(\) first"):
        stage.step()
    Bad.backward = Bad.step = False
    stage.zero_grad()
    stage(torch.ones(2, 3)).sum().backward()
    assert stage.step() == 1
    module, optimizer = build_bad({})
    module(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    assert same_weights(server._runs[stage._link.begin].module, module)


@pytest.mark.usefixtures("_fails")
def test_a_step_that_fails_half_way_ends_the_run(
    client: Client, broker: Broker, serve: Serve, store: Store
) -> None:
    serve(TorchStageServer(broker.backend, "bad", build_bad, store=store))
    stage, head = stage_of(client, stage="bad"), build_head()
    Bad.backward = False
    near = torch.optim.SGD(head.parameters(), 0.1)
    before = {name: each.clone() for name, each in head.state_dict().items()}
    stage.checkpoint()
    with pytest.raises(StageFailed, match="failed in the middle of step 1: MemoryError"):
        train(
            nn.Sequential(stage, nn.Linear(3, 4), head),
            CutOptimizer([near, stage]),
            iter([(torch.ones(2, 3), torch.zeros(2).long())]),
        )
    assert all(torch.equal(before[name], each) for name, each in head.state_dict().items())
    with pytest.raises(StageLost, match="failed in the middle of step 1"):
        stage.step()
    Bad.step = False
    assert stage.restore() == 0
    assert stage.step() == 1
