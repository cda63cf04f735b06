"""What is captured is what the model computed; stopping early changes nothing else."""

from __future__ import annotations

import gc
import threading
import weakref
from collections import namedtuple
from typing import Any

import pytest
import torch
from torch import nn

from entrepot.capture import ModelIOCatcher, io_spec
from entrepot.capture.copies import tensors
from entrepot.errors import CaptureError, ModuleDidNotRun, SpecError, UnknownModule
from tests.unit.capture.models import (
    WIDTH,
    Outputs,
    Plain,
    Recurrent,
    Residual,
    Transformer,
    as_tensor,
    inputs_of,
    made,
)


def eager(model: nn.Module, x: torch.Tensor) -> dict[str, tuple[list[Any], list[Any]]]:
    """What each module is given and gives, taken by plain hooks of our own."""
    seen: dict[str, tuple[list[Any], list[Any]]] = {}
    handles = []
    for name, module in model.named_modules():
        if name:
            sides = seen[name] = ([], [])

            def before(m: nn.Module, args: Any, sides: Any = sides) -> None:
                sides[0].append([a.clone() for a in args if isinstance(a, torch.Tensor)])

            def after(m: nn.Module, args: Any, out: Any, sides: Any = sides) -> None:
                first = out[0] if isinstance(out, tuple) else out
                sides[1].append(first.clone())

            handles += [
                module.register_forward_pre_hook(before),
                module.register_forward_hook(after),
            ]
    with torch.no_grad():
        model(x)
    for handle in handles:
        handle.remove()
    return seen


@pytest.mark.parametrize("kind", [Transformer, Residual, Recurrent])
@pytest.mark.parametrize("early_exit", [True, False])
def test_every_modules_captures_equal_an_eager_forward(
    kind: type[nn.Module], early_exit: bool
) -> None:
    model = made(kind)
    x = inputs_of(model)
    want = eager(model, x)
    catcher = ModelIOCatcher(model)
    checked = 0
    for name, (inputs, outputs) in want.items():
        if not outputs:  # a list of modules, which nobody calls, or one used from within
            continue
        with torch.no_grad(), catcher.for_product(io_spec([name], [name]), early_exit) as captured:
            catcher.run(x)
        got_in, got_out = captured[name]["inputs"], captured[name]["outputs"]
        if not early_exit:
            assert (len(got_in), len(got_out)) == (len(inputs), len(outputs))
        for want_in, call in zip(inputs, got_in, strict=False):
            for a, b in zip(want_in, call["args"], strict=True):
                assert torch.equal(a, b)
        for a, out in zip(outputs, got_out, strict=False):
            assert torch.equal(a, out[0] if isinstance(out, tuple) else out)
        checked += 1
    assert checked >= 2


def test_the_layout_is_calls_then_what_the_module_was_given_and_gave() -> None:
    model = made(Transformer)
    catcher = ModelIOCatcher(model)
    with catcher.for_product("inputs[layers.1]|outputs[layers.1]") as captured:
        assert catcher.run(inputs_of(model)) is None
    call = captured["layers.1"]["inputs"][0]
    assert call["args"][0][0].shape == (6, WIDTH)
    assert call["kwargs"] == {"scale": 0.5}
    assert captured["layers.1"]["outputs"][0][0].shape == (6, WIDTH)
    assert [(c.module, c.side, c.call, c.index, c.shape) for c in captured.manifest] == [
        ("layers.1", "inputs", 0, 0, (2, 6, WIDTH)),
        ("layers.1", "outputs", 0, 0, (2, 6, WIDTH)),
    ]
    assert captured.manifest[0].dtype == torch.float32


def test_early_exit_runs_nothing_after_the_last_value() -> None:
    model = made(Transformer)
    assert isinstance(model, Transformer)
    catcher = ModelIOCatcher(model)
    for spec, ran in [
        ("outputs[layers.0]", 0),
        ("inputs[layers.2]", 2),
        ("outputs[layers.2]|inputs[layers.0]", 2),
        ("outputs[embed]", 0),
        ("inputs[head]|outputs[layers.0]", 3),
    ]:
        model.ran = 0
        with catcher.for_product(spec):
            assert catcher.run(inputs_of(model)) is None
        assert model.ran == ran, spec


def test_without_early_exit_the_model_returns_what_it_does() -> None:
    model = made(Transformer)
    x = inputs_of(model)
    catcher = ModelIOCatcher(model)
    with catcher.for_product("outputs[layers.0]", early_exit=False) as captured:
        returned = catcher.run(x)
    assert torch.equal(returned, model(x))
    assert len(captured["layers.0"]["outputs"]) == 1


def test_captures_are_safe_from_operations_in_place() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True))
    x = torch.randn(8, 4)
    want = model[0](x).detach().clone()
    assert (want < 0).any()
    catcher = ModelIOCatcher(model)
    with catcher.for_product("outputs[0]", early_exit=False) as captured:
        catcher.run(x)
    assert torch.equal(captured["0"]["outputs"][0], want)
    raw = ModelIOCatcher(model, copy=False)
    with raw.for_product("outputs[0]", early_exit=False) as captured:
        raw.run(x)
    assert torch.equal(captured["0"]["outputs"][0], want.relu())


def test_gradients_flow_through_captures_only_when_asked() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    x = torch.randn(2, 4)
    catcher = ModelIOCatcher(model)
    with catcher.for_product("outputs[0]") as captured:
        catcher.run(x)
    assert not captured["0"]["outputs"][0].requires_grad
    attached = ModelIOCatcher(model, detach=False)
    with attached.for_product("outputs[0]") as captured:
        attached.run(x)
    captured["0"]["outputs"][0].sum().backward()
    assert model[0].weight.grad is not None


Pair = namedtuple("Pair", ["left", "right"])


@pytest.mark.parametrize(
    "wrap",
    [
        lambda t: (t, None, "text"),
        lambda t: [t, {"deep": (t, 3)}],
        lambda t: {"a": t, "b": [t]},
        lambda t: Pair(t, t),
        lambda t: Outputs(hidden=t, cache=(t, t)),
        lambda t: Plain(t, "as it was"),
        lambda t: nn.utils.rnn.pack_sequence([t]),
    ],
    ids=["tuple", "list", "dict", "namedtuple", "mapping dataclass", "dataclass", "packed"],
)
def test_whatever_holds_the_tensors_is_captured_whole(wrap: Any) -> None:
    class Holder(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            self.inner = x * 2
            return wrap(self.inner)

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.holder = Holder()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.holder(x)
            with torch.no_grad():
                self.holder.inner.zero_()
            return x

    model = Outer()
    x = torch.ones(3, 2)
    catcher = ModelIOCatcher(model)
    with catcher.for_product("outputs[holder]", early_exit=False) as captured:
        catcher.run(x)
    got = captured["holder"]["outputs"][0]
    assert type(got) is type(wrap(x))
    assert [c.shape for c in captured.manifest]
    numbers = [t for t in tensors(got) if t.is_floating_point()]
    assert numbers
    assert all(bool((t == 2).all()) for t in numbers)
    if isinstance(got, Plain):
        assert got.note == "as it was"
    if isinstance(got, Outputs):
        assert got["hidden"] is got.hidden


class Twice(nn.Module):
    """A module that is called twice, another that is called when told, one that never is."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Linear(4, 4)
        self.sometimes = nn.Linear(4, 4)
        self.never = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, some: bool = False) -> torch.Tensor:
        x = self.shared(self.shared(x))
        return self.sometimes(x) if some else x


def test_a_module_called_twice_has_two_calls() -> None:
    model = Twice()
    x = torch.randn(2, 4)
    catcher = ModelIOCatcher(model)
    with catcher.for_product("inputs[shared]|outputs[shared]", early_exit=False) as captured:
        catcher.run(x)
    first, second = captured["shared"]["outputs"]
    assert torch.equal(captured["shared"]["inputs"][1]["args"][0], first)
    assert torch.equal(second, model.shared(first))
    assert [c.call for c in captured.manifest] == [0, 1, 0, 1]


def test_a_module_that_did_not_run_is_named() -> None:
    catcher = ModelIOCatcher(Twice())
    with catcher.for_product("outputs[never|shared]") as captured:
        with pytest.raises(ModuleDidNotRun, match="'never'"):
            catcher.run(torch.randn(2, 4))
        assert captured["shared"]["outputs"] == []
    with catcher.for_product("outputs[sometimes]") as captured:
        with pytest.raises(ModuleDidNotRun, match="'sometimes'"):
            catcher.run(torch.randn(2, 4))
        catcher.run(torch.randn(2, 4), some=True)
        assert len(captured["sometimes"]["outputs"]) == 1


def test_a_tied_module_answers_to_each_of_its_names() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    model.add_module("again", model[0])
    catcher = ModelIOCatcher(model)
    x = torch.randn(2, 4)
    with catcher.for_product("outputs[again|0]", early_exit=False) as captured:
        catcher.run(x)
    assert len(captured["again"]["outputs"]) == 2
    for a, b in zip(captured["again"]["outputs"], captured["0"]["outputs"], strict=True):
        assert torch.equal(a, b)


def test_a_module_that_came_later_is_found() -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    catcher = ModelIOCatcher(model)
    model.add_module("late", nn.Linear(4, 2))
    with catcher.for_product("outputs[late]") as captured:
        catcher.run(torch.randn(3, 4))
    assert captured["late"]["outputs"][0].shape == (3, 2)


def test_wrong_specifications_are_refused_before_anything_runs() -> None:
    model = made(Transformer)
    catcher = ModelIOCatcher(model)
    with pytest.raises(UnknownModule) as caught, catcher.for_product("outputs[layers.7]"):
        pass
    assert set(caught.value.nearest) == {"layers.0", "layers.1", "layers.2"}
    with pytest.raises(SpecError), catcher.for_product("layers.0"):
        pass
    with pytest.raises(CaptureError, match="for_product"):
        catcher.run(inputs_of(model))
    with catcher.for_product("outputs[head]"):
        with (
            pytest.raises(CaptureError, match="captures already"),
            catcher.for_product("outputs[embed]"),
        ):
            pass
        catcher.run(inputs_of(model))


class Stubborn(nn.Module):
    """Catches whatever is raised within, twice over."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, everything: bool) -> torch.Tensor:
        kind = BaseException if everything else Exception
        for module in (self.a, self.b):
            try:
                x = module(x)
            except kind:
                x = x + 1
        return x


def test_a_model_that_catches_exceptions_is_stopped_all_the_same() -> None:
    catcher = ModelIOCatcher(Stubborn())
    with catcher.for_product("outputs[a]") as captured:
        assert catcher.run(torch.randn(2, 4), everything=False) is None
    assert len(captured["a"]["outputs"]) == 1


def test_one_that_catches_everything_goes_on_and_the_capture_stands() -> None:
    model = Stubborn()
    x = torch.randn(2, 4)
    catcher = ModelIOCatcher(model)
    with catcher.for_product("outputs[a]") as captured:
        returned = catcher.run(x, everything=True)
    assert torch.equal(captured["a"]["outputs"][0], model.a(x))
    assert torch.equal(returned, model.b(x + 1))


class Raises(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.a(x)
        raise ArithmeticError("its own")


def test_a_models_own_error_passes_and_leaves_nothing_behind() -> None:
    catcher = ModelIOCatcher(Raises())
    with catcher.for_product("outputs[a|b]") as captured:
        for _ in range(2):
            with pytest.raises(ArithmeticError, match="its own"):
                catcher.run(torch.randn(2, 4))
            assert captured["a"]["outputs"] == []
    with catcher.for_product("outputs[a]"):
        assert catcher.run(torch.randn(2, 4)) is None


def test_one_catchers_stop_is_not_anothers() -> None:
    """A model that captures from another one in its own forward."""
    inner = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    inner_catcher = ModelIOCatcher(inner)

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner
            self.last = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with inner_catcher.for_product("outputs[0]") as captured:
                inner_catcher.run(x)
            return as_tensor(self.last(captured["0"]["outputs"][0]))

    outer = Outer()
    x = torch.randn(2, 4)
    catcher = ModelIOCatcher(outer)
    with catcher.for_product("inputs[last]") as captured:
        assert catcher.run(x) is None
    assert torch.equal(captured["last"]["inputs"][0]["args"][0], inner[0](x))
    with catcher.for_product("inputs[inner.0]"):  # the outer stop, inside the inner run
        assert catcher.run(x) is None
    with inner_catcher.for_product("outputs[1]"):
        assert inner_catcher.run(x) is None


def test_another_threads_forward_is_not_captured() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    catcher = ModelIOCatcher(model)
    inside, done = threading.Event(), threading.Event()

    class Waits(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if threading.current_thread() is threading.main_thread():
                inside.set()
                assert done.wait(30)
            return x

    model.insert(1, Waits())
    x, other = torch.randn(2, 4), torch.randn(2, 4)

    def beside() -> None:
        assert inside.wait(30)
        model(other)
        done.set()

    thread = threading.Thread(target=beside)
    thread.start()
    with catcher.for_product("outputs[0|2]", early_exit=False) as captured:
        catcher.run(x)
    thread.join()
    assert len(captured["0"]["outputs"]) == 1
    assert torch.equal(captured["0"]["outputs"][0], model[0](x))


def test_autocast_captures_what_the_module_really_computed() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    catcher = ModelIOCatcher(model)
    with torch.autocast("cpu", dtype=torch.bfloat16), catcher.for_product("outputs[0]") as captured:
        catcher.run(torch.randn(2, 4))
    assert captured["0"]["outputs"][0].dtype == torch.bfloat16
    # The stop leaves autocast as it found it.
    assert model(torch.randn(2, 4)).dtype == torch.float32


def test_a_dropped_catcher_takes_its_hooks_with_it() -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    for _ in range(3):
        catcher = ModelIOCatcher(model)
        gone = weakref.ref(catcher)
        assert len(model[0]._forward_hooks) == 1
        del catcher
        gc.collect()
        assert gone() is None
        assert len(model[0]._forward_hooks) == 0
    kept = ModelIOCatcher(model)
    kept.close()
    kept.close()
    assert not model[0]._forward_pre_hooks


def test_a_thousand_products_leave_nothing_behind() -> None:
    model = made(Transformer)
    names = [
        name for name, m in model.named_modules() if name.startswith("layers.") and len(name) == 8
    ]
    x = inputs_of(model)
    catcher = ModelIOCatcher(model)

    def living() -> int:
        gc.collect()
        return sum(1 for one in gc.get_objects() if issubclass(type(one), torch.Tensor))

    def serve(count: int) -> None:
        for number in range(count):
            with torch.no_grad(), catcher.for_product(f"outputs[{names[number % 3]}]") as captured:
                catcher.run(x)
            del captured

    serve(3)
    before = living()
    serve(1_000)
    assert living() <= before
