"""What was seen, as the API says it. Pure."""

from __future__ import annotations

from typing import Any

from entrepot.sidecar.studies import StudySeen
from entrepot.study.looking import Abandoned
from entrepot.study.plain import plain
from entrepot.study.table import Row
from entrepot.study.trials import Attempt


def said_study(study: StudySeen, now: float) -> dict[str, Any]:
    """A study."""
    return {
        "study": study.name,
        "trials": study.trials,
        "states": study.states,
        "goal": study.goal,
        "best": [said_row(row) for row in study.best[:100]],
        "last_write_age_s": max(0.0, now - study.newest) if study.newest else None,
        "abandoned": [said_abandoned(each) for each in study.abandoned[:100]],
    }


def said_row(row: Row) -> dict[str, Any]:
    """A trial of a table."""
    return said_trial(row.attempted)


def said_trial(attempt: Attempt) -> dict[str, Any]:
    """A trial. What of it cannot be read is None."""
    said = attempt.meta
    try:
        score = plain(attempt.score)
    except ValueError:
        score = None
    try:
        reports = int(said.tail.partition(":")[0] or 0)
    except ValueError:
        reports = 0
    return {
        "trial": attempt.trial,
        "attempt": attempt.attempt,
        "state": said.state,
        "score": score,
        "point": said.point,
        "reports": reports,
        "who": said.who,
        "because": said.because or None,
        "took_s": plain(attempt.took_s),
        "written_at": attempt.when,
    }


def said_abandoned(each: Abandoned) -> dict[str, Any]:
    """A trial that nobody seems to run."""
    return {
        "trial": each.trial,
        "attempt": each.attempt,
        "point": each.point,
        "silent_s": each.silent_s,
        "who": each.who,
    }
