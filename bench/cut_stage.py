"""The far end of ``bench/cut.py``: a process that is a broker, or serves a stage."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import nn

from entrepot.market.broker import Broker
from entrepot.stages import TorchStageServer
from tests.peer.lines import commands, serve

ROWS, WIDTH = 256, 1024
"""An activation of 1 MiB."""


class Scale(nn.Module):
    """Little to compute, and a gradient for its weights and for its input."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x * self.weight)


def build(config: dict[str, Any]) -> tuple[nn.Module, torch.optim.Optimizer]:
    del config
    module = Scale()
    return module, torch.optim.SGD(module.parameters(), 0.01)


class Driven:
    """The commands."""

    def broker(self) -> tuple[str, str]:
        """Become a broker; where clients and where suppliers connect."""
        broker = Broker("tcp://127.0.0.1:*", "tcp://127.0.0.1:*")
        broker.start()
        return broker.frontend, broker.backend

    def stage(self, backend: str) -> None:
        """Serve the stage."""
        torch.set_num_threads(1)
        server = TorchStageServer(backend, "scale", build)
        threading.Thread(target=server.run, daemon=True).start()
        server.wait_registered(30)


if __name__ == "__main__":
    serve(commands(Driven()))
