"""What the trials of a study have come to, and which of them nobody runs any more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from entrepot.errors import PointError
from entrepot.store.base import Store
from entrepot.study.checks import number
from entrepot.study.goals import Goal, Score
from entrepot.study.held import history
from entrepot.study.space import Point, Space
from entrepot.study.trials import RELEASED, RUNNING, Attempt, curve_of

STALE = 3600.0
"""Seconds without a word after which a trial is called abandoned. An argument to change: longer
than the longest epoch."""


def finished(store: Store, space: Space, *, study: str) -> Sequence[tuple[Point, Score | None]]:
    """Points that are done, with their scores, by trial: what a sampler is to learn from."""
    pairs = history(store, study).observed(space)
    return [pair for pair in pairs if pair[1] is not None]


def in_flight(
    store: Store, space: Space, *, study: str, stale: float = STALE
) -> list[tuple[Point, None]]:
    """Points that somebody runs, each with None for its score, which says just that.

    :param stale: seconds after which a silent one is left out.
    """
    found = history(store, study)
    gone = {one.trial for one in abandoned(store, study=study, stale=stale)}
    running: list[tuple[Point, None]] = []
    for attempt in found.unfinished():
        if attempt.state != RUNNING or attempt.trial in gone:
            continue
        if attempt.meta.space in ("", space.digest):
            try:
                running.append((space.read(attempt.meta.point), None))
            except PointError:
                found.skipped_points["point"] += 1
    return running


@dataclass(frozen=True)
class Abandoned:
    """A trial that nobody seems to run any more.

    :ivar trial: its number.
    :ivar attempt: the attempt that fell silent.
    :ivar point: its point, as text.
    :ivar silent_s: seconds since it was heard of.
    :ivar who: who ran it.
    """

    trial: int
    attempt: int
    point: str
    silent_s: float
    who: str


def abandoned(store: Store, *, study: str, stale: float = STALE) -> list[Abandoned]:
    """Trials that have been silent for ``stale`` seconds: by the store's own clock, or because
    their record was not written while this process watched for so long.

    A folder cannot tell a machine that died from a long epoch, and neither can this: it reports,
    and the caller decides. Being wrong costs one trial that is run twice.

    A store that is open read-only has no clock, since reading it takes a write: there only what was
    watched counts.
    """
    number("stale", stale, 0)
    found = history(store, study)
    running = [attempt for attempt in found.unfinished() if attempt.state == RUNNING]
    if not running:
        return []
    now = None if store.read_only else store.now()
    silent: list[Abandoned] = []
    for attempt in running:
        seconds = found.watched_s(attempt.trial)
        if now is not None:
            seconds = max(seconds, now - attempt.when)
        if seconds >= stale:
            silent.append(
                Abandoned(
                    attempt.trial,
                    attempt.attempt,
                    attempt.meta.point,
                    seconds,
                    attempt.meta.who,
                )
            )
    return silent


def released(store: Store, *, study: str) -> list[Attempt]:
    """Trials that were handed back, and anybody may have at once."""
    return [one for one in history(store, study).unfinished() if one.state == RELEASED]


def trials(store: Store, *, study: str) -> list[Attempt]:
    """The attempt that speaks for each trial, by trial."""
    return list(history(store, study))


def curves(store: Store, *, study: str) -> dict[int, list[float]]:
    """What each trial reported, whole; long ones cost a read each. While one of those runs, only
    its tail is there, and it is left out."""
    attempts = list(history(store, study))
    blobs = store.get_many([attempt.digest for attempt in attempts])
    found: dict[int, list[float]] = {}
    for attempt, blob in zip(attempts, blobs, strict=True):
        try:
            curve = curve_of(attempt, blob)
        except ValueError:
            continue
        if curve:
            found[attempt.trial] = curve
    return found


def direction(store: Store, *, study: str) -> Goal | None:
    """What better means, as the trial that was written last says; None if none does."""
    said = [one for one in history(store, study) if one.meta.goal]
    newest = max(said, key=lambda one: (one.when, one.trial), default=None)
    return None if newest is None else newest.goal


def next_free(store: Store, *, study: str) -> int:
    """The lowest number that no trial has. Only a claim says whether it is still free."""
    return history(store, study).next_free()
