"""Curves to be drawn: of some trials, whatever has become of their blobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from entrepot.errors import CorruptBlob, MissingBlob
from entrepot.store.record import EMPTY
from entrepot.study.curves import RUNGS
from entrepot.study.trials import Attempt, curve_of

if TYPE_CHECKING:
    from entrepot.store.base import Store

Curve = Sequence[tuple[int, float]]
"""Reports by their number, from 1."""


def drawn(store: Store, attempts: Sequence[Attempt]) -> dict[int, Curve]:
    """What each of the trials reported. Where the whole curve cannot be read, or is not written
    yet, the best so far at each rung stands for it; see :mod:`entrepot.study.curves`."""
    found: dict[int, Curve] = {}
    for attempt, blob in zip(attempts, _blobs(store, attempts), strict=True):
        try:
            curve = curve_of(attempt, blob)
        except ValueError:
            curve = []
        if curve:
            found[attempt.trial] = list(enumerate(curve, 1))
        elif attempt.meta.tail != "0":
            best = attempt.tail.best
            found[attempt.trial] = list(zip(RUNGS, best, strict=False))
    return found


def _blobs(store: Store, attempts: Sequence[Attempt]) -> list[bytes | None]:
    digests = [one.digest if not one.meta.curve else EMPTY for one in attempts]
    try:
        return store.get_many(digests)
    except CorruptBlob:
        return [_blob(store, digest) for digest in digests]


def _blob(store: Store, digest: str) -> bytes | None:
    try:
        return store.get(digest)
    except (CorruptBlob, MissingBlob):
        return None
