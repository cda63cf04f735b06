"""Teachers: what a product has in it, and how many forwards that takes."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import nn

from entrepot.contract import Contract
from entrepot.errors import ContractError
from entrepot.tensors import TensorSpec
from entrepot.training import Teacher
from tests.unit.capture.models import WIDTH, Recurrent, made
from tests.unit.training.teachers import (
    BATCHES,
    LENGTH,
    NAMES,
    ROWS,
    XY,
    Y,
    expected,
    is_row,
    model,
    serve,
)

# --- what a product is ------------------------------------------------------------------


def test_a_product_is_a_row_of_what_was_captured() -> None:
    teacher = Teacher(model(), XY, BATCHES)
    decoded = XY.decode(teacher.product("inputs[layers.1]|outputs[layers.1]"), framework="torch")
    assert is_row(decoded, 1, BATCHES[0], 0)


def test_rows_come_one_after_another_and_batches_begin_again() -> None:
    teacher = Teacher(model(), Y, BATCHES)
    name = "outputs[layers.0]"
    for number in range(2 * len(BATCHES) * ROWS):
        (product,) = serve(teacher, name)
        batch = BATCHES[number // ROWS % len(BATCHES)]
        assert is_row(product, 0, batch, number % ROWS)
    assert teacher.forwards == 2 * len(BATCHES)


def test_one_forward_serves_a_call() -> None:
    whole = model()
    teacher = Teacher(whole, Y, BATCHES)
    products = serve(teacher, *["outputs[layers.1]"] * ROWS)
    assert all(is_row(product, 1, BATCHES[0], row) for row, product in enumerate(products))
    assert (teacher.forwards, whole.ran) == (1, 1)  # the second layer is stopped at its end


def test_one_forward_serves_other_layers_of_the_call() -> None:
    teacher = Teacher(model(), Y, BATCHES)
    products = serve(teacher, *[f"outputs[layers.{layer}]" for layer in (2, 0, 1, 0)])
    for product, layer, row in zip(products, (2, 0, 1, 0), (0, 0, 0, 1), strict=True):
        assert is_row(product, layer, BATCHES[0], row)
    assert teacher.forwards == 1


def test_a_call_may_take_more_than_a_batch() -> None:
    teacher = Teacher(model(), Y, BATCHES, keep=0)
    products = serve(teacher, *["outputs[layers.0]"] * (ROWS + 2))
    assert is_row(products[-1], 0, BATCHES[1], 1)
    assert teacher.forwards == 2
    (product,) = serve(teacher, "outputs[layers.0]")
    assert is_row(product, 0, BATCHES[2], 0)  # with keep=0 the rest is gone


def test_forwards_run_to_their_end_without_early_exit() -> None:
    whole = model()
    Teacher(whole, Y, BATCHES, early_exit=False).product("outputs[layers.0]")
    assert whole.ran == 3


def test_names_stand_for_specifications() -> None:
    teacher = Teacher(model(), XY, BATCHES, names=NAMES)
    by_name, by_spec = serve(teacher, "layer_2", "inputs[layers.2]|outputs[layers.2]")
    assert is_row(by_name, 2, BATCHES[0], 0)
    assert is_row(by_spec, 2, BATCHES[0], 1)  # the same product by another name


def test_whole_batches() -> None:
    contract = Contract([TensorSpec("y", (ROWS, LENGTH, WIDTH), "float32")])
    teacher = Teacher(model(), contract, BATCHES, by_row=False)
    for batch in BATCHES:
        product = contract.decode(teacher.product("outputs[layers.1]"), framework="torch")
        assert torch.equal(product["y"], expected(1, batch)[1])


def test_floats_are_converted_to_the_contracts() -> None:
    contract = Contract([TensorSpec("y", (LENGTH, WIDTH), "bfloat16")])
    (product,) = serve(Teacher(model(), contract, BATCHES), "outputs[layers.1]")
    assert torch.equal(product["y"], expected(1, BATCHES[0])[1][0].bfloat16())


@pytest.mark.parametrize(
    ("dtype", "fits", "lost"),
    [("float8_e4m3fn", 448.0, 1e3), ("float8_e5m2", 57_344.0, 1e5), ("float16", 65_504.0, 1e6)],
)
def test_what_the_contracts_floats_cannot_hold_is_said(
    dtype: str, fits: float, lost: float
) -> None:
    contract = Contract([TensorSpec("y", (2,), dtype)])

    def of(*values: float) -> Teacher:
        there = torch.tensor([values])
        return Teacher(nn.Sequential(nn.Identity()), contract, [there])

    (product,) = serve(of(fits, float("nan")), "outputs[0]")
    assert float(product["y"][0].float()) == fits
    for large in (lost, -lost):
        (answer,) = serve(of(0.5, large), "outputs[0]")
        assert isinstance(answer, ContractError)
        assert f"'y' has a value of {lost:.3g}, and the contract's {dtype} ends at" in str(answer)
    (answer,) = serve(of(0.5, float("inf")), "outputs[0]")
    assert isinstance(answer, ContractError) == (dtype == "float8_e4m3fn")  # which has no infinity


def test_take_makes_what_the_contract_wants() -> None:
    contract = Contract([TensorSpec("mean", (WIDTH,), "float32"), TensorSpec("n", (), "int64")])

    def take(captured: Any, inputs: Any, outputs: Any) -> dict[str, torch.Tensor]:
        assert (list(inputs), list(outputs)) == ([], ["layers.0"])
        y = captured["layers.0"]["outputs"][0]
        return {"mean": y.mean(1), "n": torch.arange(len(y))}

    products = serve(Teacher(model(), contract, BATCHES, take=take), *["outputs[layers.0]"] * 2)
    assert torch.equal(products[1]["mean"], expected(0, BATCHES[0])[1].mean(1)[1])
    assert products[1]["n"] == 1


def test_the_first_tensor_of_a_tuple_is_taken() -> None:
    contract = Contract([TensorSpec("y", (5, WIDTH), "float32")])
    batch = torch.randn(2, 5, 8)
    whole = made(Recurrent)
    (product,) = serve(Teacher(whole, contract, [batch]), "outputs[lstm]")
    with torch.no_grad():
        assert torch.equal(product["y"], whole.get_submodule("lstm")(batch)[0][0])


@pytest.mark.parametrize(
    "batch", [(BATCHES[0],), [BATCHES[0]], {"tokens": BATCHES[0]}], ids=["tuple", "list", "mapping"]
)
def test_a_batch_is_what_the_model_is_called_with(batch: Any) -> None:
    (product,) = serve(Teacher(model(), Y, [batch]), "outputs[layers.0]")
    assert is_row(product, 0, BATCHES[0], 0)


def test_the_model_is_evaluated_without_gradients_and_may_be_cast() -> None:
    seen: list[tuple[bool, bool, bool]] = []

    class Watched(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append((self.training, torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")))
            out = self.inner(x)
            assert isinstance(out, torch.Tensor)
            return out

    contract = Contract([TensorSpec("y", (WIDTH,), "bfloat16")])
    batches = [torch.randn(2, WIDTH)]
    for autocast in (None, torch.bfloat16):
        Teacher(Watched().train(), contract, batches, autocast=autocast).product("outputs[inner]")
    assert seen == [(False, False, False), (False, False, True)]


# --- captures that are kept -------------------------------------------------------------


def test_together_captures_other_layers_of_the_same_batch() -> None:
    teacher = Teacher(model(), Y, BATCHES, together=[f"outputs[layers.{n}]" for n in range(3)])
    for batch in BATCHES[:2]:
        for layer in (0, 2, 1):
            for row, product in enumerate(serve(teacher, *[f"outputs[layers.{layer}]"] * ROWS)):
                assert is_row(product, layer, batch, row)
    assert teacher.forwards == 2


def test_a_layer_that_was_not_foreseen_is_captured_of_the_same_batch() -> None:
    teacher = Teacher(model(), Y, BATCHES)
    serve(teacher, *["outputs[layers.0]"] * ROWS)
    (product,) = serve(teacher, "outputs[layers.2]")
    assert is_row(product, 2, BATCHES[0], 0)
    assert teacher.forwards == 2


def test_who_comes_late_goes_on_with_what_is_kept() -> None:
    teacher = Teacher(model(), Y, BATCHES, keep=2)
    serve(teacher, "outputs[layers.1]")
    serve(teacher, *["outputs[layers.0]"] * (3 * ROWS))
    (product,) = serve(teacher, "outputs[layers.1]")
    assert is_row(product, 1, BATCHES[1], 0)


def test_a_thousand_products_leave_memory_flat() -> None:
    teacher = Teacher(model(), Y, BATCHES, together=["outputs[layers.2]"], keep=2)

    def alive() -> int:
        """Bytes of captures; other tests may have left tensors of other shapes to the collector."""
        return sum(
            one.untyped_storage().nbytes()
            for one in gc.get_objects()
            if type(one) is torch.Tensor and one.shape[-2:] == (LENGTH, WIDTH)
        )

    def pull(count: int) -> None:
        for number in range(count):
            serve(teacher, f"outputs[layers.{number % 3}]", "outputs[layers.9]")

    pull(50)
    gc.collect()
    before = alive()
    gc.disable()  # what is flat must not need the collector
    try:
        pull(1_000)
        after = alive()
    finally:
        gc.enable()
    assert after <= before + 8 * ROWS * LENGTH * WIDTH * 4


def test_a_teacher_that_is_dropped_leaves_its_model_as_it_was() -> None:
    whole = model()
    teacher = Teacher(whole, Y, BATCHES)
    serve(teacher, "outputs[layers.0]", "outputs[nothing]")
    gone = weakref.ref(teacher)
    gc.disable()
    try:
        del teacher
        assert gone() is None
    finally:
        gc.enable()
    assert not any(one._forward_hooks or one._forward_pre_hooks for one in whole.modules())
