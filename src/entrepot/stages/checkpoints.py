"""A run's checkpoints in a store, and which of several servers' count.

Each time that a run is begun, or restored, its server claims the next *generation*: a record
``stages/<stage>/<run>/c<config>/<generation>``, which nobody else gets. A server writes to its own
generation alone, and the highest is the one that is restored. So one that was thought dead, and
goes on, cannot put its weights in the place of those that took over.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from entrepot.errors import NoCheckpoint
from entrepot.store import EMPTY, Record, Store

KEPT = 2
"""Checkpoints of a run: who uses it may be a step behind."""


@dataclass
class Generation:
    """One server's hold on a run.

    :ivar kept: step and digest of its checkpoints, the newest first.
    """

    name: str
    kept: list[tuple[int, str]] = field(default_factory=list)


class Checkpoints:
    """Those of one stage."""

    def __init__(self, store: Store, stage: str) -> None:
        self._store = store
        self._stage = stage

    def begin(self, run: str, config: str, kept: list[tuple[int, str]] | None = None) -> Generation:
        """The run's next generation, which begins with these checkpoints."""
        kept = kept or []
        prefix = self._prefix(run, config)
        number = max((_number(each) + 1 for each in self._records(prefix)), default=0)
        while True:
            name = f"{prefix}{number:06d}"
            if self._store.claim(name, _digest(kept), _meta(kept)):
                return Generation(name, list(kept))
            number += 1

    def save(self, generation: Generation, step: int, data: bytes) -> None:
        """Keep a checkpoint; one of the same step is replaced."""
        digest = str(self._store.put(data))
        older = [each for each in generation.kept if each[0] != step]
        kept = [(step, digest), *older][:KEPT]
        self._store.bind(generation.name, _digest(kept), _meta(kept))
        generation.kept = kept

    def newest(self, run: str, config: str, step: int | None = None) -> tuple[int, bytes]:
        """The step and the bytes of the newest checkpoint, or of the one of that step.

        :raises NoCheckpoint: there is none.
        """
        kept = self.kept(run, config)
        for at, digest in kept:
            if step is None or at == step:
                return at, self._store.get(digest)
        there = ", ".join(str(at) for at, _ in kept)
        what = "" if step is None else f" at step {step}"
        raise NoCheckpoint(
            f"the store {self._store.url} has no checkpoint of run {run!r} of stage "
            f"{self._stage!r}{what} ({f'it has step {there}' if there else 'it has none'}); begin "
            f"anew with another TorchStage, and call checkpoint(), or serve with checkpoint_every",
            self._stage,
        )

    def kept(self, run: str, config: str) -> list[tuple[int, str]]:
        """Step and digest of the checkpoints that count, the newest first."""
        records = self._records(self._prefix(run, config))
        return _kept(records[-1]) if records else []

    def load(self, generation: Generation) -> bytes:
        """Its newest checkpoint's bytes."""
        return self._store.get(generation.kept[0][1])

    def _prefix(self, run: str, config: str) -> str:
        digest = hashlib.sha256(config.encode()).hexdigest()[:12]
        return f"stages/{self._stage}/{run}/c{digest}/"

    def _records(self, prefix: str) -> list[Record]:
        """By generation; those of a run whose name begins as this one's are not among them."""
        found = self._store.scan(prefix)
        return [each for each in found if each.name[len(prefix) :].isdecimal()]


def _number(record: Record) -> int:
    return int(record.name.rpartition("/")[2])


def _digest(kept: list[tuple[int, str]]) -> str:
    return kept[0][1] if kept else EMPTY


def _meta(kept: list[tuple[int, str]]) -> dict[str, str]:
    """Text, in which gc finds the digests."""
    return {f"step-{number}": f"{step} {digest}" for number, (step, digest) in enumerate(kept)}


def _kept(record: Record) -> list[tuple[int, str]]:
    kept = []
    for number in range(KEPT):
        step, _, digest = record.meta.get(f"step-{number}", "").partition(" ")
        if step.isdecimal():
            kept.append((int(step), digest))
    return kept
