"""A stage in the graph of autograd: its forward is a call, and so is its gradient."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import once_differentiable

from entrepot.errors import NoGradient
from entrepot.stages.forms import put_together
from entrepot.stages.link import Reading
from entrepot.stages.protocol import Reply
from entrepot.stages.torch.tensors import tensor_of, values_of
from entrepot.stages.values import Value, kept

Tensors = tuple[torch.Tensor, ...]


class Forward:
    """A forward under way: what it is given, and what came.

    :param forward: calls the stage with values, the names of those whose gradient is wanted, and
        whether one may come; gives the call's number.
    :param backward: calls the stage with that number and the gradients of what came.
    :param copy: copies an array that came.
    :ivar inputs: the tensors among what it is given.
    :ivar names: those of them whose gradient is wanted.
    :ivar tensors: the names of the tensors that came, and
    :ivar through: of those through which gradients flow.
    """

    def __init__(
        self,
        stage: str,
        forward: Callable[[Mapping[str, object], list[str], bool, Reading], int],
        backward: Callable[[int, Mapping[str, object], Reading], None],
        given: dict[str, Any],
        copy: Callable[[Any], Any],
    ) -> None:
        self.stage = stage
        self.inputs = {n: each for n, each in given.items() if isinstance(each, torch.Tensor)}
        self.names = [name for name, each in self.inputs.items() if each.requires_grad]
        self.through: list[str] = []
        self.tensors: list[str] = []
        self._device = next((each.device for each in self.inputs.values()), None)
        self._forward = forward
        self._backward = backward
        self._given = given
        self._copy = copy
        self._call = 0
        self._form = ""
        self._outputs: dict[str, Any] = {}

    def run(self, keep: bool) -> Tensors:
        """The tensors among what the stage gives."""
        self._call = self._forward(values_of(self._given), self.names, keep, self._read)
        self._given = {}
        return tuple(self._outputs[name] for name in self.tensors)

    def _read(self, reply: Reply, values: dict[str, Value]) -> None:
        self._form, self.through = reply.form, reply.names
        self._outputs = {
            n: tensor_of(kept(each, self._copy), self._device) for n, each in values.items()
        }
        self.tensors = [n for n, each in self._outputs.items() if isinstance(each, torch.Tensor)]

    def result(self, flat: Tensors) -> Any:
        """What came, in the form in which the stage gave it."""
        outputs = {**self._outputs, **dict(zip(self.tensors, flat, strict=True))}
        self._outputs, self.inputs = {}, dict.fromkeys(self.inputs)  # type: ignore[assignment]
        return put_together(self._form, outputs)

    def gradients(self, given: tuple[torch.Tensor | None, ...]) -> list[torch.Tensor | None]:
        """Those of the inputs, for those of what came."""
        made: dict[str, torch.Tensor] = {}

        def read(reply: Reply, values: dict[str, Value]) -> None:
            for name in reply.names:
                made[name] = tensor_of(kept(values[name], self._copy), self._device)

        pairs = zip(self.tensors, given, strict=True)
        sent = values_of({name: each for name, each in pairs if each is not None})
        self._backward(self._call, sent, read)
        return [made.get(name) for name in self.inputs]


class _Far(torch.autograd.Function):
    """The anchor, a tensor of no elements, asks for a gradient where no input does."""

    @staticmethod
    def forward(ctx: Any, call: Forward, anchor: torch.Tensor, *tensors: torch.Tensor) -> Tensors:
        del anchor, tensors
        outputs = call.run(keep=True)
        ctx.call = call
        ctx.set_materialize_grads(False)
        pairs = zip(call.tensors, outputs, strict=True)
        ctx.mark_non_differentiable(*(each for name, each in pairs if name not in call.through))
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        return (None, None, *ctx.call.gradients(gradients))


class _Nothing(torch.autograd.Function):
    """A stage that keeps nothing, in a graph that could want its gradient."""

    @staticmethod
    def forward(ctx: Any, stage: str, count: int, *tensors: torch.Tensor) -> Tensors:
        ctx.stage = stage
        outputs = tuple(each.view_as(each) for each in tensors[:count])
        ctx.mark_non_differentiable(*(each for each in outputs if not each.is_floating_point()))
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        del gradients
        raise NoGradient(
            f"stage {ctx.stage!r} was in eval() when it was called, and keeps nothing then; call "
            f"train() before the forward, or take its output without a gradient",
            ctx.stage,
        )


if TYPE_CHECKING:

    class Far:
        @staticmethod
        def apply(call: Forward, anchor: torch.Tensor, *tensors: torch.Tensor) -> Tensors: ...

    class Nothing:
        @staticmethod
        def apply(stage: str, count: int, *tensors: torch.Tensor) -> Tensors: ...
else:
    Far, Nothing = _Far, _Nothing
