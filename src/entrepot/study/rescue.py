"""Trials that fell silent go on elsewhere, and points of one's own come first."""

from __future__ import annotations

from entrepot.errors import PointError, TrialLost
from entrepot.store.base import Store
from entrepot.store.record import EMPTY
from entrepot.study.checks import whole
from entrepot.study.goals import Goal
from entrepot.study.held import Held, again, attempts_of, claimed, point_text, with_, write
from entrepot.study.looking import next_free
from entrepot.study.naming import checked_study, readable_study
from entrepot.study.space import Point
from entrepot.study.trials import (
    FAILED,
    RELEASED,
    Attempt,
    checked_who,
    meta_of,
    silent_attempts,
    trial_name,
)

MAX_ATTEMPTS = 3
"""Attempts at a trial that may fall silent, before it is written off."""


def rescue(
    store: Store,
    *,
    study: str,
    trial: int,
    me: str,
    max_attempts: int = MAX_ATTEMPTS,
) -> Held | None:
    """Begin the next attempt at a trial whose machine is gone, with the point that it had.

    After ``max_attempts`` that fell silent the next is claimed as a tombstone: the trial has
    failed. Attempts that were released are not counted.

    :returns: the attempt, now ours; None when somebody was faster, it is finished, or given up.
    :raises TrialLost: there is no such trial.
    """
    whole("max_attempts", max_attempts, 1)
    checked_who(me)
    attempts = attempts_of(store, readable_study(study), whole("trial", trial, 0))
    if not attempts:
        raise TrialLost(study, trial, None, "nobody has taken it")
    if any(attempt.finished for attempt in attempts.values()):
        return None
    last = attempts[max(attempts)]
    if silent_attempts(attempts.values()) >= max_attempts:
        _bury(store, last, study, me)
        return None
    return again(store, last, study, me)


def _bury(store: Store, last: Attempt, study: str, me: str) -> None:
    """Nobody writes another's record: the next attempt says that all before it were lost."""
    tomb = with_(
        last.meta,
        {"state": FAILED, "because": "lost", "who": me, "score": "", "tail": "0", "curve": ""},
    )
    store.claim(trial_name(study, last.trial, last.attempt + 1), EMPTY, meta_of(tomb))


def enqueue(
    store: Store, point: Point | str, *, study: str, me: str, goal: Goal | None = None
) -> int:
    """Have a point tried before any that a sampler would choose, and return its trial's number.

    The trial is claimed and released: whoever looks for work next may have it at once.
    """
    text, _ = point_text(point)
    if not text and not isinstance(point, Point):
        raise PointError("an empty text is no point")
    trial = next_free(store, study=checked_study(study))
    while True:
        held = claimed(store, point, study=study, trial=trial, me=me, goal=goal)
        if held is not None:
            write(store, held, [], state=RELEASED)
            return trial
        trial += 1
