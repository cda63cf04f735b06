"""``entrepot study watch``."""

from __future__ import annotations

import heapq
import signal
import threading
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated, Any

import typer

from entrepot.cli import output
from entrepot.cli.options import Json, seconds
from entrepot.cli.study_reading import (
    NAME_CHARS,
    Name,
    Url,
    best_line,
    in_states,
    looking,
    said_row,
)
from entrepot.cli.study_show import grid
from entrepot.cli.study_sparks import spark
from entrepot.errors import StoreUnreachable
from entrepot.study.plain import plain

if TYPE_CHECKING:
    from rich.console import RenderableType

    from entrepot.store.base import Store
    from entrepot.study.history import History
    from entrepot.study.table import Row, Table

ROWS = 12
"""Trials on the screen: those that run, then those that ended last."""


def command(
    url: Url,
    name: Name,
    budget: Annotated[
        int | None,
        typer.Option(
            "--budget",
            metavar="N",
            min=1,
            help="Trials of the whole study: draws a bar, and ends when all are finished.",
        ),
    ] = None,
    interval: Annotated[
        float,
        typer.Option(
            "--interval",
            metavar="SECONDS",
            parser=seconds(0.1),
            help="Seconds between two looks at the store; 0.1 at least.",
        ),
    ] = 2.0,
    json: Json = False,
) -> None:
    """Watch a study while machines work on it.

    Each look reads what is new in the store, and no more. It ends, with exit code 0, at Ctrl-C, or
    when --budget trials are finished. With --json, or where there is no terminal, something is
    printed each time that something has changed.

    \b
    Examples:
      entrepot study watch /mnt/shared spam --budget 100
      entrepot study watch /mnt/shared spam --json
    """
    from entrepot.cli.signals import on_stop

    told = threading.Event()

    def stop(_: signal.Signals) -> None:
        told.set()

    with on_stop(stop), looking(url, name) as (store, found):
        watching = _Watching(store, found, name, budget)
        console = output.console()
        screen = _screen(console) if console.is_terminal and not json else nullcontext(None)
        with screen as live:
            is_new = True
            while True:
                if is_new or live is not None:
                    watching.look(is_new)
                    if json:
                        watching.emit()
                    elif live is not None:
                        live.update(watching.picture(console.width), refresh=True)
                    else:
                        output.say(watching.line())
                if watching.is_over or told.wait(interval):
                    return
                is_new = watching.refresh()


def _screen(console: Any) -> Any:
    from rich.live import Live

    return Live(console=console, auto_refresh=False)


class _Watching:
    """What is shown of a study, again and again."""

    def __init__(self, store: Store, found: History, name: str, budget: int | None) -> None:
        self._store = store
        self._found = found
        self._name = name
        self._budget = budget
        self._began = (time.monotonic(), self._finished)
        self._fault: str | None = None
        self._made: Table
        self._rows: list[Row]
        self._curves: list[str]

    @property
    def _finished(self) -> int:
        states = self._found.states
        return states["done"] + states["pruned"] + states["failed"]

    @property
    def is_over(self) -> bool:
        return self._budget is not None and self._finished >= self._budget

    def refresh(self) -> bool:
        """Whether anything is new. A store that cannot be reached just now is looked at again."""
        try:
            is_new = self._found.refresh()
        except StoreUnreachable as fault:
            is_new, self._fault = self._fault is None, " ".join(str(fault).split())
        else:
            is_new, self._fault = is_new or self._fault is not None, None
        return is_new

    def look(self, is_new: bool) -> None:
        from entrepot.study.drawn import drawn
        from entrepot.study.table import leaders, table

        if not is_new:
            return
        goal, best = leaders(self._found)
        running = self._found.unfinished()
        ended = heapq.nlargest(
            ROWS, (one for one in self._found if one.finished), key=lambda one: one.when
        )
        told = {one.trial: one for one in (*best, *running, *ended)}
        self._made = table(told.values(), goal)
        rows = {row.trial: row for row in self._made.rows}
        self._rows = [rows[one.trial] for one in (*running, *ended)][:ROWS]
        curves: dict[int, Any] = {}
        if self._fault is None:
            try:
                curves = drawn(self._store, [row.attempted for row in self._rows])
            except StoreUnreachable as fault:
                self._fault = " ".join(str(fault).split())
        self._curves = [
            spark([value for _, value in curves.get(row.trial, ())]) for row in self._rows
        ]

    # --- saying it ----------------------------------------------------------------------

    def emit(self) -> None:
        """One object."""
        output.emit(
            "watch",
            trials=len(self._found),
            states={state: count for state, count in self._found.states.items() if count},
            finished=self._finished,
            budget=self._budget,
            goal=self._made.goal,
            best=[said_row(row) for row in self._made.best],
            running=[
                {
                    "trial": row.trial,
                    "attempt": row.attempt,
                    "who": row.attempted.meta.who,
                    "reports": row.reports,
                    "best": plain(row.attempted.tail.last),
                    "point": row.attempted.meta.point,
                }
                for row in self._made.rows
                if row.state == "running"
            ],
            fault=self._fault,
        )

    def line(self) -> str:
        """One line, for a log."""
        of = f" of {self._budget:,}" if self._budget else ""
        said = (
            f"{self._finished:,}{of} finished: {in_states(self._found.states) or 'no trials yet'}"
        )
        best = best_line(self._made)
        return f"{said}{f'; best {best}' if best else ''}{self._trouble()}"

    def picture(self, width: int) -> RenderableType:
        """All of it, for a terminal."""
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table as Grid
        from rich.text import Text

        head = Text(
            f"{output.shown(self._name, NAME_CHARS)} in {output.shown(self._store.url, 80)}"
        )
        parts: list[RenderableType] = [head]
        if self._budget:
            bar = Grid.grid(padding=(0, 2, 0, 0))
            bar.add_row(
                ProgressBar(total=self._budget, completed=self._finished, width=40),
                Text(f"{self._finished:,} of {self._budget:,}{self._left()}"),
            )
            parts.append(bar)
        parts.append(Text(in_states(self._found.states) or "no trials yet"))
        if best := best_line(self._made):
            parts.append(Text(f"best {best}"))
        if self._rows:
            parts.append(grid(self._made, self._rows, width, curve=self._curves))
        if self._fault is not None:
            parts.append(Text(self._trouble().removeprefix("; ")))
        return Group(*parts)

    def _trouble(self) -> str:
        return "" if self._fault is None else f"; cannot look just now: {self._fault}"

    def _left(self) -> str:
        began, before = self._began
        came = self._finished - before
        if came < 2 or self._budget is None:
            return ""
        left_s = (time.monotonic() - began) / came * (self._budget - self._finished)
        return (
            f", about {left_s / 60:,.0f} min left" if left_s >= 90 else f", about {left_s:,.0f} s"
        )
