"""``entrepot study curves``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from entrepot.cli import output
from entrepot.cli.options import Json
from entrepot.cli.study_reading import Name, Url, looking
from entrepot.cli.study_sparks import WIDTH, spark
from entrepot.errors import StudyError
from entrepot.study.plain import plain

if TYPE_CHECKING:
    from entrepot.study.drawn import Curve
    from entrepot.study.table import Row


def command(
    url: Url,
    name: Name,
    trial: Annotated[
        list[int] | None,
        typer.Option("--trial", metavar="N", min=0, help="Only this trial; may be given again."),
    ] = None,
    rows: Annotated[
        int, typer.Option("--rows", metavar="N", min=1, help="Trials to show; --json shows all.")
    ] = 20,
    json: Json = False,
) -> None:
    """Show what each trial reported, as a small curve.

    The best trial is first. Each curve is drawn from its own lowest report to its highest; a dot
    stands for NaN. A long curve of a trial that runs is its best so far.

    \b
    Examples:
      entrepot study curves /mnt/shared spam
      entrepot study curves /mnt/shared spam --trial 7 --json
    """
    from entrepot.study.drawn import drawn
    from entrepot.study.table import table

    with looking(url, name) as (store, found):
        wanted = set(trial or ())
        missing = sorted(wanted - found.trials.keys())
        if missing:
            raise StudyError(f"{name!r:.100} has no trial {missing[0]}; it has {len(found):,}")
        chosen = [row for row in table(found).rows if row.trial in wanted or not wanted]
        told = [row for row in chosen if row.reports]
        shown = told if json else told[:rows]
        curves = drawn(store, [row.attempted for row in shown])
    for row in shown:
        curve = curves.get(row.trial, ())
        if json:
            output.emit(
                "curve",
                trial=row.trial,
                attempt=row.attempt,
                state=row.state,
                reports=row.reports,
                whole=len(curve) == row.reports,
                curve=[[at, plain(value)] for at, value in curve],
            )
        else:
            output.say(_line(row, curve))
    if json:
        return
    if len(told) > rows:
        output.say(f"... and {len(told) - rows:,} more; --rows shows them")
    if len(told) < len(chosen):
        output.say(f"{len(chosen) - len(told):,} trials reported nothing")


def _line(row: Row, curve: Curve) -> str:
    from entrepot.study.table import shown

    values = [value for _, value in curve]
    ends = f"{shown(values[0])} to {shown(values[-1])}" if values else "cannot be read"
    what = f"{row.reports:,} reports"
    mark = "*" if row.best else " "
    return f"{mark} {row.trial:>5}  {row.state:<8}  {spark(values):<{WIDTH}}  {what}, {ends}"
