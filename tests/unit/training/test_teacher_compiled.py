"""Teachers of compiled models."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from entrepot.errors import HookDidNotFire
from entrepot.training import Teacher
from tests.unit.training.teachers import BATCHES, Y, is_row, model, serve

pytestmark = pytest.mark.filterwarnings("ignore")  # the compiler's own


@pytest.fixture(autouse=True)
def _no_leftovers() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def test_a_model_is_compiled_after_its_teacher_was_made() -> None:
    whole = model()
    teacher = Teacher(whole, Y, BATCHES)
    whole.compile(backend="eager")
    (product,) = serve(teacher, "outputs[layers.1]")
    assert is_row(product, 1, BATCHES[0], 0)
    assert whole.ran == 1


def test_a_model_that_was_compiled_before_is_compiled_again_or_the_remedy_is_told() -> None:
    """It depends on what the compiler sees of ``eval``; what is served is right in either case."""
    whole = model()
    whole.compile(backend="eager")
    with torch.no_grad():
        whole(BATCHES[0])
    (answer,) = serve(Teacher(whole, Y, BATCHES), "outputs[layers.1]")
    if isinstance(answer, HookDidNotFire):
        assert "then call model.compile()" in str(answer)
    else:
        assert is_row(answer, 1, BATCHES[0], 0)
