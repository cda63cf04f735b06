"""A forward cut across hosts: the stages of a model run where they are served.

``RemoteStage`` and ``StageServer`` need numpy alone; ``TorchStage``, ``TorchStageServer`` and
``CutOptimizer``, through which gradients flow, need torch. Each is loaded when it is first asked
for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from entrepot.stages.client import RemoteStage
    from entrepot.stages.server import StageServer
    from entrepot.stages.torch import CutOptimizer, TorchStage, TorchStageServer
    from entrepot.stages.values import Bits

_HOMES = {
    "Bits": "entrepot.stages.values",
    "CutOptimizer": "entrepot.stages.torch",
    "RemoteStage": "entrepot.stages.client",
    "StageServer": "entrepot.stages.server",
    "TorchStage": "entrepot.stages.torch",
    "TorchStageServer": "entrepot.stages.torch",
}

__all__ = [
    "Bits",
    "CutOptimizer",
    "RemoteStage",
    "StageServer",
    "TorchStage",
    "TorchStageServer",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'entrepot.stages' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
