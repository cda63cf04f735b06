"""One run of a stage: a module, its optimizer, and what is kept between a forward and a step.

Each run has random numbers of its own, so that no run's dropout depends on which others there are.
Every call that leaves something behind has a number. The last one is remembered with its answer: a
call that comes again is answered, and not carried out again.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import torch
from torch import nn

from entrepot.errors import BadStageMessage, ConfigurationError, NoGradient, OutOfStep, StageFailed
from entrepot.errors.root import sentence_of
from entrepot.stages.checkpoints import Generation
from entrepot.stages.forms import arguments_of, digest_of, taken_apart
from entrepot.stages.protocol import Reply, Request
from entrepot.stages.serving import Answer
from entrepot.stages.torch.tensors import tensor_of, value_of, values_of
from entrepot.stages.values import Value

Built = tuple[nn.Module, Any]
"""A module and its optimizer, or None in place of that."""


class Torn(StageFailed):
    """The optimizer raised in the middle of a step: the run's weights are those of no step."""


@dataclass
class Held:
    """A forward whose gradient may come."""

    leaves: dict[str, torch.Tensor]
    outputs: dict[str, torch.Tensor]


class Run:
    """A run, as its server has it.

    :ivar begin: the nonce of who uses it.
    :ivar step: how many steps were applied.
    :ivar call: the number of the last call that was carried out, and
    :ivar answer: what it was answered.
    :ivar held: forwards whose gradients may come, by their call, the oldest first.
    :ivar used_at: when it was last called, on the server's clock.
    """

    def __init__(
        self,
        stage: str,
        request: Request,
        build: Callable[[dict[str, Any]], Any],
        config: dict[str, Any],
        *,
        max_forwards: int,
        device: str | None,
    ) -> None:
        self.stage = stage
        self.name = request.run
        self.config = request.config
        self.begin = request.begin
        self.step = 0
        self.call = 0
        self.answer: Answer | None = None
        self.held: OrderedDict[int, Held] = OrderedDict()
        self.generation: Generation | None = None
        self.used_at = 0.0
        self._max_forwards = max_forwards
        self._torn = ""
        self._answered = ""
        seed = hashlib.sha256(f"{self.name}\n{self.config}".encode()).digest()
        self._rng: list[torch.Tensor] = []
        with self._own_random():
            torch.manual_seed(int.from_bytes(seed[:8], "little"))
            self.module, self.optimizer = _built(build(config), stage)
        if device is not None:
            self.module.to(device)
        own = next(iter((*self.module.parameters(), *self.module.buffers())), None)
        self._device = device if own is None else own.device

    @contextmanager
    def _own_random(self) -> Iterator[None]:
        """The run's random numbers within, and the process's again after it."""
        before = _random()
        try:
            _seed(self._rng)
            yield
        finally:
            self._rng = _random()
            _seed(before)

    # --- calls that leave something behind ----------------------------------------------

    def once(self, request: Request, apply: Callable[[], Answer]) -> Answer:
        """The answer to a numbered call: of now, or of when it came first.

        :raises OutOfStep: it is not the one that comes next.
        """
        if request.call == self.call and self.answer is not None:
            if self._answered != request.verb:
                raise self._out_of_step(f"call {request.call} was {self._answered}")
            return self.answer
        if request.call <= self.call:
            raise self._out_of_step(f"call {request.call} comes after call {self.call}")
        if not request.zero:
            if request.after != self.call:
                raise self._out_of_step(
                    f"call {request.call} follows call {request.after}, and call {self.call} was "
                    f"carried out"
                )
            if self._torn:
                raise self._out_of_step(f"a {self._torn} failed half way; call zero_grad() first")
        self.check_step(request)
        if request.zero:
            self._zero()
        answer = apply()
        self.remember(request.call, request.verb, answer)
        return answer

    def remember(self, call: int, verb: str, answer: Answer) -> None:
        """This is what that call was answered."""
        self.call, self._answered, self.answer = call, verb, answer

    def check_step(self, request: Request) -> None:
        """:raises OutOfStep: who asks is at another step."""
        if request.step != self.step:
            raise self._out_of_step(f"{request.verb} is asked for at step {request.step}")

    def _out_of_step(self, why: str) -> OutOfStep:
        return OutOfStep(
            f"run {self.name!r} of stage {self.stage!r} is at step {self.step}, and {why}; "
            f"zero_grad() begins the step anew where steps agree, restore() where they do not"
        )

    def _zero(self) -> None:
        self.module.zero_grad(set_to_none=True)
        if self.optimizer is not None:
            self.optimizer.zero_grad()
        self._torn = ""

    # --- forward, backward, step --------------------------------------------------------

    def forward(self, request: Request, values: Mapping[str, Value]) -> Answer:
        """What the module makes of the values."""
        inputs = {name: tensor_of(value, self._device) for name, value in values.items()}
        leaves = {name: inputs[name] for name in request.names if name in inputs}
        if any(not isinstance(leaf, torch.Tensor) for leaf in leaves.values()):
            raise BadStageMessage("the gradient of a text is asked for")
        if self.module.training != request.train:
            self.module.train(request.train)
        if request.keep:
            for leaf in leaves.values():
                leaf.requires_grad_(True)
        positional, named = arguments_of(inputs)
        with self._own_random(), torch.set_grad_enabled(request.keep):
            made = self.module(*positional, **named)
        form, outputs = taken_apart(tuple(made) if isinstance(made, list) else made)
        through = {
            name: each
            for name, each in outputs.items()
            if isinstance(each, torch.Tensor) and each.requires_grad and request.keep
        }
        answer = (
            Reply(step=self.step, form=form, names=list(through)),
            values_of(outputs),
        )
        if through:
            self.held[request.call] = Held(leaves, through)
            while len(self.held) > self._max_forwards:
                self.held.popitem(last=False)
        return answer

    def backward(self, request: Request, values: Mapping[str, Value]) -> Answer:
        """The gradients of a forward's inputs; those of the parameters are added up here.

        :raises NoGradient: nothing is kept of that forward.
        """
        held = self.held.get(request.of or 0)
        if held is None or not values.keys() <= held.outputs.keys():
            raise NoGradient(
                f"stage {self.stage!r} keeps nothing of call {request.of} of run {self.name!r}: no "
                f"forward had that number, its gradient has come before, a step was applied since, "
                f"or {self._max_forwards} forwards came after it; run the forward again"
            )
        outputs = [held.outputs[name] for name in values]
        gradients = [
            tensor_of(value, each.device)
            for value, each in zip(values.values(), outputs, strict=True)
        ]
        self._torn = "backward"
        torch.autograd.backward(outputs, gradients)
        self._torn = ""
        del self.held[request.of or 0]
        made = {
            name: value_of(leaf.grad) for name, leaf in held.leaves.items() if leaf.grad is not None
        }
        return Reply(step=self.step, names=list(made)), made

    def apply_step(self) -> Answer:
        """One step of the optimizer. Forwards before it have no gradient any more.

        :raises Torn: the optimizer raised.
        """
        try:
            with self._own_random():
                if self.optimizer is not None:
                    self.optimizer.step()
        except Exception as error:
            raise Torn(
                f"the optimizer of run {self.name!r} of stage {self.stage!r} failed in the middle "
                f"of step {self.step + 1}: {type(error).__name__}: {sentence_of(error)}"
            ) from error
        self.step += 1
        self.held.clear()
        return Reply(step=self.step), {}

    # --- what it remembers --------------------------------------------------------------

    def parameters_digest(self) -> str:
        """SHA-256 over the parameters and buffers."""
        state = self.module.state_dict()
        tensors = {n: each for n, each in state.items() if isinstance(each, torch.Tensor)}
        return digest_of(values_of(tensors))

    def state(self, *, whole: bool) -> dict[str, Any]:
        """What :meth:`load` takes.

        :param whole: with gradients and the last answer, for one that goes on in the middle.
        """
        state: dict[str, Any] = {
            "module": dict(self.module.state_dict()),
            "optimizer": None if self.optimizer is None else self.optimizer.state_dict(),
            "random": list(self._rng),
            "training": self.module.training,
        }
        if whole:
            state["torn"] = self._torn
            state["gradients"] = {
                name: parameter.grad
                for name, parameter in self.module.named_parameters()
                if parameter.grad is not None
            }
            if self.answer is not None:
                reply, values = self.answer
                made = {name: tensor_of(value) for name, value in values.items()}
                state["answer"] = (self._answered, msgspec.msgpack.encode(reply), made)
        return state

    def load(self, state: Mapping[str, Any], step: int, call: int) -> None:
        """Go on from there."""
        self.module.load_state_dict(state["module"])
        if self.optimizer is not None:
            self.optimizer.load_state_dict(state["optimizer"])
        self.module.train(state["training"])
        self._rng = list(state["random"])
        self.step, self.call = step, call
        self._torn = state.get("torn", "")
        if "answer" in state:
            verb, reply, made = state["answer"]
            self.remember(call, verb, (_read_reply(reply), values_of(made)))
        gradients = state.get("gradients", {})
        for name, parameter in self.module.named_parameters():
            gradient = gradients.get(name)
            parameter.grad = None if gradient is None else gradient.to(parameter.device)


_read_reply = msgspec.msgpack.Decoder(Reply).decode


def _random() -> list[torch.Tensor]:
    """The state of the processor's generator, and of each GPU's once there is one."""
    there: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if there else ())]


def _seed(states: list[torch.Tensor]) -> None:
    if states:
        torch.set_rng_state(states[0])
    if len(states) > 1:
        torch.cuda.set_rng_state_all(states[1:])


def _built(made: Any, stage: str) -> Built:
    """A module, and perhaps an optimizer."""
    module, optimizer = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(module, nn.Module):
        raise ConfigurationError(
            f"the build of stage {stage!r} returned {type(made).__name__}; return a module, or "
            f"(module, optimizer)"
        )
    if optimizer is not None and not (
        hasattr(optimizer, "step") and hasattr(optimizer, "zero_grad")
    ):
        raise ConfigurationError(
            f"the build of stage {stage!r} returned a {type(optimizer).__name__} as its optimizer; "
            f"return one of torch.optim, or None"
        )
    return module, optimizer
