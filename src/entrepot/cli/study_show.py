"""``entrepot study show``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from entrepot.cli import output
from entrepot.cli.options import Json
from entrepot.cli.study_reading import (
    NAME_CHARS,
    Name,
    Stale,
    Url,
    abandoned_in,
    best_line,
    in_states,
    line_for,
    looking,
    said_row,
    unreadable,
)
from entrepot.study.looking import STALE

if TYPE_CHECKING:
    from rich.console import RenderableType

    from entrepot.store.base import Store
    from entrepot.study.looking import Abandoned
    from entrepot.study.table import Row, Table

CHARS = 24
FAILURES = 3
NAMED = 10
"""Abandoned trials that are named without --json."""


def command(
    url: Url,
    name: Name,
    rows: Annotated[
        int, typer.Option("--rows", metavar="N", min=0, help="Trials to show; --json shows all.")
    ] = 20,
    html: Annotated[
        Path | None,
        typer.Option(
            "--html", metavar="FILE", help="Write a page with charts instead, complete in one file."
        ),
    ] = None,
    stale: Stale = STALE,
    json: Json = False,
) -> None:
    """Show one study: its trials, the best first, and what is amiss.

    How much each knob decides is Spearman's rank correlation with the score, from 0 to 1. Trials
    that were silent for --stale seconds are listed, with the command that hands them on.

    \b
    Examples:
      entrepot study show /mnt/shared spam
      entrepot study show /mnt/shared spam --html spam.html
    """
    from entrepot.study.table import table

    with looking(url, name) as (store, found):
        made = table(found)
        if html is not None:
            _write_page(store, name, made, html, json=json)
            return
        silent = abandoned_in(url, found, stale)
        if json:
            _emit(name, made, silent, unreadable(store), found.strangers)
            return
        console = output.console()
        at = output.shown(store.url, 2 * NAME_CHARS)
        console.print(f"{output.shown(name, NAME_CHARS)} in {at}", soft_wrap=True)
        console.print(f"{in_states(made.states) or 'no trials yet'}; {made.order}")
        for line in _remarks(made):
            console.print(line, soft_wrap=True)
        if made.rows and rows:
            console.print()
            console.print(grid(made, made.rows[:rows], console.width))
            if len(made) > rows:
                console.print(f"... and {len(made) - rows:,} more; --rows shows them")
        for line in _amiss(silent, url, name, stale):
            console.print(line, soft_wrap=True)


def _write_page(store: Store, name: str, made: Table, path: Path, *, json: bool) -> None:
    from entrepot.study.page import study_page
    from entrepot.study.writing import write_whole

    data = study_page(store, name, made).encode()
    write_whole(path, data)
    if json:
        output.emit("page", file=str(path), trials=len(made), nbytes=len(data))
    else:
        output.say(f"wrote {path}: {len(made):,} trials, {len(data):,} bytes; open it in a browser")


def _remarks(made: Table) -> list[str]:
    said = []
    if best := best_line(made):
        said.append(f"best {best}")
    if made.goal is not None:
        for score in made.scores:
            found = made.influence(score)
            if any(found.values()):
                several = "" if made.scores == ("score",) else f" for {output.shown(score, CHARS)}"
                listed = ", ".join(
                    f"{output.shown(knob, CHARS)} {share:.2f}"
                    for knob, share in list(found.items())[:NAMED]
                )
                said.append(f"what decides{several}: {listed}")
    said += _failures(made)
    if made.spaces > 1:
        said.append(f"the points are from {made.spaces} spaces")
    if made.unfit:
        said.append(f"{made.unfit:,} trials have a score that is none of the goal's")
    return said


def _failures(made: Table) -> list[str]:
    """Why trials failed, the most frequent first."""
    trials: dict[str, list[int]] = {}
    for row in made.rows:
        if row.state == "failed":
            trials.setdefault(row.attempted.meta.because or "nobody said why", []).append(row.trial)
    by_count = sorted(trials.items(), key=lambda item: -len(item[1]))
    return [
        f"failed, {len(which):,} times, as trial {min(which)}: {output.shown(why, 120)}"
        if len(which) > 1
        else f"failed, trial {which[0]}: {output.shown(why, 120)}"
        for why, which in by_count[:FAILURES]
    ]


def _amiss(silent: list[Abandoned] | None, url: str, name: str, stale: float) -> list[str]:
    if silent is None:
        return ["", "how long trials have been silent is not known: the store cannot be written to"]
    if not silent:
        return []
    said = ["", f"silent for {stale:g} s or more:"]
    for one in silent[:NAMED]:
        who = output.shown(one.who, NAME_CHARS)
        said.append(f"  trial {one.trial}, attempt {one.attempt}, {who}: {one.silent_s:,.0f} s")
    if len(silent) > NAMED:
        said.append(f"  ... and {len(silent) - NAMED:,} more")
    option = "" if stale == STALE else f" --stale {stale:g}"
    return [*said, f"{line_for('rescue', url, name)}{option}   hands them to whoever works next"]


def _emit(
    name: str,
    made: Table,
    silent: list[Abandoned] | None,
    bad: dict[str, int],
    strangers: int,
) -> None:
    output.emit(
        "study",
        name=name,
        trials=len(made),
        states=dict(made.states),
        goal=made.goal,
        knobs=made.knobs,
        influence={score: made.influence(score) for score in made.scores},
        abandoned=None
        if silent is None
        else [
            {
                "trial": one.trial,
                "attempt": one.attempt,
                "silent_s": one.silent_s,
                "who": one.who,
                "point": one.point,
            }
            for one in silent
        ],
        spaces=made.spaces,
        unfit=made.unfit,
        unreadable=bad,
        strangers=strangers,
    )
    for row in made.rows:
        output.emit("trial", **said_row(row))


def grid(made: Table, rows: Sequence[Row], width: int, **more: list[str]) -> RenderableType:
    """Rows for a person, in ``width`` columns: knobs a column each if they fit, else the point.

    :param more: columns besides, by their heads, a text a row.
    """
    from rich import box
    from rich.table import Table as Grid
    from rich.text import Text

    from entrepot.study.table import shown

    heads = ["", "trial", "state", *map(shown, made.scores), "reports", *more]
    cells = [
        [
            "*" if row.best else "",
            f"{row.trial}.{row.attempt}" if row.attempt else f"{row.trial}",
            row.state,
            *(shown(row.scores.get(name)) for name in made.scores),
            str(row.reports),
            *(column[place] for column in more.values()),
        ]
        for place, row in enumerate(rows)
    ]
    knobs = [
        [shown(row.values[knob]) if knob in row.values else "" for knob in made.knobs]
        for row in rows
    ]
    names = list(map(shown, made.knobs))
    if _width([*heads, *names], [a + b for a, b in zip(cells, knobs, strict=True)]) + 2 > width:
        # Rich would take the room for it from the other columns.
        room = max(8, width - _width(heads, cells) - 3)
        names = ["point"]
        knobs = [[output.shown(_in_short(row), room)] for row in rows]
    grid = Grid(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for head in heads:
        justify: Literal["left", "right"] = "left" if head in ("state", *more) else "right"
        grid.add_column(Text(head), justify=justify, no_wrap=True)
    for head in names:
        grid.add_column(Text(head), overflow="ellipsis", no_wrap=True)
    for left, right in zip(cells, knobs, strict=True):
        grid.add_row(*map(Text, (*left, *right)))
    return grid


def _in_short(row: Row) -> str:
    """The point with six digits a number; the text of one that has no knobs."""
    from entrepot.study.table import shown

    said = " ".join(f"{knob}={shown(value)}" for knob, value in row.values.items())
    return said or row.attempted.meta.point


def _width(heads: list[str], rows: list[list[str]]) -> int:
    from rich.cells import cell_len

    return sum(max(map(cell_len, column)) + 3 for column in zip(heads, *rows, strict=True))
