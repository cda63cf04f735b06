"""``entrepot demo``."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from entrepot.cli import output
from entrepot.cli.options import Json, LogLevel
from entrepot.cli.signals import exit_code, on_stop
from entrepot.errors import MissingExtra
from entrepot.logs import setup

if TYPE_CHECKING:
    from rich.console import Console

    from entrepot.demo.run import Summary

LABEL = 33
"""Columns of a stage's name."""


class Interrupted(BaseException):
    """A signal, on its way through whatever was going on to the exit."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__()
        self.number = number


def command(json: Json = False, log_level: LogLevel = "error") -> None:
    """Show the market at work, on real messages, and verify it all.

    A broker, three suppliers and a client, each a process, consume an epoch of two products made
    from 5,574 real SMS messages. On the way it switches products, and kills a supplier with
    kill -9. Every message must arrive exactly once, and as made here. It takes some ten seconds,
    needs nothing else on this machine, and leaves nothing behind.

    The messages are those of ENTREPOT_SMS_DATA, or of a copy near by, or are downloaded (200 KB).

    \b
    Example:
      entrepot demo
    """
    try:
        import numpy  # noqa: F401
    except ImportError as fault:
        raise MissingExtra(
            "the demonstration needs numpy, which is not installed; "
            "pip install 'entrepot[contract]'"
        ) from fault
    from entrepot.demo.run import run

    setup(log_level)
    interrupted: list[signal.Signals] = []

    def stop(number: signal.Signals) -> None:
        if not interrupted:  # the second one does not disturb the leaving
            interrupted.append(number)
            raise Interrupted(number)

    view = _View(output.console(), quiet=json)
    try:
        with on_stop(stop):
            view.headline()
            summary = run(view)
    except Interrupted as fault:
        if json:
            output.emit("interrupted", signal=fault.number.name)
        else:
            view.console.print(f"\nstopped by {fault.number.name}; nothing is left behind")
        raise typer.Exit(exit_code(fault.number)) from None
    if json:
        output.emit("demo", **summary.as_dict())
    else:
        _show(summary, view.console)


class _View:
    """Tells how it goes: a bar on a terminal while a stage runs, and a line when it is over."""

    def __init__(self, console: Console, *, quiet: bool) -> None:
        self.console = console
        self._quiet = quiet

    def headline(self) -> None:
        """What this is, before anything takes time."""
        self.say("Entrepot, a market for training data, at work on real messages\n", style="bold")

    def say(self, text: str, style: str | None = None) -> None:
        """A line."""
        if not self._quiet:
            self.console.print(text, style=style, soft_wrap=True)

    def download(self, came: int, expected: int) -> None:
        """For the few seconds of a first run."""
        if came == expected:
            self.say(f"  downloaded the messages, {came:,} bytes")

    def part(self, title: str, pid: int, does: str) -> None:
        """A process is ready."""
        self.say(f"  {title:<12} pid {pid:<8} {does}")

    @contextmanager
    def stage(self, title: str, total: int) -> Iterator[Callable[[int], None]]:
        """A bar, where there is a terminal to draw it on, and then what came of it."""
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        columns = (TextColumn(f"  {title:<{LABEL}}"), BarColumn(24), MofNCompleteColumn())
        bar = Progress(
            *columns,
            console=self.console,
            transient=True,
            disable=self._quiet or not self.console.is_terminal,
        )
        began = time.perf_counter()
        with bar:
            task = bar.add_task(title, total=total)
            yield lambda done: bar.update(task, completed=done)
        took_s = time.perf_counter() - began
        self.say(f"  {title:<{LABEL}} {total:>5,} batches in {took_s:4.1f} s")


def _show(summary: Summary, console: Console) -> None:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("  product", no_wrap=True)
    for name in ("batches", "messages", "bytes", "orders/s", "MB/s", "p50"):
        table.add_column(name, justify="right", no_wrap=True)
    for each in summary.epochs:
        table.add_row(
            f"  {each.product}",
            f"{each.batches:,}",
            f"{each.messages:,}",
            f"{each.nbytes:,}",
            f"{each.orders_per_s:,.0f}",
            f"{each.mb_per_s:.1f}",
            output.duration(each.latency_p50_s),
        )
    console.print()
    console.print(table)
    console.print()
    kill = summary.kill
    sums = [f"{each.checksum}  {each.product}" for each in summary.epochs]
    for what, *said in (
        ("messages", f"{summary.messages:,} in each epoch, each exactly once, every byte as here"),
        ("XXH3-128", *sums, "of the epochs as they came, and as made here"),
        ("switch", f"{summary.switch['dropped']} orders dropped, nothing stale served after it"),
        (
            "kill -9",
            f"{kill['supplier']} had batch {kill['batch']} in its hands; {kill['made_by']} made it",
            f"{kill['came_again_after_s'] * 1e3:,.0f} ms later; nothing lost, nothing twice",
        ),
        ("left behind", "no process, no shared memory, no file"),
    ):
        for label, line in zip((what, *[""] * len(said)), said, strict=False):
            console.print(f"  {label:<12} {line}", soft_wrap=True)
    console.print(f"\nAll of it verified, in {summary.seconds:.1f} s.", style="bold green")
    console.print(
        "Next: three terminals of your own, as README.md shows; `entrepot --help`.",
        soft_wrap=True,
    )
