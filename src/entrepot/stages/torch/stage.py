"""A stage that learns elsewhere, as a module here: its forward and its gradient are calls."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from entrepot.arguments import checked_text, shown
from entrepot.errors import ConfigurationError
from entrepot.market.client import Client
from entrepot.stages.calling import ATTEMPTS, TIMEOUT_S, Caller, Description
from entrepot.stages.forms import named_values
from entrepot.stages.link import Link, Reading
from entrepot.stages.protocol import BACKWARD, FORWARD
from entrepot.stages.torch.function import Far, Forward, Nothing


class TorchStage(nn.Module):
    """A stage of a model, which a :class:`TorchStageServer` serves. Its weights are there.

    >>> embed = TorchStage(client, "embed", run="spam/7/0", config={"dim": 32, "lr": 0.01})
    >>> model = torch.nn.Sequential(embed, head)
    >>> optimizer = CutOptimizer([torch.optim.Adam(head.parameters(), 0.01), embed])

    Each object is a run of its own, from step 0, with the first call. It takes tensors, arrays and
    text, and gives what the module there gives. In training, gradients flow to its inputs and to
    the weights there; in ``eval()`` or under ``no_grad`` nothing is kept there.

    It has no parameters: give it to :class:`CutOptimizer`, or call :meth:`zero_grad` and
    :meth:`step`. One thread at a time.

    :param client: of a medium whose slots are large enough for activations and gradients.
    :param stage: its name.
    :param run: the run's name; together with the configuration it is the server's run.
    :param config: what the stage is built from; JSON.
    :param timeout_s: seconds for a call.
    :param attempts: orders for one call, each with its part of that time.
    :param version: the stage's, if it has to be that one.
    :raises ConfigurationError: an argument cannot be one.
    """

    def __init__(
        self,
        client: Client,
        stage: str,
        *,
        run: str,
        config: Mapping[str, Any] | None = None,
        timeout_s: float = TIMEOUT_S,
        attempts: int = ATTEMPTS,
        version: str = "",
    ) -> None:
        super().__init__()
        if not checked_text("run", run, 512):
            raise ConfigurationError("a run needs a name; another trial is another run")
        caller = Caller(client, stage, timeout_s=timeout_s, attempts=attempts, version=version)
        self._link = Link(caller, run, _as_json({} if config is None else config))
        self._anchor = torch.zeros(0, requires_grad=True)

    @property
    def stage(self) -> str:
        """The stage's name."""
        return self._link.caller.stage

    @property
    def run(self) -> str:
        """The run's name."""
        return self._link.run

    @property
    def steps(self) -> int:
        """Steps that were applied, as far as is known here."""
        return self._link.step

    # --- forward and backward -----------------------------------------------------------

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the stage makes of these. See :class:`TorchStage`.

        :raises StageUnavailable: nobody answered in ``timeout_s``. Whether the stage has seen the
            call is not known; ``zero_grad()`` begins the step anew.
        :raises StageLost: the server that had the weights is gone; :meth:`restore` goes on.
        :raises OutOfStep: the stage is at another step.
        :raises StageFailed: the module raised.
        """
        given = named_values(args, kwargs)
        call = Forward(
            self.stage, self._forward, self._backward, given, self._link.caller.recycling.copy
        )
        tensors = call.inputs.values()
        if torch.is_grad_enabled() and self.training:
            return call.result(Far.apply(call, self._anchor, *tensors))
        outputs = call.run(keep=False)
        if torch.is_grad_enabled() and call.names:
            outputs = Nothing.apply(self.stage, len(outputs), *outputs, *tensors)
        return call.result(outputs)

    def _forward(
        self, values: Mapping[str, object], names: list[str], keep: bool, read: Reading
    ) -> int:
        """The number of the call."""
        if self.training:
            return self._link.numbered(FORWARD, values, read, train=True, keep=keep, names=names)
        self._link.ask(FORWARD, values, read)
        return 0

    def _backward(self, of: int, values: Mapping[str, object], read: Reading) -> None:
        self._link.numbered(BACKWARD, values, read, of=of)

    # --- the optimizer there ------------------------------------------------------------

    def zero_grad(self, set_to_none: bool = True) -> None:
        """The stage's gradients are zero before the next call. Costs no call of its own.

        After a forward or a backward that was not answered, the step begins anew here.
        """
        super().zero_grad(set_to_none)
        self._link.zero_grad()

    def step(self) -> int:
        """Have the optimizer there make a step; the number of steps made so far.

        One that was not answered may be called again: it is made once.

        :raises StageUnavailable: nobody answered in ``timeout_s``; call ``step()`` again.
        :raises StageLost: the server that had the weights is gone, or its optimizer failed half
            way; :meth:`restore` goes on.
        """
        return self._link.make_step()

    # --- the run ------------------------------------------------------------------------

    def checkpoint(self) -> int:
        """Have the stage keep its weights and its optimizer's state in its store; at which step.

        :raises NoCheckpoint: it has no store.
        """
        return self._link.checkpoint()

    def restore(self, step: int | None = None) -> int:
        """Go on from the newest checkpoint, or from that of a step; at which step.

        Whoever serves the stage now has it from the store. What is here, such as the head and its
        optimizer, is to be put back to the same step by whoever has it: a stage keeps its last two
        checkpoints.

        :raises NoCheckpoint: there is none, or none of that step. The run stays as it was.
        """
        return self._link.restore(step)

    def end(self) -> None:
        """The run is over: the stage lets go of it. Its checkpoints stay.

        :raises StageUnavailable: nobody answered in ``timeout_s``.
        """
        self._link.end()

    def describe(self) -> Description:
        """Version, parameters' hash and step, as the stage says."""
        return self._link.describe()

    def extra_repr(self) -> str:
        return f"{self.stage!r}, run={self.run!r}, config={self._link.config}"


def _as_json(config: Mapping[str, Any]) -> str:
    given: object = config
    if not isinstance(given, Mapping) or not all(isinstance(key, str) for key in given):
        raise ConfigurationError(
            f"a run's configuration is a dict whose keys are str, got {shown(config)}"
        )
    try:
        said = json.dumps(dict(config), sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"a run's configuration is what JSON can say, and this is not: {error}"
        ) from None
    if len(said) > 1 << 16:
        raise ConfigurationError(f"a run's configuration has {len(said)} characters; 65536 are few")
    return said
