"""Which indices an epoch has, in which order and for which rank, and which were consumed.

Pure: no process, client or clock. The order of an epoch is a function of (seed, epoch, length)
alone, and each place of it is computed by itself, so that nobody keeps a list of all indices.

An index has a *position* in the order of its epoch. What one rank has of the positions are its
*offsets*, 0, 1, 2, ...; a state says which offsets were consumed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from entrepot.errors import StateMismatch

Numbers = NDArray[np.int64]
Words = NDArray[np.uint64]
Run = tuple[int, int]
"""Whole numbers from the first to before the second."""

SORTED_AT_MOST = 1 << 16
"""Longest epoch whose order is sorted. A cipher of few bits would know few orders of few indices;
one of many bits knows enough, and needs no memory."""

ROUNDS = 6
MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15

STATE_VERSION = 1


# --- runs -------------------------------------------------------------------------------


class Runs:
    """A set of whole numbers, as runs: small, where few are missing between them."""

    __slots__ = ("_starts", "_stops", "count")

    def __init__(self, runs: Iterable[Sequence[int]] = ()) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []
        self.count = 0
        for start, stop in runs:
            self.add(start, stop)

    def add(self, start: int, stop: int) -> None:
        """The numbers from ``start`` to before ``stop`` are in it."""
        if start >= stop:
            return
        first = bisect_left(self._stops, start)
        last = bisect_right(self._starts, stop)
        if first < last:  # it touches these
            start = min(start, self._starts[first])
            stop = max(stop, self._stops[last - 1])
            for place in range(first, last):
                self.count -= self._stops[place] - self._starts[place]
        self._starts[first:last] = [start]
        self._stops[first:last] = [stop]
        self.count += stop - start

    def gaps(self, stop: int) -> Iterator[Run]:
        """The runs of what is not in it, below ``stop``."""
        at = 0
        for start, end in self:
            if start >= stop:
                break
            if at < start:
                yield at, start
            at = end
        if at < stop:
            yield at, stop

    def __iter__(self) -> Iterator[Run]:
        return zip(self._starts, self._stops, strict=True)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Runs) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __repr__(self) -> str:
        return f"Runs({list(self)})"


# --- the order of an epoch --------------------------------------------------------------


def shuffled(positions: Numbers, length: int, seed: int, epoch: int) -> Numbers:
    """The indices at those positions of the order of (seed, epoch), which has each index once."""
    if length <= SORTED_AT_MOST:
        return _sorted(length, seed, epoch)[positions]
    bits = (length - 1).bit_length()
    half = np.uint64((bits + 1) // 2)
    found = positions.astype(np.uint64)
    outside = np.ones(len(found), bool)
    while outside.any():  # what falls outside is enciphered again, until it does not
        found[outside] = _enciphered(found[outside], half, seed, epoch)
        outside = found >= np.uint64(length)
    return found.astype(np.int64)


@lru_cache(maxsize=4)
def _sorted(length: int, seed: int, epoch: int) -> Numbers:
    words = np.arange(length, dtype=np.uint64) + np.uint64(_key(seed, epoch, 0))
    order = np.argsort(_mixed(words), kind="stable").astype(np.int64)
    order.setflags(write=False)
    return order


def _enciphered(words: Words, half: np.uint64, seed: int, epoch: int) -> Words:
    """A Feistel cipher of twice ``half`` bits: each word has one image, and another one's."""
    low = np.uint64((1 << int(half)) - 1)
    left, right = words >> half, words & low
    for turn in range(ROUNDS):
        mixed = _mixed(right + np.uint64(_key(seed, epoch, turn))) >> (np.uint64(64) - half)
        left, right = right, left ^ mixed
    return (left << half) | right


def _mixed(words: Words) -> Words:
    """Splitmix64's finaliser: every bit depends on every other."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _key(*numbers: int) -> int:
    """64 bits of those numbers."""
    key = 0
    for number in numbers:
        key = (key ^ number) & MASK
        key = (key + GOLDEN) & MASK
        key = ((key ^ (key >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        key = ((key ^ (key >> 27)) * 0x94D049BB133111EB) & MASK
        key ^= key >> 31
    return key


# --- whose they are ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Shard:
    """What one rank has of an epoch.

    Rank r of n has positions r, r+n, r+2n, ... of those that are left: each once over all ranks.

    :ivar length: indices of the epoch, over all ranks.
    :ivar seed: of the order; None is 0, 1, 2, ...
    :ivar even: every rank has the same number, and that a multiple of this; 0 leaves nothing out,
        and then ranks may differ by one.
    :ivar before: runs of the positions that were consumed before it was shared out.
    """

    length: int
    epoch: int = 0
    seed: int | None = None
    rank: int = 0
    world: int = 1
    even: int = 0
    before: tuple[Run, ...] = ()

    def __len__(self) -> int:
        left = self.length - sum(stop - start for start, stop in self.before)
        if self.even:
            return left // (self.world * self.even) * self.even
        return len(range(self.rank, left, self.world))

    def positions(self, offsets: Numbers) -> Numbers:
        """Where in the epoch's order those offsets are."""
        places = offsets * self.world + self.rank
        if not self.before:
            return places
        gaps = list(Runs(self.before).gaps(self.length))
        ends = np.fromiter(accumulate(stop - start for start, stop in gaps), np.int64, len(gaps))
        starts = np.fromiter((start for start, _ in gaps), np.int64, len(gaps))
        lengths = np.diff(ends, prepend=0)
        which = np.searchsorted(ends, places, side="right")
        return starts[which] + places - (ends - lengths)[which]

    def indices(self, offsets: Sequence[int] | Numbers) -> list[int]:
        """The indices at those offsets."""
        positions = self.positions(np.asarray(offsets, np.int64))
        if self.seed is not None:
            positions = shuffled(positions, self.length, self.seed, self.epoch)
        found: list[int] = positions.tolist()
        return found


def chunks(runs: Iterable[Run], size: int, first: int = 0, step: int = 1) -> Iterator[list[int]]:
    """The numbers of ``runs``, ``size`` at a time: every ``step``-th such chunk from ``first``.

    Only the last of all chunks may be smaller.
    """
    turn, filled = 0, 0
    chunk: list[int] = []
    for start, stop in runs:
        at = start
        while at < stop:
            end = min(stop, at + size - filled)
            if turn % step == first:
                chunk.extend(range(at, end))
            filled += end - at
            at = end
            if filled == size:
                if chunk:
                    yield chunk
                turn, filled, chunk = turn + 1, 0, []
    if chunk:
        yield chunk


# --- what was consumed ------------------------------------------------------------------


def state_of(shard: Shard, done: Runs) -> dict[str, Any]:
    """What :func:`restored` takes, and JSON can say."""
    return {
        "version": STATE_VERSION,
        "kind": "indexed",
        "length": shard.length,
        "epoch": shard.epoch,
        "seed": shard.seed,
        "rank": shard.rank,
        "world": shard.world,
        "even": shard.even,
        "before": [list(run) for run in shard.before],
        "done": [list(run) for run in done],
    }


def restored(states: Sequence[Mapping[str, Any]], wanted: Shard) -> tuple[Shard, Runs]:
    """Where to go on, for the rank, world, length and seed that ``wanted`` has.

    Its own state suffices. For another world, the states of all ranks are needed; then what none
    of them had consumed is shared out anew.

    :raises StateMismatch: they are not of such a loader, or some are missing.
    """
    for state in states:
        check_state(state, "indexed")
        _check_same(state, wanted, "length", "seed")
    own = [s for s in states if (s["rank"], s["world"]) == (wanted.rank, wanted.world)]
    if own and own[0]["even"] == wanted.even:
        return _shard_of(own[0]), Runs(own[0]["done"])
    return _shared_out(states, wanted)


def _shared_out(states: Sequence[Mapping[str, Any]], wanted: Shard) -> tuple[Shard, Runs]:
    world = states[0]["world"]
    missing = sorted(set(range(world)) - {state["rank"] for state in states})
    if missing or any(state["world"] != world for state in states):
        there = f"rank {states[0]['rank']} of {world}, {_evenly(states[0]['even'])}"
        here = f"rank {wanted.rank} of {wanted.world}, {_evenly(wanted.even)}"
        raise StateMismatch(
            f"the state is of {there}, and this is {here}; give load_state_dict the states of all "
            f"{world} ranks, as a list, and what is left is shared out anew"
        )
    if any((s["epoch"], s["before"]) != (states[0]["epoch"], states[0]["before"]) for s in states):
        epochs = ", ".join(f"{state['epoch']} of rank {state['rank']}" for state in states)
        raise StateMismatch(
            f"the states of the ranks are of epochs {epochs}; only ranks in the same epoch can be "
            f"shared out anew: begin an epoch with set_epoch()"
        )
    before = Runs(states[0]["before"])
    for state in states:
        shard = _shard_of(state)
        for start, stop in Runs(state["done"]):
            for position in shard.positions(np.arange(start, stop, dtype=np.int64)).tolist():
                before.add(position, position + 1)
    shard = Shard(
        wanted.length,
        states[0]["epoch"],
        wanted.seed,
        wanted.rank,
        wanted.world,
        wanted.even,
        tuple(before),
    )
    return shard, Runs()


def _evenly(even: int) -> str:
    return f"in whole batches of {even}" if even else "without drop_last"


def _shard_of(state: Mapping[str, Any]) -> Shard:
    fields = ("length", "epoch", "seed", "rank", "world", "even")
    before = tuple((start, stop) for start, stop in state["before"])
    return Shard(**{field: state[field] for field in fields}, before=before)


def check_state(state: Any, kind: str) -> None:
    """Refuse what is no loader's state, or another kind's.

    :raises StateMismatch: it is.
    """
    if not isinstance(state, Mapping) or state.get("version") != STATE_VERSION:
        raise StateMismatch(
            f"a state is what state_dict() of this release returned, got {str(state)[:80]}"
        )
    if state["kind"] != kind:
        raise StateMismatch(
            f"the state is of a loader of {_KINDS[state['kind']]}, and this one is of "
            f"{_KINDS[kind]}"
        )


def _check_same(state: Mapping[str, Any], wanted: Shard, *fields: str) -> None:
    for field in fields:
        if state[field] != getattr(wanted, field):
            raise StateMismatch(
                f"{field} is {state[field]} in the state and {getattr(wanted, field)} here: the "
                f"rest of that epoch would be other indices; make the loader as it was"
            )


_KINDS = {"indexed": "indexed products", "stream": "a stream"}
