"""Teachers of samples that have numbers."""

from __future__ import annotations

import torch

from entrepot.contract import Contract
from entrepot.errors import (
    ConfigurationError,
    NotServed,
)
from entrepot.tensors import TensorSpec
from entrepot.training import Teacher
from tests.unit.capture.models import WIDTH
from tests.unit.training.teachers import (
    BATCHES,
    LENGTH,
    NAMES,
    SAMPLES,
    Y,
    expected,
    indexed,
    is_row,
    model,
    serve,
)


def test_one_forward_serves_the_samples_of_a_call() -> None:
    asked: list[list[int]] = []
    teacher = indexed(asked)
    products = serve(teacher, "train/7/1", "train/40/1", "train/7/2", "train/3/0")
    for product, sample, layer in zip(products, (7, 40, 7, 3), (1, 1, 2, 0), strict=True):
        assert is_row(product, layer, SAMPLES[[sample]], 0) or torch.allclose(
            product["y"], expected(layer, SAMPLES[[sample]])[1][0], atol=1e-5
        )
    assert (asked, teacher.forwards) == ([[7, 40, 3]], 1)


def test_a_sample_that_was_captured_is_not_run_again() -> None:
    asked: list[list[int]] = []
    teacher = indexed(asked, together=["outputs[layers.1]"])
    first = serve(teacher, "train/7/0", "train/8/0")
    again = serve(teacher, "train/8/1", "train/7/0", "train/8/0")
    assert torch.equal(again[1]["y"], first[0]["y"])
    assert torch.equal(again[2]["y"], first[1]["y"])
    assert asked == [[7, 8]]
    serve(teacher, "train/9/0")  # and takes the place of what was kept
    serve(teacher, "train/7/0")
    assert asked == [[7, 8], [9], [7]]


def test_a_sample_that_is_not_there_fails_alone() -> None:
    teacher = indexed()
    answers = serve(teacher, "train/7/1", "train/50/1", "train/8/1")
    assert isinstance(answers[1], IndexError)
    assert is_row(answers[0], 1, SAMPLES[[7]], 0)
    assert is_row(answers[2], 1, SAMPLES[[8]], 0)


def test_numbers_and_streams_are_not_mixed_up() -> None:
    (answer,) = serve(indexed(), "outputs[layers.0]")
    assert isinstance(answer, NotServed)
    assert "by number only" in str(answer)
    (answer,) = serve(Teacher(model(), Y, BATCHES, names=NAMES), "train/3/0")
    assert isinstance(answer, NotServed)
    assert "no sample 3" in str(answer)
    (answer,) = serve(indexed(), f"train/{'9' * 30}/0")
    assert "at most 18 digits" in str(answer)


def test_a_function_that_gives_other_rows_is_found_out() -> None:
    teacher = Teacher(model(), Y, lambda indices: SAMPLES[:3], names=NAMES)
    (answer,) = serve(teacher, "train/3/0")
    assert isinstance(answer, ConfigurationError)
    assert "asked for 1 samples and gave a batch of 3 rows" in str(answer)


def test_whole_batches_by_number() -> None:
    contract = Contract([TensorSpec("y", (2, LENGTH, WIDTH), "float32")])
    teacher = Teacher(
        model(), contract, lambda indices: SAMPLES[:2], names=NAMES, by_row=False, keep=4
    )
    products = serve(teacher, "train/0/1", "train/1/1", "train/0/2")
    assert torch.equal(products[2]["y"], expected(2, SAMPLES[:2])[1])
    assert teacher.forwards == 2
