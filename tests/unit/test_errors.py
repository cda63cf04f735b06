"""What the errors say in the end, and that all have one root."""

from __future__ import annotations

import pytest

from entrepot import errors
from entrepot.errors import EntrepotError, OrderFailed
from entrepot.errors.root import sentence_of


@pytest.mark.parametrize(
    ("attempts", "said"),
    [
        ((), "nothing was tried"),
        (("a: E: x",), "a: E: x"),
        (("a: E: x",) * 5, "a: E: x (5 times)"),
        (("a: E: x", "b: E: x", "a: E: x", "b: F: y"), "a: E: x (2 times); b: E: x; b: F: y"),
    ],
)
def test_the_same_failure_is_said_once_with_its_count(attempts: tuple[str, ...], said: str) -> None:
    error = OrderFailed("c1", "layer_3", "attempts", attempts)
    assert str(error) == f"order c1 for 'layer_3' failed (attempts): {said}"
    assert error.attempts == attempts, "for a program each is there"


def test_every_error_has_a_code_of_its_own() -> None:
    kinds = [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, EntrepotError)
    ]
    codes = {kind.__name__: kind.code for kind in kinds if "code" in vars(kind)}
    assert len(set(codes.values())) == len(codes)


class Wordless(Exception):
    def __str__(self) -> str:
        raise ArithmeticError("no sentence")


def test_an_error_whose_sentence_cannot_be_had_is_told_all_the_same() -> None:
    """A stranger's code raised it: what its ``__str__`` does must not stand in its place."""
    assert sentence_of(ValueError("spam")) == "spam"
    assert sentence_of(Wordless()) == "(its message could not be read)"
