"""What all who work on a study have agreed on, written down once: its goal.

Where one makes the score small and another makes it large, neither a sampler nor a pruner, nor who
asks for the best, can say what better is. So whoever comes first claims the record, with what it
searches for, and it is never written again::

    <study>/space/goal      goal   min, max, or {"name": "min"} as JSON
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from entrepot.errors import GoalMismatch
from entrepot.store.base import Store
from entrepot.store.record import EMPTY
from entrepot.study.goals import Goal
from entrepot.study.trials import Attempt, read_goal, write_goal


def goal_name(study: str) -> str:
    """The name of the record."""
    return f"{study}/space/goal"


def agreed_goal(store: Store, study: str) -> Goal | None:
    """The goal that is written down; None where none is, or where it cannot be read.

    :raises StoreError: the store cannot be read.
    """
    record = store.resolve(goal_name(study))
    try:
        return None if record is None else read_goal(record.meta.get("goal", ""))
    except ValueError:  # somebody wrote it by hand
        return None


def agree(store: Store, study: str, goal: Goal, begun: Callable[[], Iterable[Attempt]]) -> None:
    """Have ``goal`` be the study's, or find that it is.

    :param begun: its trials, asked for where nothing is written down: the first of those that
        say a goal has spoken for a study of before.
    :raises GoalMismatch: it is another.
    :raises StoreError: the store cannot be read or written.
    """
    found = agreed_goal(store, study)
    if found is None:
        said = min((one for one in begun() if one.goal), key=lambda one: one.trial, default=None)
        first = goal if said is None or said.goal is None else said.goal
        if not store.read_only:
            won = store.claim(goal_name(study), EMPTY, {"goal": write_goal(first)})
            found = first if won else agreed_goal(store, study)
        else:
            found = first
    check_goal(study, found, goal)


def check_goal(study: str, agreed: Goal | None, goal: Goal) -> None:
    """:raises GoalMismatch: another one was agreed on."""
    if agreed is not None and agreed != goal:
        raise GoalMismatch(study, agreed, goal)
