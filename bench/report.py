"""What was measured, on what, and whether it reaches its bar."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import zmq
from rich.console import Console
from rich.table import Table

from bench.processes import say


@dataclass(frozen=True)
class Bar:
    """What a figure must reach.

    :ivar over: the figure that it is divided by first; none when it stands for itself.
    :ivar at_least: the bar is a floor; a ceiling otherwise.
    """

    figure: str
    value: float
    over: str | None = None
    at_least: bool = True

    def reached(self, measured: float) -> bool:
        return measured >= self.value if self.at_least else measured <= self.value

    def said(self) -> str:
        of = f" of {self.over}" if self.over else ""
        return f"{'at least' if self.at_least else 'at most'} {self.value:g}{of}"


@dataclass(frozen=True)
class Subject:
    """What a report is about.

    :ivar title: over the table.
    :ivar what: every figure, in the order of the report, and what it is.
    :ivar bars: what figures must reach.
    """

    title: str
    what: Mapping[str, str]
    bars: tuple[Bar, ...]

    def bar(self, name: str) -> Bar | None:
        return next((bar for bar in self.bars if bar.figure == name), None)


class Figures:
    """Repeats of each figure, in the order in which they were taken."""

    def __init__(self) -> None:
        self._repeats: dict[str, list[float]] = {}
        self._details: dict[str, list[float]] = {}

    def add(self, **figures: float) -> None:
        for name, value in figures.items():
            self._repeats.setdefault(name, []).append(value)

    def detail(self, **values: float) -> None:
        """What helps to understand a figure, and is none."""
        for name, value in values.items():
            self._details.setdefault(name, []).append(value)

    def details(self) -> dict[str, float]:
        return {name: statistics.median(values) for name, values in self._details.items()}

    def __contains__(self, name: str) -> bool:
        return name in self._repeats

    def median(self, name: str) -> float:
        return statistics.median(self._repeats[name])

    def spread(self, name: str) -> tuple[float, float]:
        return min(self._repeats[name]), max(self._repeats[name])

    def against(self, bar: Bar) -> float:
        """The figure as its bar wants it.

        A ratio is the median of the ratios of each round: what was measured close together saw
        the same machine.
        """
        if bar.over is None:
            return self.median(bar.figure)
        pairs = zip(self._repeats[bar.figure], self._repeats[bar.over], strict=True)
        return statistics.median(ours / theirs for ours, theirs in pairs)

    def medians(self) -> dict[str, float]:
        return {name: self.median(name) for name in self._repeats}


def machine() -> dict[str, Any]:
    """What it ran on."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": _cpu(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "pyzmq": zmq.pyzmq_version(),
        "libzmq": zmq.zmq_version(),
        "msgspec": version("msgspec"),
        "load": round(os.getloadavg()[0], 2),
    }


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def as_json(subject: Subject, figures: Figures, quick: bool, spent_s: float) -> dict[str, Any]:
    return {
        **figures.medians(),
        "ratios": {
            bar.figure: figures.against(bar)
            for bar in subject.bars
            if bar.over and bar.figure in figures and bar.over in figures
        },
        "details": figures.details(),
        "bars": {bar.figure: bar.said() for bar in subject.bars if bar.figure in figures},
        "short": list(short(subject, figures)),
        "quick": quick,
        "spent_s": round(spent_s, 1),
        "machine": machine(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def short(subject: Subject, figures: Figures) -> Iterable[str]:
    """The figures that do not reach their bar."""
    for bar in subject.bars:
        there = bar.figure in figures and (bar.over is None or bar.over in figures)
        if there and not bar.reached(figures.against(bar)):
            yield bar.figure


def show(subject: Subject, figures: Figures, console: Console, facts: Mapping[str, Any]) -> None:
    """The table, for a person."""
    table = Table(title=subject.title, title_justify="left")
    table.add_column("what")
    table.add_column("median", justify="right")
    table.add_column("lowest to highest", justify="right")
    table.add_column("ratio", justify="right")
    table.add_column("must reach")
    table.add_column("")
    missed = set(short(subject, figures))
    for name, what in subject.what.items():
        if name not in figures:
            continue
        low, high = figures.spread(name)
        bar = subject.bar(name)
        ratio, wanted, verdict = "", "", ""
        if bar is not None and (bar.over is None or bar.over in figures):
            ratio = f"{figures.against(bar):.2f}" if bar.over else ""
            wanted = bar.said()
            verdict = "[red]short[/red]" if name in missed else "[green]pass[/green]"
        spread = f"{number(low)} to {number(high)}"
        table.add_row(what, number(figures.median(name)), spread, ratio, wanted, verdict)
    console.print(table)
    details = ", ".join(f"{name} {number(value)}" for name, value in figures.details().items())
    if details:
        console.print(details, highlight=False)
    console.print(
        f"{facts['cores']} cores, {facts['cpu']}, Linux {facts['kernel']}, Python "
        f"{facts['python']}, pyzmq {facts['pyzmq']} (libzmq {facts['libzmq']}), load "
        f"{facts['load']}, {datetime.date.today().isoformat()}",
        highlight=False,
    )


def number(value: float) -> str:
    """Three digits or so."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}" if value >= 0.1 else f"{value:.4f}"


Question = Callable[[Figures, bool], None]
"""Measures something: adds to the figures; quickly, if the second is True."""


def main(doc: str, subject: Subject, questions: Mapping[str, Question]) -> int:
    """The command line of a benchmark: asks the questions, shows the table, writes the JSON."""
    arguments = argparse.ArgumentParser(description=doc)
    arguments.formatter_class = argparse.RawDescriptionHelpFormatter
    arguments.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    arguments.add_argument("--json", type=Path, metavar="PATH", help="write the figures there too")
    arguments.add_argument("--only", choices=questions, help="one question alone")
    asked = arguments.parse_args()
    chosen = [asked.only] if asked.only else list(questions)
    figures, began = Figures(), time.monotonic()
    for number_, name in enumerate(chosen, 1):
        started = time.monotonic()
        say(f"[{number_}/{len(chosen)}] {name} ...")
        questions[name](figures, asked.quick)
        say(f"[{number_}/{len(chosen)}] {name}: {time.monotonic() - started:.1f} s")
    spent_s = time.monotonic() - began
    console = Console()
    if not console.is_terminal:
        console.width = 130
    show(subject, figures, console, machine())
    if asked.json:
        found = as_json(subject, figures, asked.quick, spent_s)
        asked.json.write_text(json.dumps(found, indent=2) + "\n")
    return 0
