"""Histories as arrays, and what is kept of them between questions."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.liars import SCORED, SPACE
from entrepot.study import Point, Sampler
from entrepot.study.samplers.base import History
from entrepot.study.samplers.layout import Floats, Layout, layout_of
from entrepot.study.samplers.told import Pair, Teller
from tests.unit.study.spaces import points, spaces


class Counting(Layout):
    """Says how many points it was asked about."""

    asked: int = 0

    def rows(self, points: Sequence[Point]) -> Floats:
        self.asked += len(points)
        return super().rows(points)


@given(st.data())
@settings(max_examples=60)
def test_what_is_kept_changes_no_answer(data: st.DataObject) -> None:
    """Histories that grow, shrink, and change anywhere, told to one that keeps and to a new one."""
    space = data.draw(spaces())
    layout, kept = layout_of(space), Teller()
    pool = data.draw(st.lists(points(space), min_size=1, max_size=5))
    pairs: list[Pair] = []
    for _ in range(data.draw(st.integers(1, 5))):
        cut = data.draw(st.integers(0, len(pairs)))
        pairs = pairs[:cut] + [
            (data.draw(st.sampled_from(pool)), data.draw(st.none() | st.floats()))
            for _ in range(data.draw(st.integers(0, 4)))
        ]
        wanted = Teller().tell(layout, pairs, "max")
        for found, want in zip(kept.tell(layout, list(pairs), "max"), wanted, strict=True):
            np.testing.assert_array_equal(found, want)


def test_of_a_history_that_grows_only_what_is_new_is_looked_at() -> None:
    layout, teller = Counting(SPACE), Teller()
    history: list[Pair] = [(SPACE.at([n / 100] * 3), float(n)) for n in range(100)]
    teller.tell(layout, history[:90], "min")
    teller.tell(layout, history, "min")
    assert layout.asked == 100
    history[95] = (history[95][0], None)
    assert teller.tell(layout, history, "min").held.sum() == 1
    assert layout.asked <= 110
    teller.tell(layout, tuple(history), "min")
    assert layout.asked <= 110


def test_what_may_be_changed_behind_its_back_is_not_kept() -> None:
    pair: list[Any] = [SPACE.at([0.5] * 3), 1.0]
    teller, layout = Teller(), layout_of(SPACE)
    history = cast(History, [pair])
    assert teller.tell(layout, history, "min").losses.tolist() == [[1.0]]
    pair[1] = 2.0
    assert teller.tell(layout, history, "min").losses.tolist() == [[2.0]]
    scores = {"loss": 1.0}
    several: History = [(SPACE.at([0.5] * 3), scores)]
    assert teller.tell(layout, several, {"loss": "min"}).losses.tolist() == [[1.0]]
    scores["loss"] = 2.0
    assert teller.tell(layout, several, {"loss": "min"}).losses.tolist() == [[2.0]]


def test_a_sampler_that_travels_answers_the_same() -> None:
    sampler = Sampler.tpe("min", startup=4, seed=3)
    before = sampler.ask(SPACE, 9, SCORED)
    other = pickle.loads(pickle.dumps(sampler))
    assert other == sampler
    assert other.ask(SPACE, 9, SCORED) == before
