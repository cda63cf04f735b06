"""What commands print: for people on a terminal, or one JSON object a line for scripts.

With ``--json`` standard output holds nothing but these objects. Progress and logs always go to
standard error.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from entrepot.logs import as_json, visible

if TYPE_CHECKING:
    from rich.console import Console

WIDTH = 80
"""Columns where there is no terminal to ask."""


def emit(event: str, **fields: Any) -> None:
    """Print one object. ``event`` says what it is about."""
    sys.stdout.write(as_json({"event": event, **fields}, sys.stdout.encoding) + "\n")
    sys.stdout.flush()


def say(text: str) -> None:
    """Print one line for a person, at once even into a pipe."""
    sys.stdout.write(visible(text, "\n\t") + "\n")
    sys.stdout.flush()


def console(*, stderr: bool = False) -> Console:
    """A rich console: as wide as the terminal, or ``WIDTH`` columns without one."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(
        stderr=stderr, width=None if stream.isatty() else WIDTH, highlight=False, markup=False
    )


def duration(seconds: float) -> str:
    """A duration with the unit that suits it: ``310 µs``, ``4.2 ms``, ``1.50 s``."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.1f} ms"
    return f"{seconds:.2f} s"


def percentile(ordered: list[float], share: float) -> float | None:
    """The value below which ``share`` of ``ordered`` (ascending) lies; None when it is empty."""
    if not ordered:
        return None
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def shown(name: str, most: int) -> str:
    """A name that a stranger chose, fit for one line of a terminal: printable, and not too long."""
    printable = "".join(
        each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in name
    )
    return printable if len(printable) <= most else printable[: most - 1] + "…"
