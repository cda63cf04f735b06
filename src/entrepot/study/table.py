"""All trials of a study as rows, the best first. Pure: what it is made of was read before."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from entrepot.errors import ConfigurationError, PointError
from entrepot.study import text
from entrepot.study.fronts import front
from entrepot.study.goals import Goal, Score, checked_goal, losses
from entrepot.study.influence import influence
from entrepot.study.text import Value
from entrepot.study.trials import DONE, FAILED, PRUNED, RELEASED, RUNNING, Attempt

SHOWN = 50
"""Rows of a table's text."""

CELL_CHARS = 40

_WORDS: dict[str, Value] = {"True": True, "False": False, "None": None}
_FIRST = frozenset("0123456789+-.")
"""What a number begins with."""

_ORDER = {DONE: 0, PRUNED: 1, RUNNING: 2, RELEASED: 3, FAILED: 4}


@dataclass(frozen=True, slots=True)
class Row:
    """A trial.

    :ivar scores: what it reached: for one goal under ``score``, for several under each one's name.
    :ivar best: whether it is the best of all or, of several goals, on the Pareto front.
    :ivar values: the knobs; of a point that is not ``name=value,...`` there are none.
    """

    trial: int
    attempt: int
    state: str
    scores: Mapping[str, float]
    best: bool
    values: Mapping[str, Value]
    attempted: Attempt = field(repr=False)

    @property
    def reports(self) -> int:
        """How many numbers it reported."""
        return int(self.attempted.meta.tail.partition(":")[0])


@dataclass(frozen=True)
class Table:
    """The trials of a study.

    :ivar goal: what better means; None where nobody said so.
    :ivar rows: the best first: what is done, then what was pruned, runs, was handed back, failed.
        Without a goal, in the order of the trials.
    :ivar knobs: every knob that a point has.
    :ivar spaces: how many spaces the points are from.
    :ivar unfit: trials that are done with a score which is none of the goal's.
    """

    goal: Goal | None
    rows: tuple[Row, ...]
    knobs: tuple[str, ...]
    spaces: int
    unfit: int

    @cached_property
    def scores(self) -> tuple[str, ...]:
        """The names of the scores."""
        if isinstance(self.goal, Mapping):
            return tuple(self.goal)
        return tuple(dict.fromkeys(name for row in self.rows for name in row.scores)) or ("score",)

    @cached_property
    def states(self) -> Counter[str]:
        """How many trials are in each state."""
        return Counter(row.state for row in self.rows)

    @cached_property
    def best(self) -> list[Row]:
        """The best, or the Pareto front."""
        return [row for row in self.rows if row.best]

    @property
    def order(self) -> str:
        """How the rows are ordered, in words."""
        if self.goal is None:
            return "in the order of the trials, since none of them says what better means"
        if isinstance(self.goal, str):
            return f"best first ({self.goal})"
        several = ", ".join(f"{name} {goal}" for name, goal in self.goal.items())
        return f"the Pareto front first ({several})"

    def influence(self, score: str | None = None) -> dict[str, float]:
        """How much each knob decides; see :func:`entrepot.study.influence.influence`.

        :param score: of several goals, which.
        """
        wanted = self.scores[0] if score is None else score
        return influence(
            [
                (row.values, row.scores[wanted])
                for row in self.rows
                if row.state == DONE and wanted in row.scores
            ]
        )

    def records(self) -> list[dict[str, Any]]:
        """Each row as one flat dictionary, with the same names in all of them."""
        return [self.record(row) for row in self.rows]

    def record(self, row: Row) -> dict[str, Any]:
        """A row as a flat dictionary; what it does not have is None."""
        said = row.attempted.meta
        several = self.scores != ("score",)
        return {
            "trial": row.trial,
            "attempt": row.attempt,
            "state": row.state,
            "best": row.best,
            **{f"score.{name}" if several else name: row.scores.get(name) for name in self.scores},
            "reports": row.reports,
            "took_s": row.attempted.took_s,
            "when": row.attempted.when,
            "who": said.who,
            "because": said.because or None,
            "space": said.space or None,
            "point": said.point,
            **{f"point.{name}": row.values.get(name) for name in self.knobs},
        }

    def __len__(self) -> int:
        return len(self.rows)

    def __str__(self) -> str:
        """The first rows, aligned."""
        finished = sum(1 for row in self.rows if row.attempted.finished)
        scored = sum(1 for row in self.rows if row.scores)
        head = f"{len(self.rows):,} trials, {finished:,} finished, {scored:,} scored; {self.order}"
        names = ["", "trial", "state", *map(shown, (*self.scores, "reports", *self.knobs))]
        lines = [names]
        for row in self.rows[:SHOWN]:
            mark = "*" if row.best else ""
            scores = [shown(row.scores.get(name)) for name in self.scores]
            knobs = [shown(row.values[name]) if name in row.values else "" for name in self.knobs]
            lines.append([mark, str(row.trial), row.state, *scores, str(row.reports), *knobs])
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        said = [
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in lines
        ]
        if len(self.rows) > SHOWN:
            said.append(f"... and {len(self.rows) - SHOWN:,} more")
        return "\n".join([head, *said])


def table(attempts: Iterable[Attempt], goal: Goal | None = None) -> Table:
    """The table of the attempts that speak.

    :param goal: what better means; by default what the trial that was written last says.
    :raises ConfigurationError: the goal is none.
    """
    attempts = sorted(attempts, key=lambda one: one.trial)
    goal = said_goal(attempts) if goal is None else checked_goal(goal)
    scores = [one.score for one in attempts]
    reached = [_losses(score, goal) for score in scores]
    best = _best(attempts, reached, goal)
    places = list(range(len(attempts)))
    if goal is not None:
        several = not isinstance(goal, str)
        places.sort(
            key=lambda place: (several and place not in best, _key(attempts[place], reached[place]))
        )
    values = [values_of(one.meta.point) for one in attempts]
    return Table(
        goal,
        tuple(
            Row(
                attempts[place].trial,
                attempts[place].attempt,
                attempts[place].state,
                _named(scores[place]),
                place in best,
                values[place],
                attempts[place],
            )
            for place in places
        ),
        tuple(dict.fromkeys(name for each in values for name in each)),
        len({one.meta.space for one in attempts}),
        sum(
            1
            for one, loss in zip(attempts, reached, strict=True)
            if goal is not None and one.state == DONE and loss is None
        ),
    )


def leaders(
    attempts: Iterable[Attempt], goal: Goal | None = None
) -> tuple[Goal | None, list[Attempt]]:
    """What better means, and the best or the Pareto front: those that :func:`table` would mark.

    Cheaper than a table, since it reads no points.
    """
    attempts = list(attempts)
    goal = said_goal(attempts) if goal is None else checked_goal(goal)
    if goal is None:
        return None, []
    done = sorted((one for one in attempts if one.state == DONE), key=lambda one: one.trial)
    best = _best(done, [_losses(one.score, goal) for one in done], goal)
    return goal, [done[place] for place in sorted(best)]


def said_goal(attempts: Iterable[Attempt]) -> Goal | None:
    """What better means, as the trial that was written last says; None if none does."""
    said = [one for one in attempts if one.meta.goal]
    newest = max(said, key=lambda one: (one.when, one.trial), default=None)
    return None if newest is None else newest.goal


def values_of(said: str) -> dict[str, Value]:
    """The knobs of a point's text, without its space: what looks like a number is one.

    Empty for a text that is not ``name=value,...``.
    """
    found: dict[str, Value] = {}
    for part in said.split(",") if said else ():
        name, separator, value = part.partition("=")
        if not separator:
            return {}
        try:
            found[text.unescape(name)] = _value(value)
        except PointError:
            return {}
    return found


def _value(said: str) -> Value:
    if said in _WORDS:
        return _WORDS[said]
    if said[:1] in _FIRST:
        is_whole = not any(sign in said for sign in ".eE")
        try:
            return text.read_int(said) if is_whole else text.read_float(said)
        except PointError:
            pass
    return text.unescape(said)


def shown(value: Value) -> str:
    """A score or a knob's value for people: six digits, and not too long; nothing for None."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}"
    said = "".join(
        sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in str(value)
    )
    return said if len(said) <= CELL_CHARS else said[: CELL_CHARS - 1] + "…"


def _named(score: Score | None) -> Mapping[str, float]:
    if score is None:
        return {}
    return score if isinstance(score, Mapping) else {"score": score}


def _losses(score: Score | None, goal: Goal | None) -> tuple[float, ...] | None:
    """The score as numbers of which lower is better; None where it is none of the goal's."""
    if score is None or goal is None:
        return None
    try:
        found = losses(score, goal)
    except ConfigurationError:
        return None
    return tuple(math.inf if math.isnan(one) else one for one in found)


def _key(attempt: Attempt, loss: tuple[float, ...] | None) -> tuple[Any, ...]:
    return (_ORDER[attempt.state], loss is None, loss or (), attempt.trial)


def _best(
    attempts: list[Attempt], reached: list[tuple[float, ...] | None], goal: Goal | None
) -> set[int]:
    """Where the best stand: one, the first of equals; or a front."""
    done = [
        (place, loss)
        for place, (one, loss) in enumerate(zip(attempts, reached, strict=True))
        if one.state == DONE and loss is not None
    ]
    if isinstance(goal, str):
        return {min(done, key=lambda pair: pair[1])[0]} if done else set()
    return {done[place][0] for place in front([loss for _, loss in done])}
