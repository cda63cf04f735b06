"""A broker that ends in the middle of a step knows nothing later; the step is made once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from torch import nn

from entrepot.market.broker import Broker
from entrepot.market.client import Client
from entrepot.mediums import ShmMedium, TCPMedium
from entrepot.settings import BrokerSettings
from entrepot.stages import TorchStage, TorchStageServer
from tests.peer.waiting import until
from tests.ports import Ports
from tests.unit.stages.cuts import activations, build_middle, same_weights

SWIFT = BrokerSettings(beat_s=0.1)
CONFIG = {"lr": 0.05, "seed": 3}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Gate:
    """Where a call waits, once, until it is opened."""

    def __init__(self) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()
        self.opened.set()

    def close(self) -> None:
        self.reached.clear()
        self.opened.clear()

    def pass_through(self) -> None:
        self.reached.set()
        assert self.opened.wait(60)


@pytest.mark.parametrize("medium", ["shm", "tcp"])
def test_a_broker_that_restarts_in_the_middle_of_each_call(medium: str) -> None:
    gate, calls = Gate(), []

    class Gated(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

        def forward(self, x: torch.Tensor) -> Any:
            calls.append("forward")
            gate.pass_through()
            made: torch.Tensor = self.module(x)
            made.register_hook(self.hook)  # type: ignore[no-untyped-call]
            return made

        def hook(self, gradient: torch.Tensor) -> None:
            calls.append("backward")
            gate.pass_through()

    class GatedOptimizer(torch.optim.AdamW):
        def step(self, closure: Any = None) -> Any:
            calls.append("step")
            gate.pass_through()
            return super().step(closure)

    def build(config: dict[str, Any]) -> Any:
        module = Gated(build_middle(config)[0])
        return module, GatedOptimizer(module.parameters(), config["lr"])

    create = ShmMedium.create if medium == "shm" else TCPMedium.create
    with ExitStack() as stack:
        ports = Ports(2)
        stack.callback(ports.close)
        ends = [f"tcp://127.0.0.1:{port}" for port in ports.numbers]
        broker = Broker(*ends, settings=SWIFT)
        broker.start()
        server = stack.enter_context(TorchStageServer(ends[1], "middle", build))
        server.start()
        server.wait_registered(30)
        client = stack.enter_context(Client(ends[0], create(1 << 16, 8), timeout_s=30))
        stage = TorchStage(client, "middle", run="r", config=CONFIG, timeout_s=60)
        found: dict[str, torch.Tensor] = {}
        (x, _), (z, _) = activations(2)
        x, z = x[:, :4], z[:, :4]

        def forward() -> None:
            found["loss"] = stage(z).square().sum()

        def backward() -> None:
            found["loss"].backward()  # type: ignore[no-untyped-call]

        stage(x).square().sum().backward()
        stage.step()
        for call in (stage.zero_grad, forward, backward, stage.step):
            if call == stage.zero_grad:
                call()
                continue
            gate.close()
            thread = threading.Thread(target=call)
            thread.start()
            assert gate.reached.wait(30)
            broker.stop()
            broker = Broker(*ends, settings=SWIFT)
            broker.start()
            until(lambda: client.stats(30)["clients"]["connected"], lambda known: known == 1)
            gate.opened.set()
            thread.join(60)
            assert not thread.is_alive()
        run = server._runs[stage._link.begin]
        whole, optimizer = build_middle(CONFIG)
        for data in (x, z):
            optimizer.zero_grad()
            whole(data).square().sum().backward()
            optimizer.step()
        assert calls == ["forward", "backward", "step"] * 2
        assert stage.steps == 2
        assert isinstance(run.module.module, nn.Module)
        assert same_weights(run.module.module, whole)
        stack.close()
        broker.stop()
