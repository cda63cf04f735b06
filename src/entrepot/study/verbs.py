"""The words of a study over a store: take a trial, report it, and look at what others do.

The same loop on every machine is all that it takes::

    for trial in range(100):
        point = sampler.ask(space, trial, finished(store, space, study="spam"))
        if not take(store, point, study="spam", trial=trial, me=me, goal="min"):
            continue  # somebody else has that one
        ...
        report(store, point, reports, study="spam", trial=trial, me=me, state="done", goal="min")

Each word reads what is new in the store and no more: the process keeps what it has read.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import SupportsFloat

from entrepot.errors import PointError
from entrepot.store.base import Store
from entrepot.study.checks import whole
from entrepot.study.goals import Goal, Score
from entrepot.study.held import claimed, held_by, point_text, write
from entrepot.study.naming import checked_study
from entrepot.study.space import Point
from entrepot.study.trials import RUNNING, checked_state, checked_who


def take(
    store: Store,
    point: Point | str | None,
    *,
    study: str,
    trial: int,
    me: str,
    attempt: int = 0,
    goal: Goal | None = None,
) -> bool:
    """Claim a trial, and say whether it is ours: of all machines exactly one is told True.

    :param point: what the trial tries; a sampler's answer.
    :param trial: its number, from 0.
    :param me: who runs it, for people.
    :param attempt: 0; for a rescue the next one, see :func:`rescue`.
    :param goal: what better means, for readers who were not told.
    :raises ConfigurationError: a name, number or goal that cannot be; nothing was written.
    :raises GoalMismatch: others take this study's trials with another goal; nothing was written.
    :raises PointError: no point: the sampler had none left.
    :raises StoreError: the store cannot be written.
    """
    taken = claimed(store, point, study=study, trial=trial, me=me, attempt=attempt, goal=goal)
    return taken is not None


def report(
    store: Store,
    point: Point | str,
    reports: Iterable[SupportsFloat],
    *,
    study: str,
    trial: int,
    me: str,
    attempt: int | None = None,
    state: str = RUNNING,
    score: Score | None = None,
    because: str = "",
    goal: Goal | None = None,
    checkpoint: str = "",
) -> None:
    """Write what a trial has come to: one record, written again as it goes.

    :param reports: all reports so far, in order.
    :param attempt: by default the one that this process took.
    :param state: ``running``, ``done``, ``pruned``, ``failed``, or ``released``: another may have
        it at once.
    :param score: by default the last report, of a trial that is done.
    :param because: why it was pruned or failed.
    :param checkpoint: the digest of a blob to go on from, which gc then leaves alone.
    :raises StudyError: a state or score that cannot be; nothing was written.
    :raises ConfigurationError: a goal other than the trial was taken with, and the like.
    :raises TrialLost: another attempt was begun, or this one is finished. What is written under
        its own attempt is harmless; go on with the next trial.
    """
    checked_study(study)
    whole("trial", trial, 0)
    checked_who(me)
    checked_state(state)
    held = held_by(store, study, trial, attempt, me)
    text, _ = point_text(point)
    if text != held.point:
        raise PointError(
            f"trial {trial} of {study!r} was taken with the point {held.point[:200]!r}, and is "
            f"reported with {text[:200]!r}"
        )
    write(
        store,
        held,
        reports,
        state=state,
        score=score,
        because=because,
        goal=goal,
        checkpoint=checkpoint,
    )
