"""``entrepot study best``."""

from __future__ import annotations

from entrepot.cli import output
from entrepot.cli.options import Json
from entrepot.cli.study_reading import Name, Url, in_scores, looking, said_row
from entrepot.errors import StudyError

POINT_CHARS = 2000


def command(url: Url, name: Name, json: Json = False) -> None:
    """Print the best trial, or the Pareto front.

    A trial a line: its number, its score, its point as `space.read` takes it. Of several goals,
    every trial that no other beats in all of them.

    \b
    Examples:
      entrepot study best /mnt/shared spam
      entrepot study best /mnt/shared spam --json
    """
    from entrepot.study.table import leaders, table

    with looking(url, name) as (_, found):
        goal, best = leaders(found)
    made = table(best, goal)
    if not best:
        why = (
            "no trial is done yet"
            if goal is not None or not found.states["done"]
            else "no trial says what better means; give `take` or the study a goal"
        )
        raise StudyError(f"{name!r:.100} has no best: {why}")
    for row in made.best:
        if json:
            output.emit("best", goal=goal, **said_row(row))
        else:
            point = output.shown(row.attempted.meta.point, POINT_CHARS)
            output.say(f"trial {row.trial}  {in_scores(row)}  {point}")
