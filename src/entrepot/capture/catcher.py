"""Captures what chosen modules of a model are given and give, and stops the forward after the last.

Every module has hooks from the start, which do nothing until :meth:`ModelIOCatcher.run`: hooks that
come after ``torch.compile`` are not part of what was compiled, and never fire.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from entrepot.capture.copies import mapped, tensors
from entrepot.capture.spec import check_names, parse_io_spec
from entrepot.errors import CaptureError, HookDidNotFire, ModuleDidNotRun

INPUTS = "inputs"
OUTPUTS = "outputs"


@dataclass(frozen=True, slots=True)
class Capture:
    """One tensor that was captured.

    :ivar module: the name that it was asked for by.
    :ivar side: ``inputs`` or ``outputs``.
    :ivar call: which call of the module, from 0.
    :ivar index: which tensor of that call's inputs or outputs, from 0.
    :ivar shape: of the tensor.
    :ivar dtype: of the tensor.
    """

    module: str
    side: str
    call: int
    index: int
    shape: tuple[int, ...]
    dtype: torch.dtype


class Captured(Mapping[str, dict[str, list[Any]]]):
    """What one run captured, by module: ``{"inputs": [call, ...], "outputs": [call, ...]}``.

    A call's inputs are ``{"args": (...), "kwargs": {...}}``; its output is what the module
    returned, whole. A side that was not asked for is an empty list. Each run begins anew.
    """

    def __init__(self, inputs: list[str], outputs: list[str]) -> None:
        self._asked = {INPUTS: inputs, OUTPUTS: outputs}
        self._modules: dict[str, dict[str, list[Any]]] = {}
        self.clear()

    def clear(self) -> None:
        """Let go of what was captured."""
        names = dict.fromkeys([*self._asked[INPUTS], *self._asked[OUTPUTS]])
        self._modules = {name: {INPUTS: [], OUTPUTS: []} for name in names}

    def __getitem__(self, name: str) -> dict[str, list[Any]]:
        return self._modules[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __len__(self) -> int:
        return len(self._modules)

    @property
    def manifest(self) -> list[Capture]:
        """Every tensor that was captured, by module and side in the order they were asked for."""
        return [
            Capture(name, side, call, index, tuple(tensor.shape), tensor.dtype)
            for side, names in self._asked.items()
            for name in names
            for call, value in enumerate(self._modules[name][side])
            for index, tensor in enumerate(tensors(value))
        ]


class ModelIOCatcher:
    """Captures inputs and outputs of a model's modules, by their names in ``named_modules()``.

    >>> catcher = ModelIOCatcher(model)
    >>> with catcher.for_product("outputs[layers.3]") as captured:
    ...     catcher.run(tokens)
    >>> captured["layers.3"]["outputs"][0]

    Make it before the model is compiled, and compile with ``model.compile()``, which keeps the
    model's own name for it. One capture at a time, in one thread; other threads may use the model
    meanwhile, and are not captured.

    :param model: hooks are put on all of its modules, inert until :meth:`run`.
    :param copy: whether captures are copies, on their device. Without, they are the model's own
        tensors, which its next operation in place may change.
    :param detach: whether captures are cut off from the graph; without, gradients flow through.
    """

    def __init__(self, model: nn.Module, *, copy: bool = True, detach: bool = True) -> None:
        self.model = model
        self._copy = copy
        self._detach = detach
        self._state = _State()
        self._armed: tuple[Captured, bool] | None = None
        self._hooked: dict[nn.Module, list[RemovableHandle]] = {}
        self._modules: dict[str, nn.Module] = {}
        self._look()
        # The hooks know the state and not the catcher, so that one that is dropped takes them off.
        weakref.finalize(self, _take_off, self._hooked).atexit = False

    # --- asking -------------------------------------------------------------------------

    @contextmanager
    def for_product(self, product_id: str, early_exit: bool = True) -> Iterator[Captured]:
        """Captures what the specification names, in each :meth:`run` until the ``with`` is left.

        :param product_id: see :func:`entrepot.capture.parse_io_spec`.
        :param early_exit: stop the forward at the last value that was asked for.
        :raises SpecError: it cannot be read.
        :raises UnknownModule: the model has no module of a name.
        :raises CaptureError: another capture is going on.
        """
        with self(*parse_io_spec(product_id), early_exit=early_exit) as captured:
            yield captured

    @contextmanager
    def __call__(
        self, inputs: list[str], outputs: list[str], *, early_exit: bool = False
    ) -> Iterator[Captured]:
        """As :meth:`for_product`, with the names in two lists."""
        asked = dict.fromkeys([*inputs, *outputs])
        if any(name not in self._modules for name in asked):
            self._look()  # the model may have been given modules since
        check_names(asked, self._modules)
        if self._armed is not None:
            raise CaptureError(
                "this catcher captures already; leave the other `with` first, or make a catcher "
                "for each thread"
            )
        captured = Captured(list(dict.fromkeys(inputs)), list(dict.fromkeys(outputs)))
        self._armed = (captured, early_exit)
        try:
            yield captured
        finally:
            self._armed = None

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """A forward of the model, with these arguments.

        :returns: what the model returned; None when it was stopped early.
        :raises ModuleDidNotRun: the forward ended without a module that was asked for.
        :raises HookDidNotFire: that was because the model was compiled before the catcher was made.
        :raises CaptureError: nothing was asked for, or it is called from within a run of its own.
        """
        if self._armed is None:
            raise CaptureError("nothing is asked for; call run within `with for_product(...)`")
        if self._state.run is not None:
            raise CaptureError("a run of this catcher is going on, and captures one forward")
        captured, early_exit = self._armed
        captured.clear()
        run = self._state.run = _Run(self, captured, early_exit)
        try:
            returned = self.model(*args, **kwargs)
        except _Stop as stop:
            if stop.run is not run:
                raise
            returned = None
        except BaseException:
            captured.clear()
            raise
        finally:
            self._state.run = None
        if run.missing:
            captured.clear()
            self._complain(run)
        return returned

    def close(self) -> None:
        """Take the hooks off the model; any number of times."""
        _take_off(self._hooked)
        self._modules.clear()

    # --- hooks --------------------------------------------------------------------------

    def _look(self) -> None:
        """Hooks for modules that have none yet. A tied module is known by each of its names."""
        inner = getattr(self.model, "_orig_mod", self.model)
        assert isinstance(inner, nn.Module)
        self._modules = dict(inner.named_modules(remove_duplicate=False))
        self._modules.pop("", None)
        for module in dict.fromkeys([inner, *self._modules.values()]):
            if module not in self._hooked:
                self._hooked[module] = self._hook(module)

    def _hook(self, module: nn.Module) -> list[RemovableHandle]:
        state = self._state

        # What runs while nothing is captured is these two lines and no more.
        def before(module: nn.Module, args: Any, kwargs: Any) -> None:
            run = state.run
            if run is not None:
                _entered(run, module, args, kwargs)

        def after(module: nn.Module, _: Any, returned: Any) -> None:
            run = state.run
            if run is not None:
                _left(run, module, returned)

        return [
            module.register_forward_pre_hook(before, with_kwargs=True),
            module.register_forward_hook(after),
        ]

    def keep(self, value: Any) -> Any:
        """``value`` as it is to be captured."""
        return mapped(value, self._keep_tensor) if self._copy or self._detach else value

    def _keep_tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        if self._detach:
            tensor = tensor.detach()
        return tensor.clone() if self._copy else tensor

    def _complain(self, run: _Run) -> None:
        name, side = next(iter(run.missing))
        if not run.fired or self._was_compiled(name):
            raise HookDidNotFire(name, side)
        raise ModuleDidNotRun(name, side)

    def _was_compiled(self, name: str) -> bool:
        """Whether the module, or one that it is in, was compiled on its own."""
        parts = name.split(".")
        around = [".".join(parts[:count]) for count in range(1, len(parts) + 1)]
        modules = [self.model, *(self._modules[one] for one in around if one in self._modules)]
        return any(
            hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None
            for module in modules
        )


class _State:
    """What the hooks look at: the run that captures, if there is one."""

    __slots__ = ("run",)

    def __init__(self) -> None:
        self.run: _Run | None = None


def _take_off(hooked: dict[nn.Module, list[RemovableHandle]]) -> None:
    while hooked:
        for handle in hooked.popitem()[1]:
            handle.remove()


class _Run:
    """One forward: what it has captured, and what is missing yet."""

    def __init__(self, catcher: ModelIOCatcher, captured: Captured, early_exit: bool) -> None:
        self.catcher = catcher
        self.captured = captured
        self.early_exit = early_exit
        self.thread = threading.get_ident()
        self.fired = False
        self.over = False
        self.missing = {
            (name, side): None for side, names in captured._asked.items() for name in names
        }
        modules = catcher._modules
        self.wanted: dict[tuple[nn.Module, str], list[str]] = {}
        for name, side in self.missing:
            self.wanted.setdefault((modules[name], side), []).append(name)

    def take(self, module: nn.Module, side: str, value: Any) -> None:
        """One call's inputs or output; ends the forward if it was the last that was wanted."""
        names = self.wanted.get((module, side))
        if names is None or self.over:
            return
        kept = self.catcher.keep(value)
        for name in names:
            self.captured[name][side].append(kept)
            self.missing.pop((name, side), None)
        if self.early_exit and not self.missing:
            # Once: a model that swallows even this goes on, and changes nothing any more.
            self.over = True
            raise _Stop(self)


class _Stop(BaseException):
    """Ends a forward. No Exception, lest the model take it for a fault of its own."""

    def __init__(self, run: _Run) -> None:
        super().__init__("the forward was stopped: all that was asked for is captured")
        self.run = run


# Not for the compiler: what is captured depends on names, and stopping is no part of the model.
@torch.compiler.disable  # type: ignore[untyped-decorator]
def _entered(run: _Run, module: nn.Module, args: Any, kwargs: Any) -> None:
    if run.thread == threading.get_ident():
        run.fired = True
        if (module, INPUTS) in run.wanted:
            run.take(module, INPUTS, {"args": args, "kwargs": kwargs})


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _left(run: _Run, module: nn.Module, returned: Any) -> None:
    if run.thread == threading.get_ident():
        run.take(module, OUTPUTS, returned)
