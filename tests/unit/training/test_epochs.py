"""Consumed and resumed together are the epoch, each index once; the order is (seed, epoch)'s."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from entrepot.errors import StateMismatch
from entrepot.training.epochs import (
    SORTED_AT_MOST,
    Runs,
    Shard,
    chunks,
    restored,
    shuffled,
    state_of,
)

SEEDS = st.none() | st.integers(0, 2**64 - 1)


# --- runs -------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40))), st.integers(0, 50))
def test_runs_are_a_set(given_runs: list[tuple[int, int]], stop: int) -> None:
    runs = Runs(given_runs)
    wanted = {number for start, end in given_runs for number in range(start, end)}
    assert {number for start, end in runs for number in range(start, end)} == wanted
    assert runs.count == len(wanted)
    borders = [border for run in runs for border in run]
    assert borders == sorted(set(borders)), "they touch, or are out of order"
    gaps = [number for start, end in runs.gaps(stop) for number in range(start, end)]
    assert gaps == sorted(set(range(stop)) - wanted)
    assert Runs(runs) == runs


def test_what_is_consumed_in_order_is_one_run() -> None:
    runs = Runs()
    for number in range(1000):
        runs.add(number, number + 1)
    assert list(runs) == [(0, 1000)]


# --- the order --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "length", [1, 2, 3, 17, SORTED_AT_MOST, SORTED_AT_MOST + 1, 100_003, 1 << 18]
)
def test_a_shuffled_epoch_has_each_index_once(length: int) -> None:
    order = shuffled(np.arange(length), length, 7, 3)
    assert np.array_equal(np.sort(order), np.arange(length))


@pytest.mark.parametrize("length", [1000, 100_000])
def test_orders_of_other_seeds_and_epochs_are_others(length: int) -> None:
    places = np.arange(length)
    orders = [shuffled(places, length, seed, epoch) for seed, epoch in ((0, 0), (0, 1), (1, 0))]
    for one in range(3):
        assert np.array_equal(orders[one], shuffled(places, length, *((0, 0), (0, 1), (1, 0))[one]))
        # Two random orders have about one place in common, and are not correlated.
        assert (orders[one] == orders[one - 1]).sum() < 10
        assert abs(np.corrcoef(orders[one], orders[one - 1])[0, 1]) < 0.15
        assert abs(np.corrcoef(orders[one], places)[0, 1]) < 0.15


def test_each_order_of_four_indices_comes_as_often_as_another() -> None:
    counts: dict[tuple[int, ...], int] = {}
    for epoch in range(4800):
        order = tuple(shuffled(np.arange(4), 4, 11, epoch).tolist())
        counts[order] = counts.get(order, 0) + 1
    assert len(counts) == 24
    # chi-square of 23 degrees of freedom: 49.7 is exceeded once in a thousand.
    assert sum((count - 200) ** 2 / 200 for count in counts.values()) < 49.7


def test_a_place_alone_is_what_it_is_among_all() -> None:
    length = 10**12
    places = np.array([0, 5, 10**9, length - 1])
    together = shuffled(places, length, 1, 2)
    assert together.tolist() == [
        int(shuffled(places[n : n + 1], length, 1, 2)[0]) for n in range(4)
    ]
    assert ((together >= 0) & (together < length)).all()


def test_the_order_is_the_same_in_every_release() -> None:
    assert shuffled(np.arange(6), 6, 42, 0).tolist() == SIX
    assert shuffled(np.arange(3), 1 << 20, 42, 0).tolist() == MANY


SIX = [2, 3, 1, 4, 0, 5]
MANY = [912994, 313190, 851254]


# --- shards -----------------------------------------------------------------------------


@given(st.integers(0, 60), SEEDS, st.integers(1, 7), st.integers(0, 4), st.integers(0, 3))
def test_ranks_have_each_index_once(
    length: int, seed: int | None, world: int, even: int, epoch: int
) -> None:
    shards = [Shard(length, epoch, seed, rank, world, even) for rank in range(world)]
    found = [index for shard in shards for index in shard.indices(range(len(shard)))]
    assert len(set(found)) == len(found)
    lengths = [len(shard) for shard in shards]
    if even:
        assert set(lengths) == {length // (world * even) * even}
    else:
        assert sorted(found) == list(range(length))
        assert max(lengths) - min(lengths) <= 1


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=4),
    st.integers(1, 7),
    st.integers(1, 5),
)
def test_workers_have_each_chunk_once(runs: list[tuple[int, int]], size: int, workers: int) -> None:
    runs = list(Runs(runs))
    wanted = list(chunks(runs, size))
    assert [number for chunk in wanted for number in chunk] == [
        number for start, stop in runs for number in range(start, stop)
    ]
    assert all(len(chunk) == size for chunk in wanted[:-1])
    for worker in range(workers):
        assert list(chunks(runs, size, worker, workers)) == wanted[worker::workers]


# --- resuming ---------------------------------------------------------------------------


class Epoch:
    """One rank's epoch, consumed as a loader does: chunks of workers, ahead of one another."""

    def __init__(self, shard: Shard, done: Runs) -> None:
        self.shard = shard
        self.done = done

    def consume(self, data: st.DataObject, size: int, workers: int, ordered: bool) -> list[int]:
        """Some of what is left, as far as hypothesis likes."""
        gaps = list(self.done.gaps(len(self.shard)))
        if ordered:
            left = list(chunks(gaps, size))
            taken = left[: data.draw(st.integers(0, len(left)))]
        else:
            queues = [list(chunks(gaps, size, w, workers)) for w in range(workers)]
            taken = []
            for _ in range(data.draw(st.integers(0, 20))):
                queue = data.draw(st.sampled_from(queues))
                if queue:
                    taken.append(queue.pop(0))
        found: list[int] = []
        for chunk in taken:
            found += self.shard.indices(chunk)
            for offset in chunk:
                self.done.add(offset, offset + 1)
        return found

    def state(self) -> dict[str, Any]:
        said: dict[str, Any] = json.loads(json.dumps(state_of(self.shard, self.done)))
        return said

    def rest(self, size: int, workers: int) -> list[int]:
        gaps = list(self.done.gaps(len(self.shard)))
        return [
            index
            for worker in range(workers)
            for chunk in chunks(gaps, size, worker, workers)
            for index in self.shard.indices(chunk)
        ]


SIZES = st.integers(1, 5)


@given(st.data(), st.integers(0, 60), SEEDS, st.integers(1, 4), st.booleans())
def test_consumed_and_resumed_are_the_epoch(
    data: st.DataObject, length: int, seed: int | None, world: int, ordered: bool
) -> None:
    """Over two stops, with other numbers of workers and sizes of batches each time."""
    found: list[int] = []
    for rank in range(world):
        fresh = Shard(length, 2, seed, rank, world)
        epoch = Epoch(fresh, Runs())
        for _ in range(2):
            found += epoch.consume(data, data.draw(SIZES), data.draw(SIZES), ordered)
            epoch = Epoch(*restored([epoch.state()], fresh))
        found += epoch.rest(data.draw(SIZES), data.draw(SIZES))
    assert sorted(found) == list(range(length))


@given(st.data(), st.integers(0, 60), SEEDS)
def test_another_world_goes_on_with_what_nobody_consumed(
    data: st.DataObject, length: int, seed: int | None
) -> None:
    found: list[int] = []
    worlds = data.draw(st.lists(st.integers(1, 4), min_size=2, max_size=4))
    states: list[dict[str, Any]] = []
    for number, world in enumerate(worlds):
        epochs = []
        for rank in range(world):
            fresh = Shard(length, 0, seed, rank, world)
            start = restored(states, fresh) if states else (fresh, Runs())
            epochs.append(Epoch(*start))
        for epoch in epochs:
            if number == len(worlds) - 1:
                found += epoch.rest(2, 2)
            else:
                found += epoch.consume(data, data.draw(SIZES), 2, data.draw(st.booleans()))
        states = [epoch.state() for epoch in epochs]
    assert sorted(found) == list(range(length))


def test_an_uninterrupted_epoch_in_order_is_what_a_resumed_one_is() -> None:
    shard = Shard(100, 1, 9)
    whole = [shard.indices(chunk) for chunk in chunks([(0, 100)], 8)]
    for stop in range(len(whole)):
        again, done = restored([state_of(shard, Runs([(0, 8 * stop)]))], shard)
        rest = [again.indices(chunk) for chunk in chunks(done.gaps(len(again)), 8)]
        assert whole[:stop] + rest == whole


@pytest.mark.parametrize(
    ("changes", "wanted", "said"),
    [
        ({"version": 7}, Shard(8), "a state is what state_dict"),
        ({"kind": "stream"}, Shard(8), "of a loader of a stream, and this one is of indexed"),
        ({}, Shard(9), "length is 8 in the state and 9 here"),
        ({}, Shard(8, seed=3), "seed is None in the state and 3 here"),
        ({"world": 2}, Shard(8), "give load_state_dict the states of all 2 ranks"),
        (
            {"world": 2, "even": 4},
            Shard(8, world=2),
            "rank 0 of 2, in whole batches of 4, and this is rank 0 of 2, without drop_last",
        ),
    ],
)
def test_what_cannot_be_resumed_is_said(changes: dict[str, Any], wanted: Shard, said: str) -> None:
    with pytest.raises(StateMismatch, match=said):
        restored([state_of(Shard(8), Runs()) | changes], wanted)


def test_ranks_of_different_epochs_are_not_shared_out() -> None:
    states = [state_of(Shard(8, rank, None, rank, 2), Runs()) for rank in range(2)]
    with pytest.raises(StateMismatch, match="epochs 0 of rank 0, 1 of rank 1"):
        restored(states, Shard(8))
