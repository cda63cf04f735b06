"""``entrepot stats``: what the broker sees."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated, Any

import typer

from entrepot.cli import output
from entrepot.cli.options import Json, current, seconds, setting
from entrepot.errors import Closed
from entrepot.logs import visible

if TYPE_CHECKING:
    from rich.console import RenderableType

SETTINGS = current().client

OUTCOMES = ("placed", "fulfilled", "failed", "cancelled")
STATES = ("queued", "in_flight", "parked", "unservable")


def command(
    frontend: Annotated[
        str, setting("client.endpoint", "--frontend", metavar="ENDPOINT")
    ] = SETTINGS.endpoint,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show it again and again until Ctrl-C.")
    ] = False,
    interval: Annotated[
        float,
        typer.Option(
            "--interval",
            metavar="SECONDS",
            parser=seconds(0.1),
            help="Seconds between two looks of --watch; 0.1 at least.",
        ),
    ] = 1.0,
    timeout: Annotated[
        float, setting("client.timeout_s", "--timeout", metavar="SECONDS")
    ] = SETTINGS.timeout_s,
    json: Json = False,
) -> None:
    """Show what the broker sees: orders, suppliers, outcomes.

    \b
    Example:
      entrepot stats --watch
    """
    from entrepot.cli.asking import asking

    seen = False
    with asking(frontend, timeout) as (client, stopper):
        screen = _screen() if watch and not json else nullcontext(None)
        with screen as live:
            while True:
                try:
                    stats = client.stats()
                except Closed:
                    if seen and stopper.number is not None:
                        return
                    raise
                if json:
                    output.emit("stats", **stats)
                elif live is not None:
                    live.update(table(stats, frontend), refresh=True)
                else:
                    output.console().print(table(stats, frontend))
                seen = True
                if not watch or stopper.rest(interval):
                    return


def _screen() -> Any:
    from rich.live import Live

    return Live(console=output.console(), auto_refresh=False)


def table(stats: dict[str, Any], endpoint: str) -> RenderableType:
    """The figures that matter most, for a person."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    orders = stats["orders"]
    suppliers = stats["suppliers"]
    head = Text(f"broker at {endpoint}")
    figures = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    figures.add_row("orders", _list(orders, STATES))
    if orders["queued"]:
        figures.add_row("", f"the oldest has waited {output.duration(orders['oldest_age_s'])}")
    figures.add_row("so far", _list(orders, OUTCOMES))
    figures.add_row(
        "times",
        f"waiting {_mean(stats['wait'])}, making {_mean(stats['service'])} on average",
    )
    figures.add_row("clients", f"{stats['clients']['connected']:,}, with this one")
    figures.add_row(
        "suppliers", _list(suppliers, ("connected", "ready", "busy", "suspect", "draining"))
    )
    if stats["refused"]:
        figures.add_row("refused", _list(stats["refused"], sorted(stats["refused"])))
    if stats["dropped"]:
        figures.add_row("gone", _list(stats["dropped"], sorted(stats["dropped"])))
    parts: list[RenderableType] = [head, figures]
    if suppliers["list"]:
        rows = _columns("supplier", "state", "holds", "served", "products")
        for each in suppliers["list"]:
            rows.add_row(
                Text(visible(each["name"] or each["session"])),
                each["state"],
                f"{each['holds']}/{each['credit']}",
                f"{each['served']:,}",
                Text(visible(" ".join(each["patterns"]))),
            )
        parts.append(rows)
    if stats["products"]:
        rows = _columns("product", "queued", "in flight", "parked", "no supplier")
        for each in stats["products"]:
            name = each["product"]
            rows.add_row(
                Text(f"{each['others']} others" if name is None else visible(name)),
                *(f"{each[k]:,}" for k in ("queued", "in_flight", "parked", "unservable")),
            )
        parts.append(rows)
    return Group(*parts)


def _columns(*names: str) -> Any:
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for name in names:
        words = name in ("supplier", "state", "products", "product")
        made.add_column(name, justify="left" if words else "right", overflow="fold")
    return made


def _list(values: dict[str, Any], names: Any) -> str:
    return ", ".join(f"{values[name]:,} {name.replace('_', ' ')}" for name in names)


def _mean(histogram: dict[str, Any]) -> str:
    count = histogram["count"]
    return output.duration(histogram["sum_s"] / count) if count else "-"
