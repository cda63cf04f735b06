"""Whatever workers are behind with: nothing stale is served, and each index once an epoch.

The workers are played here, with as many turns, delays and faults as hypothesis likes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from entrepot.contract import Contract
from entrepot.errors import OrderTimeout
from entrepot.tensors import TensorSpec
from entrepot.training import SoftDataLoader, loader
from entrepot.training.epochs import Runs, Shard, chunks
from entrepot.training.loader_feed import Packet
from entrepot.training.loader_plan import Plan

CONTRACT = Contract([TensorSpec("x", (), "int64")])
TRIES = 300

Sample = tuple[str, int]
"""Under which name it was made, and its index."""


class Worker:
    """One that carries out a plan, maybe of before, until it is told to look."""

    def __init__(self, number: int, workers: int, size: int) -> None:
        self._number = number
        self._workers = workers
        self._size = size
        self._packets: Iterator[Packet] = iter(())

    def look(self, plan: Plan) -> None:
        self._packets = self._of(plan)

    def next(self) -> Packet:
        return next(self._packets)

    def _of(self, plan: Plan) -> Iterator[Packet]:
        turn = self._number
        if plan.shard is None:
            while True:
                yield Packet(plan.number, turn, [], self._size, [(plan.source, 0)] * self._size)
        gaps = Runs(plan.done).gaps(len(plan.shard))
        for offsets in chunks(gaps, self._size, self._number, self._workers):
            data = [(plan.source, index) for index in plan.shard.indices(offsets)]
            yield Packet(plan.number, turn, offsets, len(offsets), data)
            turn += self._workers
        while True:
            yield Packet(plan.number)


class Played:
    """A source whose workers are played.

    :param choose: which of so many.
    """

    def __init__(
        self, workers: int, size: int, in_order: bool, choose: Callable[[int], int]
    ) -> None:
        self._workers = [Worker(number, workers, size) for number in range(workers)]
        self._seen = [0] * workers
        self._choose = choose
        self._in_order = in_order
        self._turn = 0
        self.plan = Plan(0)

    def write(self, plan: Plan) -> None:
        assert plan.number > self.plan.number
        self.plan = plan

    def get(self) -> Packet:
        many = len(self._workers)
        which = self._turn % many if self._in_order else self._choose(many)
        self._turn += 1
        # A worker that has not looked gives what it had ready; not for ever.
        behind = self._seen[which] != self.plan.number
        if behind and (self._seen[which] == 0 or self._choose(3) == 0):
            self._seen[which] = self.plan.number
            self._workers[which].look(self.plan)
        if self._choose(12) == 11:
            return Packet(self._seen[which], fault=OrderTimeout("nobody makes it"))
        return self._workers[which].next()

    def switched(self) -> None: ...

    def close(self) -> None: ...


def played(monkeypatch: pytest.MonkeyPatch, data: st.DataObject, **options: Any) -> SoftDataLoader:
    """A loader with workers of some number."""

    def choose(many: int) -> int:
        return data.draw(st.integers(0, many - 1))

    def source_of(given_: Any) -> Played:
        workers = data.draw(st.integers(1, 3))
        return Played(workers, given_.batch_size or 1, given_.in_turn, choose)

    monkeypatch.setattr(loader, "source_of", source_of)
    return SoftDataLoader("tcp://127.0.0.1:1", CONTRACT, framework="numpy", **options)


def served(batches: Iterator[Any]) -> list[Sample] | None:
    """The next batch; None at the end."""
    for _ in range(TRIES):
        try:
            batch: list[Sample] = next(batches)
            return batch
        except OrderTimeout:
            continue
        except StopIteration:
            return None
    raise AssertionError("nothing comes")


@settings(max_examples=60)
@given(st.data(), st.integers(0, 30), st.integers(1, 4), st.booleans(), st.booleans())
def test_each_index_once_and_nothing_stale(
    data: st.DataObject, length: int, size: int, ordered: bool, shuffle: bool
) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        options = {"length": length, "batch_size": size, "ordered": ordered, "shuffle": shuffle}
        name = "m0/{index}"
        mine = played(monkeypatch, data, products=name, **options)
        batches = iter(mine)
        found: list[int] = []
        for step in range(1, 200):
            match data.draw(st.integers(0, 9)):
                case 0:
                    mine.set_model(name := f"m{step}/{{index}}")
                case 1:
                    state = json.loads(json.dumps(mine.state_dict()))
                    mine.close()
                    mine = played(monkeypatch, data, products=name, **options)
                    mine.load_state_dict(state)
                    batches = iter(mine)
            batch = served(batches)
            if batch is None:
                break
            assert {source for source, _ in batch} == {name}
            found += [index for _, index in batch]
        assert sorted(found) == list(range(length))
        if ordered:
            assert found == Shard(length, 0, 0 if shuffle else None).indices(range(length))
        assert mine.epoch == 0
        mine.close()


@settings(max_examples=40)
@given(st.data(), st.integers(1, 4))
def test_a_stream_is_fenced_too(data: st.DataObject, size: int) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        mine = played(monkeypatch, data, product_id="m0", batch_size=size)
        batches, name, count = iter(mine), "m0", 0
        for step in range(1, 30):
            if data.draw(st.booleans()):
                mine.set_model(name := f"m{step}")
            batch = served(batches)
            assert batch is not None
            assert {source for source, _ in batch} == {name}
            count += len(batch)
        assert mine.samples == count
        mine.close()
