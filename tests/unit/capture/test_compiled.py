"""Compiled models: hooks that were there before stay, and ones that came too late are told of."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from entrepot.capture import ModelIOCatcher, io_spec
from entrepot.errors import HookDidNotFire, ModuleDidNotRun
from tests.unit.capture.models import Recurrent, Residual, Transformer, as_tensor, inputs_of, made

pytestmark = pytest.mark.filterwarnings("ignore")  # the compiler's own


@pytest.fixture(autouse=True)
def _no_leftovers() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def captured_by(catcher: ModelIOCatcher, name: str, x: torch.Tensor) -> list[torch.Tensor]:
    with torch.no_grad(), catcher.for_product(io_spec(outputs=[name])) as captured:
        catcher.run(x)
    out = captured[name]["outputs"][0]
    return list(out[:1]) if isinstance(out, tuple) else [out]


@pytest.mark.parametrize("kind", [Transformer, Residual, Recurrent])
def test_captures_of_a_compiled_model_equal_an_eager_forward_bitwise(kind: type[nn.Module]) -> None:
    plain, model = made(kind), made(kind)
    x = inputs_of(model)
    reference = ModelIOCatcher(plain)
    catcher = ModelIOCatcher(model)
    model.compile(backend="eager")
    with torch.no_grad():
        assert torch.equal(model(x), plain(x))
    for name, _ in plain.named_children():
        if name == "layers":
            name = "layers.1"
        got = captured_by(catcher, name, x)
        want = captured_by(reference, name, x)
        assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True)), name


def test_early_exit_stops_a_compiled_model() -> None:
    model = made(Transformer)
    assert isinstance(model, Transformer)
    catcher = ModelIOCatcher(model)
    model.compile(backend="eager")
    x = inputs_of(model)
    model(x)
    with catcher.for_product("outputs[layers.0]"):
        assert catcher.run(x) is None
    model.ran = 0
    with catcher.for_product("outputs[layers.0]"):
        assert catcher.run(x) is None
    assert model.ran == 0
    with torch.no_grad():
        model(x)
    assert model.ran == 3


def _difference(answers: Any) -> None:
    plain, model = made(Transformer), made(Transformer)
    x = inputs_of(model)
    catcher = ModelIOCatcher(model)
    model.compile()
    want = captured_by(ModelIOCatcher(plain), "layers.1", x)[0]
    got = captured_by(catcher, "layers.1", x)[0]
    answers.put(float((want - got).abs().max()))


@pytest.mark.timeout(600)  # a compiler of C++ is at work
def test_inductor_agrees_within_a_hundred_thousandth() -> None:
    # In a process of its own: the compiler keeps threads.
    context = multiprocessing.get_context("spawn")
    answers = context.SimpleQueue()
    child = context.Process(target=_difference, args=(answers,))
    child.start()
    child.join()
    assert child.exitcode == 0
    child.close()
    assert answers.get() <= 1e-5
    answers.close()


def test_a_catcher_made_after_the_compiled_model_ran_says_what_to_do() -> None:
    model = made(Residual)
    compiled = torch.compile(model, backend="eager")
    assert isinstance(compiled, nn.Module)
    x = inputs_of(model)
    compiled(x)
    catcher = ModelIOCatcher(compiled)
    with (
        catcher.for_product("outputs[conv]") as captured,
        pytest.raises(HookDidNotFire, match="make the ModelIOCatcher first"),
    ):
        catcher.run(x)
    assert captured["conv"]["outputs"] == []


def test_of_a_model_with_a_compiled_part_the_rest_is_told_apart() -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = torch.compile(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), backend="eager")
            self.idle = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return as_tensor(self.part(x))

    model = Outer()
    x = torch.randn(2, 4)
    model(x)
    catcher = ModelIOCatcher(model)
    name = next(n for n, m in model.named_modules() if isinstance(m, nn.Linear) and "part" in n)
    with catcher.for_product(f"outputs[{name}]"), pytest.raises(HookDidNotFire):
        catcher.run(x)
    with catcher.for_product("outputs[idle]"), pytest.raises(ModuleDidNotRun):
        catcher.run(x)
