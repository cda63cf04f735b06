"""``entrepot drain``."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from entrepot.cli import output
from entrepot.cli.asking import asking
from entrepot.cli.options import Json, current, seconds, setting
from entrepot.cli.signals import exit_code
from entrepot.errors import NoSuchSupplier, OrderTimeout

SETTINGS = current()

LOOK_S = 0.2
"""Seconds between two looks at who is still there."""

NAMED = 20
"""Suppliers that are named to somebody who asked for another."""


def command(
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="Suppliers of this name only; all without."),
    ] = None,
    frontend: Annotated[
        str, setting("client.endpoint", "--frontend", metavar="ENDPOINT")
    ] = SETTINGS.client.endpoint,
    wait: Annotated[
        float,
        typer.Option(
            "--wait",
            metavar="SECONDS",
            parser=seconds(0),
            help="Seconds to wait until they have left; 0 asks them and returns.",
        ),
    ] = SETTINGS.supplier.drain_s + 10,
    timeout: Annotated[
        float, setting("client.timeout_s", "--timeout", metavar="SECONDS")
    ] = SETTINGS.client.timeout_s,
    json: Json = False,
) -> None:
    """Ask suppliers to finish what they hold and leave.

    They get no new orders from then on; what waits stays with the broker for other suppliers. A
    name that no supplier has is an error.

    \b
    Examples:
      entrepot drain --name gpu-3
      entrepot drain
    """
    with asking(frontend, timeout) as (client, stopper):
        stats = client.stats()
        before = _there(stats, name)
        told = client.drain(name)
        if name is not None and not told and not before:
            raise NoSuchSupplier(_nobody(name, stats))
        if json:
            output.emit("draining", told=told, suppliers=[each["name"] for each in before])
        else:
            output.say(f"asked {told} {_suppliers(told)} to leave")
        if not wait:
            return
        deadline = time.monotonic() + wait
        known = {each["session"]: each for each in before}
        while True:
            there = {each["session"]: each for each in _there(client.stats(), name)}
            for session in known.keys() - there.keys():
                left = known.pop(session)
                if json:
                    output.emit("left", name=left["name"], session=session, served=left["served"])
                else:
                    output.say(f"  {left['name']} has left; it served {left['served']:,}")
            known = {session: there[session] for session in known}
            if not known:
                return
            if stopper.rest(LOOK_S) and stopper.number is not None:
                raise typer.Exit(exit_code(stopper.number))
            if time.monotonic() > deadline:
                names = ", ".join(f"{e['name']} (holds {e['holds']})" for e in known.values())
                raise OrderTimeout(f"not left after {wait:g} s: {names}; they still finish")


def _there(stats: dict[str, Any], name: str | None) -> list[dict[str, Any]]:
    return [each for each in stats["suppliers"]["list"] if name in (None, each["name"])]


def _nobody(name: str, stats: dict[str, Any]) -> str:
    """That there is no such supplier, and who there is."""
    names = sorted({output.shown(each["name"], 60) for each in stats["suppliers"]["list"]})
    if not names:
        there = "there is none at all"
    elif len(names) <= NAMED:
        there = f"there are {', '.join(names)}" if len(names) > 1 else f"there is {names[0]}"
    else:
        there = f"there are {', '.join(names[:NAMED])} and {len(names) - NAMED:,} more"
    return f"no supplier is named {output.shown(name, 60)!r}; {there} (`entrepot stats` shows them)"


def _suppliers(count: int) -> str:
    return "supplier" if count == 1 else "suppliers"
