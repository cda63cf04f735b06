"""The differentiable side of a cut: weights live and are trained where the stage is served."""

from __future__ import annotations

from entrepot.errors import MissingExtra

try:
    import torch  # noqa: F401  said in words where it is missing
except ImportError as error:
    raise MissingExtra(
        "stages of torch need torch, which is not installed; pip install 'entrepot[torch]'"
    ) from error

from entrepot.stages.torch.optimizer import CutOptimizer
from entrepot.stages.torch.server import TorchStageServer
from entrepot.stages.torch.stage import TorchStage

__all__ = ["CutOptimizer", "TorchStage", "TorchStageServer"]
