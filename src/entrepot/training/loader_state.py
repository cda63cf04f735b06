"""How far who trains has come: what was served, whatever was made beyond it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from entrepot.errors import StateMismatch
from entrepot.training.epochs import STATE_VERSION, Runs, Shard, check_state, restored, state_of
from entrepot.training.loader_arguments import Given
from entrepot.training.loader_feed import Packet


def states_of(given: Any) -> list[Any]:
    """The states of ranks in what ``load_state_dict`` was given; what is none is refused later."""
    if isinstance(given, Mapping | str | bytes) or not isinstance(given, Iterable):
        return [given]
    return list(given)


class Watermark:
    """The consumer's place: an epoch, and what of it was served.

    :ivar epoch: its number.
    :ivar done: the offsets that were served of it, for indexed products.
    :ivar count: samples that were served of it.
    :ivar total: samples that were served at all; over resumes, for a stream.
    """

    def __init__(self, given: Given) -> None:
        self._given = given
        self.total = 0
        self.to_epoch(0)

    def to_epoch(self, epoch: int) -> None:
        """At its beginning."""
        self.epoch = epoch
        self.done = Runs()
        self.count = 0
        self._shard: Shard | None = None

    def shard(self) -> Shard | None:
        """What this rank has of the epoch, of indexed products."""
        if self._shard is None and self._given.indexed:
            self._shard = self._given.shard(self.epoch)
        return self._shard

    def left(self) -> int | None:
        """Samples until the end of the epoch; None where there is none."""
        given = self._given
        shard = self.shard()
        if shard is not None:
            return len(shard) - self.done.count
        if given.length is None:
            return None
        left = given.length - self.count
        return 0 if given.drop_last and left < (given.batch_size or 1) else max(left, 0)

    def take(self, packet: Packet) -> None:
        """Those were served."""
        for offset in packet.offsets:
            self.done.add(offset, offset + 1)
        self.count += packet.samples
        self.total += packet.samples

    def state(self) -> dict[str, Any]:
        """What :meth:`load` takes, and JSON can say."""
        shard = self.shard()
        if shard is not None:
            return state_of(shard, self.done)
        return {
            "version": STATE_VERSION,
            "kind": "stream",
            "epoch": self.epoch,
            "count": self.count,
            "total": self.total,
        }

    def load(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Be where this rank was, or where all of them were.

        :raises StateMismatch: they are not of such a loader; then nothing has changed.
        """
        if not states:
            raise StateMismatch("no state was given")
        if self._given.indexed:
            shard, done = restored(states, self._given.shard(0))
            self.to_epoch(shard.epoch)
            self._shard, self.done = shard, done
            self.count = done.count
        else:
            check_state(states[0], "stream")
            self.to_epoch(states[0]["epoch"])
            self.count, self.total = states[0]["count"], states[0]["total"]
