"""Teachers: what fails, that it fails alone, and what is said."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from entrepot.contract import Contract
from entrepot.errors import (
    BatchesEnded,
    ConfigurationError,
    ContractError,
    EntrepotError,
    NotServed,
    SpecError,
    UnknownModule,
    WrongTake,
)
from entrepot.tensors import TensorSpec
from entrepot.training import Teacher
from tests.unit.capture.models import WIDTH, Transformer, as_tensor
from tests.unit.training.teachers import (
    BATCHES,
    LENGTH,
    NAMES,
    ROWS,
    XY,
    Y,
    is_row,
    model,
    serve,
)


class Touchy(Transformer):
    """Raises at a token, after its layers; its last layer is not always called."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in list(self.layers)[:2]:
            x = layer(x, scale=0.5)
        if bool((tokens == 31).any()):
            raise ArithmeticError("token 31 is too much")
        return as_tensor(x)


def test_an_unknown_module_fails_its_order_alone_and_says_what_there_is() -> None:
    teacher = Teacher(model(), Y, BATCHES)
    answers = serve(teacher, "outputs[layers.0]", "outputs[layer.1]", "outputs[layers.1]")
    assert is_row(answers[0], 0, BATCHES[0], 0)
    assert is_row(answers[2], 1, BATCHES[0], 0)
    assert isinstance(answers[1], UnknownModule)
    assert "'layer.1'; the nearest are 'layers.1', " in str(answers[1])
    assert len(answers[1].nearest) == 3


def test_a_name_that_is_none_fails_alone() -> None:
    teacher = Teacher(model(), XY, BATCHES, names=NAMES)
    answers = serve(teacher, "layr_3", "outputs[layers.0", "layer_1")
    assert [type(answer) for answer in answers[:2]] == [NotServed, SpecError]
    assert r"it has layer_(\d+), " in str(answers[0])
    assert is_row(answers[2], 1, BATCHES[0], 0)


def test_a_model_that_raises_fails_what_it_was_run_for_and_no_more() -> None:
    torch.manual_seed(3)
    teacher = Teacher(Touchy(), Y, [torch.full((2, LENGTH), 31), BATCHES[0].clamp(max=30)])
    early, late, late_too = serve(
        teacher, "outputs[layers.0]", "outputs[head]", "outputs[layers.2]"
    )
    assert set(early) == {"y"}
    assert isinstance(late, ArithmeticError)
    assert str(late) == "token 31 is too much"
    assert isinstance(late_too, ArithmeticError)
    # When it comes again it has another batch, which does not call the module either.
    (again,) = serve(teacher, "outputs[layers.2]")
    assert "did not call it" in str(again)
    (early,) = serve(teacher, "outputs[layers.1]")
    assert set(early) == {"y"}


def test_what_is_taken_along_does_no_harm() -> None:
    torch.manual_seed(3)
    teacher = Teacher(Touchy(), Y, [BATCHES[0].clamp(max=30)] * 2, together=["outputs[layers.2]"])
    for _ in range(2 * ROWS):
        (product,) = serve(teacher, "outputs[layers.0]")
        assert set(product) == {"y"}
    assert teacher.forwards == 2


def test_errors_of_a_call_are_raised_where_it_has_one_order() -> None:
    teacher = Teacher(model(), Y, BATCHES)
    with pytest.raises(UnknownModule, match="the nearest are"):
        teacher.product("outputs[nothing]")
    teacher.product("outputs[layers.0]")


def test_batches_that_end() -> None:
    teacher = Teacher(model(), Y, iter(BATCHES[:1]))
    products = serve(teacher, *["outputs[layers.0]"] * (ROWS + 1))
    assert isinstance(products[-1], BatchesEnded)
    assert "ended after 1: they are an iterator" in str(products[-1])
    (answer,) = serve(Teacher(model(), Y, []), "outputs[layers.0]")
    assert isinstance(answer, BatchesEnded)
    assert "nothing in them" in str(answer)


def test_batches_that_raise_fail_the_order_with_their_text() -> None:
    def broken() -> Iterator[torch.Tensor]:
        yield BATCHES[0]
        raise OSError("the disk is gone")

    answers = serve(Teacher(model(), Y, broken()), *["outputs[layers.0]"] * (ROWS + 2))
    assert is_row(answers[ROWS - 1], 0, BATCHES[0], ROWS - 1)
    assert [str(answer)[:8] for answer in answers[ROWS:]] == ["the disk", "the teac"]


@pytest.mark.parametrize(
    ("contract", "product_id", "said"),
    [
        (Y, "inputs[layers.0]|outputs[layers.0]", "1 tensors, y; ask for as many"),
        (Contract([TensorSpec("y", (9,), "float32")]), "outputs[layers.0]", "expected \\[9\\]"),
        (Contract([TensorSpec("y", (6, 16), "int64")]), "outputs[layers.0]", "expected int64"),
    ],
)
def test_what_is_not_the_contracts_is_said(contract: Contract, product_id: str, said: str) -> None:
    with pytest.raises(ContractError, match=said):
        Teacher(model(), contract, BATCHES).product(product_id)


def test_rows_that_are_none_are_said() -> None:
    def take(captured: Any, inputs: Any, outputs: Any) -> dict[str, torch.Tensor]:
        return {"y": torch.zeros(3, LENGTH, WIDTH)}

    with pytest.raises(ContractError, match="expected 4 rows, as its batch has"):
        Teacher(model(), Y, BATCHES, take=take).product("outputs[layers.0]")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (None, "returned None; return a mapping of 'y' to torch tensors; is there a `return` in"),
        (torch.zeros(2), r"returned tensor\(\[0., 0.\]\); return a mapping"),
        ([("y", torch.zeros(2))], "returned .*; return a mapping of 'y'"),
        ({"y": 7}, "returned 7 for 'y'; return a mapping of 'y' to torch tensors"),
        ({"y": None}, "returned None for 'y'; return a mapping"),
        ({"z": torch.zeros(ROWS)}, "a mapping that has 'z'; return a mapping of 'y'"),
        ({7: torch.zeros(ROWS)}, "a mapping that has 7; return a mapping of 'y'"),
        ({}, "a mapping that has nothing; return a mapping of 'y'"),
    ],
    ids=str,
)
def test_what_take_may_not_return_is_said_and_the_teacher_goes_on(given: Any, said: str) -> None:
    wrong = [given]

    def take(captured: Any, inputs: Any, outputs: Any) -> Any:
        return wrong.pop() if wrong else {"y": captured["layers.0"]["outputs"][0]}

    teacher = Teacher(model(), Y, BATCHES, take=take)
    failed, made = serve(teacher, "outputs[layers.0]", "outputs[layers.0]")
    assert isinstance(failed, WrongTake)
    assert re.search(said, str(failed)), str(failed)
    assert is_row(made, 0, BATCHES[0], 1)


def test_take_is_a_function() -> None:
    with pytest.raises(ConfigurationError, match="take is a function, got 7"):
        Teacher(model(), Y, BATCHES, take=7)  # type: ignore[arg-type]


@pytest.mark.parametrize("batch", ["text", 7, torch.zeros(0, 6), {"tokens": None}, torch.tensor(3)])
def test_a_batch_that_is_none_is_said(batch: Any) -> None:
    with pytest.raises(ConfigurationError, match="a batch"):
        Teacher(model(), Y, [batch]).product("outputs[layers.0]")


teacher_of: Any = Teacher


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: teacher_of("model", Y, BATCHES), "model must be of type Module"),
        (lambda: teacher_of(model(), {}, BATCHES), "contract must be of type Contract"),
        (lambda: teacher_of(model(), Y, None), "batches are what gives them"),
        (lambda: teacher_of(model(), Y, [], keep=-1), "keep must be 0 to"),
        (lambda: teacher_of(model(), Y, [], autocast="bf16"), "autocast must be of type dtype"),
        (lambda: teacher_of(model(), Y, [], together="outputs[head]"), "together are several"),
        (lambda: teacher_of(model(), Y, [], together=["outputs[hed]"]), "nearest are 'head'"),
        (lambda: teacher_of(model(), Y, [], names=["a"]), "names must be of type Mapping"),
        (lambda: teacher_of(model(), Y, [], names={"a": 7}), "what a name stands for"),
        (lambda: teacher_of(model(), Y, [], names={"(": "outputs[head]"}), "refused"),
        (
            lambda: Teacher(model(), Y, [], names={"a": r"outputs[\2]"}).product("a"),
            "names a group that the pattern lacks",
        ),
    ],
)
def test_arguments_that_cannot_be(make: Callable[[], object], said: str) -> None:
    with pytest.raises(EntrepotError, match=said):
        make()
