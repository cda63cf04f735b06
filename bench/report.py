"""What was measured, on what, and whether it reaches its bar."""

from __future__ import annotations

import datetime
import os
import platform
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import zmq
from rich.console import Console
from rich.table import Table


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


WHAT = {
    "gated_per_s": "gated forwarder, 1 supplier: messages/s",
    "gated4_per_s": "gated forwarder, 4 suppliers: messages/s",
    "open_per_s": "open forwarder: messages/s",
    "softs_per_s": "softs 0.1.2, 1 supplier: orders/s",
    "softs4_per_s": "softs 0.1.2, 4 suppliers: orders/s",
    "orders_per_s": "1 supplier, credit 1: orders/s",
    "orders4_per_s": "4 suppliers, credit 1: orders/s",
    "batched_per_s": "ORDERS of 16, credit 16: orders/s",
    "p50_ratio": "one at a time, p50, over the gated forwarder's",
    "scale_ratio": "10,000 waiting and 200 suppliers, over 10 and 1",
    "shm_ratio": "shm, 16 MiB, 8 slots, credit 4, checked, over a memcpy into such a ring",
    "shm_ratio_1mib": "shm, 1 MiB, 64 slots, credit 16, likewise",
    "file_ratio": "a file in memory, 16 MiB, 8 slots, credit 4, checked, over the memcpy",
    "tcp_ratio": "TCP, 16 MiB, 8 slots, credit 4, checked, over a bare loopback socket",
    "tcp_ratio_64kib": "TCP, 64 KiB, 64 slots, credit 16, likewise",
    "orders_tcp_per_s": "1 supplier, credit 1, over TCP: orders/s",
    "overlap_ms": "generate 5 ms + consume 5 ms, credit 2, streamed: ms a sample",
    "requeue_s": "kill -9 of a supplier, until another has its order: s",
    "idle_cpu": "idle broker: share of a core",
    "idle_rss_mb": "idle broker: resident memory, MB",
}
"""Every figure, in the order of the report."""

BARS = {
    bar.figure: bar
    for bar in (
        Bar("orders_per_s", 0.5, over="gated_per_s"),
        Bar("orders4_per_s", 0.5, over="gated4_per_s"),
        Bar("batched_per_s", 0.7, over="open_per_s"),
        Bar("p50_ratio", 1.4, at_least=False),
        Bar("scale_ratio", 0.6),
        Bar("shm_ratio", 0.5),
        Bar("shm_ratio_1mib", 0.3),
        Bar("file_ratio", 0.4),
        Bar("tcp_ratio", 0.5),
        Bar("tcp_ratio_64kib", 0.3),
        Bar("overlap_ms", 6.0, at_least=False),
        Bar("requeue_s", 1.5, at_least=False),
        Bar("idle_cpu", 0.005, at_least=False),
        Bar("idle_rss_mb", 60.0, at_least=False),
    )
}


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
        return {name: self.median(name) for name in WHAT if name in self}


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


def as_json(figures: Figures, quick: bool, spent_s: float) -> dict[str, Any]:
    return {
        **figures.medians(),
        "ratios": {
            name: figures.against(bar)
            for name, bar in BARS.items()
            if bar.over and name in figures and bar.over in figures
        },
        "details": figures.details(),
        "bars": {name: bar.said() for name, bar in BARS.items() if name in figures},
        "short": list(short(figures)),
        "quick": quick,
        "spent_s": round(spent_s, 1),
        "machine": machine(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def short(figures: Figures) -> Iterable[str]:
    """The figures that do not reach their bar."""
    for name, bar in BARS.items():
        there = name in figures and (bar.over is None or bar.over in figures)
        if there and not bar.reached(figures.against(bar)):
            yield name


def show(figures: Figures, console: Console, facts: Mapping[str, Any]) -> None:
    """The table, for a person."""
    table = Table(title="The market, measured", title_justify="left")
    table.add_column("what")
    table.add_column("median", justify="right")
    table.add_column("lowest to highest", justify="right")
    table.add_column("ratio", justify="right")
    table.add_column("must reach")
    table.add_column("")
    missed = set(short(figures))
    for name, what in WHAT.items():
        if name not in figures:
            continue
        low, high = figures.spread(name)
        bar = BARS.get(name)
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
