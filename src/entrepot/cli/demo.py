"""``entrepot demo``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from entrepot.cli import output
from entrepot.cli.options import Json, LogLevel
from entrepot.cli.signals import Interrupted, exit_code, interrupting
from entrepot.errors import MissingExtra
from entrepot.logs import setup

if TYPE_CHECKING:
    from rich.console import Console

    from entrepot.demo.run import Summary
    from entrepot.demo.search import Searched
    from entrepot.demo.study import Studied

LABEL = 33
"""Columns of a stage's name."""

LEAVE_S = 20.0
"""Seconds to end the parts in order after a signal. They end with this process in any case."""


def command(
    brief: Annotated[
        bool, typer.Option("--brief", help="Leave out the two searches and the page.")
    ] = False,
    keep: Annotated[
        bool,
        typer.Option("--keep", help="Go on with some trade, and the page, until Ctrl-C."),
    ] = False,
    page_port: Annotated[
        int,
        typer.Option(
            "--page-port",
            metavar="PORT",
            min=0,
            max=65_535,
            help="Of 127.0.0.1, for the page; any that is free if somebody has it.",
        ),
    ] = 8080,
    json: Json = False,
    log_level: LogLevel = "error",
) -> None:
    """Show the market at work, on real messages, and verify it all.

    A broker, three suppliers and a client, each a process, consume an epoch of two products made
    from 5,574 real SMS messages. On the way it switches products, and kills a supplier with
    kill -9. Then a supplier in another network makes an epoch of one of them again, over TCP, and
    the line to it is cut for a moment. Every message must arrive exactly once, and as made here. At
    last a student learns from two teachers, of which one is killed: it never sees a label, and
    learns to tell spam. Then two workers, which share but a folder, search for the best way to
    learn it; one is killed, and its trial is run by the other. And two search with a model of which
    one part makes words of text and another is trained elsewhere; for that it wants torch. It takes
    about a minute, needs nothing else on this machine, and leaves nothing behind but a page of that
    study.

    Two networks are two network namespaces, for which it wants root and the package iproute2; it
    takes loopback without them, and says so.

    The messages are those of ENTREPOT_SMS_DATA, or of a copy near by, or are downloaded (200 KB).

    While it runs a page at http://127.0.0.1:8080 shows the broker and the studies as they change.

    \b
    Examples:
      entrepot demo
      entrepot demo --keep
    """
    if brief and keep:
        raise typer.BadParameter("--brief has no page that --keep could keep")
    try:
        import numpy  # noqa: F401
    except ImportError as fault:
        raise MissingExtra(
            "the demonstration needs numpy, which is not installed; "
            "pip install 'entrepot[contract]'"
        ) from fault
    from entrepot.demo.run import run

    setup(log_level)
    view = _View(output.console(), json=json)
    try:
        with interrupting(LEAVE_S):
            view.headline()
            run(view, brief=brief, page_port=page_port, keep=keep)
    except Interrupted as fault:
        if view.kept:
            view.say("\nIt is over; nothing is left behind.")
            return
        if json:
            output.emit("interrupted", signal=fault.number.name)
        else:
            view.console.print(f"\nstopped by {fault.number.name}; nothing is left behind")
        raise typer.Exit(exit_code(fault.number)) from None


class _View:
    """Tells how it goes: a bar on a terminal while a stage runs, and a line when it is over."""

    def __init__(self, console: Console, *, json: bool) -> None:
        self.console = console
        self.kept = False
        self._quiet = json

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

    def page(self, url: str, why_none: str) -> None:
        """Where it can be watched."""
        self.say(f"  {'page':<12} {url or f'left out: {why_none}'}\n")

    def verified(self, summary: Summary) -> None:
        """All there is to say of it."""
        if self._quiet:
            output.emit("demo", **summary.as_dict())
        else:
            _show(summary, self.console)

    def keeping(self, url: str) -> None:
        """From now on it only goes on."""
        self.kept = True
        where = f"{url} shows it" if url else "`entrepot stats` would show it"
        self.say(f"\nThe market goes on with some trade, until Ctrl-C; {where}.\n")

    def way(self, over: str) -> None:
        """The second half begins."""
        self.say(f"\nNow over TCP, over {over}\n")

    def learning(self) -> None:
        """The last part begins."""
        self.say("\nNow a student, which learns from a teacher through the loader\n")

    def study(self) -> None:
        """Two workers begin."""
        self.say("\nNow a study: two workers search for the best way to learn it from labels\n")

    def searching(self) -> None:
        """The last part begins."""
        self.say("\nNow two workers search, with a model that is cut in three\n")

    def loss(self, now: float) -> None:
        """Of an epoch that is over."""
        self.say(f"  {'its loss':<{LABEL}} {now:11.3f}")

    @contextmanager
    def stage(
        self, title: str, total: int, unit: str = "batches"
    ) -> Iterator[Callable[[int], None]]:
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
        self.say(f"  {title:<{LABEL}} {total:>5,} {unit:<7} in {took_s:4.1f} s")


def _show(summary: Summary, console: Console) -> None:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("  product", no_wrap=True)
    for name in ("batches", "messages", "bytes", "orders/s", "MB/s", "p50"):
        table.add_column(name, justify="right", no_wrap=True)
    line = summary.line
    assert line is not None
    rows = [(f"  {each.product}", each) for each in summary.epochs]
    for name, each in (*rows, ("  the same over TCP", line.epoch)):
        table.add_row(
            name,
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
    if summary.study is not None and summary.study.table:
        for row in summary.study.table:
            console.print(f"  {row}", soft_wrap=True, highlight=False)
        console.print()
    kill, student = summary.kill, summary.student
    assert student is not None
    first, *_, last = student.losses
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
        ("TCP", line.over),
        (
            "cut",
            f"for {line.down_s:.1f} s; the supplier was given up with {line.moved} orders in hand;",
            f"mended, the next came {line.came_again_after_s:.1f} s later; nothing lost, "
            f"nothing twice",
        ),
        (
            "student",
            f"its loss fell from {first:.2g} to {last:.2g} in {student.epochs} epochs; "
            f"it saw no label and",
            f"tells spam from ham in {student.right:.1%} of messages, its teacher in "
            f"{student.teacher_right:.1%};",
            f"{student.killed} was killed on the way; nothing lost, nothing twice",
        ),
        *_studied(summary.study),
        *_searched(summary.search),
        (
            "left behind",
            "no process, no shared memory, no file"
            + (" but that page" if summary.study and summary.study.page else ""),
        ),
    ):
        for label, text in zip((what, *[""] * len(said)), said, strict=False):
            console.print(f"  {label:<12} {text}", soft_wrap=True)
    console.print(f"\nAll of it verified, in {summary.seconds:.1f} s.", style="bold green")
    console.print(
        "Next: three terminals of your own, as README.md shows; `entrepot --help`.",
        soft_wrap=True,
    )


def _studied(study: Studied | None) -> list[tuple[str, ...]]:
    if study is None:
        return []
    if study.left_out:
        return [("study", f"left out: {study.left_out}")]
    ran = " and ".join(f"{count} by {who}" for who, count in study.by.items())
    return [
        (
            "study",
            f"{study.trials} trials: {ran}; {study.pruned} of them stopped early;",
            f"{study.killed} was killed in trial {study.rescued}, and {study.heir} ran it again;",
            f"the best loss is {study.best:.3g}, as the first row above says;",
            f"its page: {study.page}",
        )
    ]


def _searched(search: Searched | None) -> list[tuple[str, ...]]:
    if search is None:
        return []
    if search.left_out:
        return [("search", f"left out: {search.left_out}")]
    ran = " and ".join(f"{count} by {who}" for who, count in search.by.items())
    pruned = f"; {search.pruned} of them stopped early" if search.pruned else ""
    return [
        (
            "search",
            f"{search.trials} trials, each exactly once: {ran}{pruned};",
            f"the best has a loss of {search.best:.2g}, and always saying ham 0.39",
        )
    ]
