"""Specifications of captures: what can be written, and what is said about what cannot."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from entrepot.capture import check_names, io_spec, parse_io_spec
from entrepot.errors import SpecError, UnknownModule

NAME = st.text(
    st.characters(exclude_characters="[]|", exclude_categories=["Z", "C"]), min_size=1, max_size=12
)
NAMES = st.lists(NAME, max_size=5, unique=True)


@pytest.mark.parametrize(
    ("spec", "inputs", "outputs"),
    [
        ("inputs[model.layers.0]|outputs[model.layers.0]", ["model.layers.0"], ["model.layers.0"]),
        ("outputs[model.layers.5]", [], ["model.layers.5"]),
        ("inputs[]|outputs[a|b.c]", [], ["a", "b.c"]),
        ("inputs[a|b]|outputs[]", ["a", "b"], []),
        ("inputs[a]", ["a"], []),
        ("outputs[a]|inputs[b]", ["b"], ["a"]),
        ("outputs[a|b|a]", [], ["a", "b"]),
        ("outputs[ñ]", [], ["ñ"]),
    ],
)
def test_a_specification_names_modules_by_side(
    spec: str, inputs: list[str], outputs: list[str]
) -> None:
    assert parse_io_spec(spec) == (inputs, outputs)


@pytest.mark.parametrize(
    ("spec", "position", "expected"),
    [
        ("", 0, "'inputs[' or 'outputs['"),
        ("layer_3", 0, "'inputs[' or 'outputs['"),
        ("inputs", 0, "'inputs[' or 'outputs['"),
        ("outputs[a", 9, "']', which ends 'outputs['"),
        ("outputs[a]x", 10, "'|' or the end"),
        ("outputs[a]|", 11, "'inputs[' or 'outputs['"),
        ("outputs[a]|outputs[b]", 11, "no second 'outputs['"),
        ("inputs[]|outputs[]", 18, "the name of a module in one of the blocks"),
        ("outputs[a||b]", 10, "the name of a module, without spaces around it"),
        ("outputs[a| b]", 10, "the name of a module, without spaces around it"),
        ("outputs[a[0]]", 9, "'|' or ']' after a name"),
        ("inputs[inputs[a]", 13, "'|' or ']' after a name"),
    ],
)
def test_what_cannot_be_read_is_said_with_the_place(
    spec: str, position: int, expected: str
) -> None:
    with pytest.raises(SpecError) as caught:
        parse_io_spec(spec)
    assert (caught.value.position, caught.value.expected) == (position, expected)
    assert f"at character {position} there must be {expected}" in str(caught.value)


@given(NAMES, NAMES)
def test_what_is_written_is_read_back(inputs: list[str], outputs: list[str]) -> None:
    if inputs or outputs:
        assert parse_io_spec(io_spec(inputs, outputs)) == (inputs, outputs)
    else:
        with pytest.raises(SpecError):
            io_spec(inputs, outputs)


@given(st.text(alphabet="inputsoutputs[]|ab.", max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    fault = None
    try:
        inputs, outputs = parse_io_spec(text)
    except SpecError as error:
        fault = error
    if fault is not None:
        assert 0 <= fault.position <= len(text)
    else:
        assert parse_io_spec(io_spec(inputs, outputs)) == (inputs, outputs)


class Counting(str):
    """A text that counts the characters that were looked at."""

    looked = 0

    def startswith(self, prefix: object, at: object = 0, end: object = None) -> bool:
        Counting.looked += len(str(prefix))
        return super().startswith(str(prefix), at)  # type: ignore[arg-type]

    def find(self, sub: str, at: object = None, end: object = None) -> int:
        found = super().find(sub, at)  # type: ignore[arg-type]
        begin = int(str(at))
        Counting.looked += (len(self) if found < 0 else found) - begin
        return found


@pytest.mark.parametrize("times", [1_000, 10_000])
def test_reading_takes_time_linear_in_the_length(times: int) -> None:
    for text in ("inputs[" * times, "inputs[a]|" * times, "outputs[" + "a|" * times + "a]"):
        Counting.looked = 0
        try:
            parse_io_spec(Counting(text))
        except SpecError:
            pass
        assert Counting.looked <= 2 * len(text) + 64


def test_an_unknown_module_is_told_with_the_nearest_three() -> None:
    known = ["model.layers.0", "model.layers.1", "model.layers.2", "model.embed", "head"]
    with pytest.raises(UnknownModule) as caught:
        check_names(["head", "model.layer.1"], known)
    assert caught.value.name == "model.layer.1"
    assert len(caught.value.nearest) == 3
    assert caught.value.nearest[0] == "model.layers.1"
    assert "'model.layers.1'" in str(caught.value)


def test_a_long_text_is_not_repeated_whole() -> None:
    with pytest.raises(SpecError) as caught:
        parse_io_spec("x" * 100_000)
    assert len(str(caught.value)) < 400
