"""Which row of which batch a product is: for any orders, in calls of any size."""

from __future__ import annotations

from typing import Any

import re2
import torch
from hypothesis import given
from hypothesis import strategies as st

from entrepot.capture import io_spec
from entrepot.training.teacher_batches import Batches, Forward, Indexed, Stream
from entrepot.training.teacher_names import SPEC_PATTERN, Asked, Names

A, B, C = (Asked((), (name,)) for name in "abc")


def batch(number: int, rows: int) -> torch.Tensor:
    """One whose rows say where they are from."""
    return torch.tensor([[number, row] for row in range(rows)])


def run(batches: Batches, asked: list[Asked]) -> list[tuple[int, ...]]:
    """What a teacher does of a call, with a model that gives what it is given."""
    got: list[tuple[int, ...]] = []
    forwards: dict[Forward, None] = {}
    for one, place in zip(asked, batches.place(asked), strict=True):
        assert not isinstance(place, Exception)
        forward, row = place
        forwards[forward] = None
        forward.load()
        forward.captured = True  # type: ignore[assignment]
        forward.modules = Asked((), ("a", "b", "c"))
        row = row if one.index is None else forward.samples[one.index]
        got.append(tuple(forward.batch[row].tolist()))
    for forward in forwards:
        batches.made(forward)
    return got


CALLS = st.lists(st.lists(st.sampled_from([A, B, C]), min_size=1, max_size=9), max_size=12)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=5), st.integers(0, 3), CALLS)
def test_each_product_meets_rows_in_order_and_none_twice(
    sizes: list[int], keep: int, calls: list[list[Asked]]
) -> None:
    """And who has not fallen behind by more than is kept meets every one."""
    count = 0

    def numbered() -> Any:
        nonlocal count
        while True:
            yield batch(count, sizes[count % len(sizes)])
            count += 1

    stream = Stream(numbered(), True, keep)
    met: dict[Asked, list[tuple[int, ...]]] = {A: [], B: [], C: []}
    for asked in calls:
        for one, row in zip(asked, run(stream, asked), strict=True):
            met[one].append(row)
        assert len(stream._kept) <= max(keep, 0)
    for rows in met.values():
        assert rows == sorted(set(rows))
    # A product that is ordered alone leaves nothing out, if what is left of a batch is kept.
    if keep and len({one for asked in calls for one in asked}) == 1:
        rows = next(rows for rows in met.values() if rows)
        whole = [
            (number, row)
            for number in range(count + 1)
            for row in range(sizes[number % len(sizes)])
        ]
        assert rows == whole[: len(rows)]


@given(
    st.booleans(),
    st.integers(0, 3),
    st.lists(
        st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9)), max_size=9), max_size=9
    ),
)
def test_a_sample_is_the_one_that_was_asked_for(
    by_row: bool, keep: int, calls: list[list[tuple[str, int]]]
) -> None:
    loads: list[list[int]] = []

    def load(indices: list[int]) -> torch.Tensor:
        loads.append(indices)
        return torch.tensor([[index, 1] for index in indices])

    indexed = Indexed(load, by_row, keep)
    for call in calls:
        before = len(loads)
        asked = [Asked((), (name,), index) for name, index in call]
        assert run(indexed, asked) == [(index, 1) for _, index in call]
        new = loads[before:]
        assert len(new) <= (1 if by_row else len({index for _, index in call}))
        for indices in new:
            assert len(set(indices)) == len(indices)
        assert len(indexed._kept) <= keep


MODULES = st.lists(st.from_regex(r"[a-z_.0-9]+", fullmatch=True), max_size=3, unique=True)


@given(MODULES, MODULES)
def test_the_pattern_of_specifications_has_all_that_can_be_read(
    inputs: list[str], outputs: list[str]
) -> None:
    if not inputs and not outputs:
        return
    spec = io_spec(inputs, outputs)
    assert Names({}).asked(spec) == Asked(tuple(inputs), tuple(outputs))
    assert re2.fullmatch(SPEC_PATTERN, spec) is not None
