"""One optimizer over both halves of a cut model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from entrepot.arguments import checked_several
from entrepot.errors import ConfigurationError
from entrepot.stages.torch.stage import TorchStage


class _Steps(Protocol):
    def zero_grad(self) -> None: ...

    def step(self) -> Any: ...


class CutOptimizer:
    """``zero_grad`` and ``step`` for optimizers that are here and stages that are elsewhere.

    >>> optimizer = CutOptimizer([torch.optim.Adam(head.parameters(), 0.01), embed])

    Stages step first: where one cannot, it raises, and nothing here has changed. With several
    stages, those before it have stepped; ``restore()`` puts each back to the same step.

    :param parts: optimizers, and :class:`TorchStage` in their place.
    :raises ConfigurationError: one of them has no ``step`` and ``zero_grad``.
    """

    def __init__(self, parts: Sequence[Any]) -> None:
        several: list[_Steps] = list(checked_several("parts", parts))
        for part in several:
            if not (hasattr(part, "step") and hasattr(part, "zero_grad")):
                raise ConfigurationError(
                    f"a part is a {type(part).__name__}; give optimizers, and TorchStages"
                )
        self.stages = [part for part in several if isinstance(part, TorchStage)]
        self.optimizers = [part for part in several if not isinstance(part, TorchStage)]

    def zero_grad(self) -> None:
        """Zero all gradients; those elsewhere with the next call."""
        for part in (*self.stages, *self.optimizers):
            part.zero_grad()

    def step(self) -> None:
        """One step of each.

        :raises StageError: a stage could not, and nothing here has changed. After
            ``StageUnavailable``, ``step()`` may be called again.
        """
        for part in (*self.stages, *self.optimizers):
            part.step()
