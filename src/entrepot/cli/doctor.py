"""``entrepot doctor``."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Annotated

import typer

from entrepot.cli import output
from entrepot.cli.options import Json, current, setting
from entrepot.cli.signals import LEAVE_S

if TYPE_CHECKING:
    from entrepot.doctor.finding import Finding
    from entrepot.settings import Settings

SETTINGS = current()
SUBJECTS = ("shm", "tcp", "file", "broker", "limits")
STORE = "store"

LEAVE_STORE_S = 10.0
"""Seconds to remove what was written to try, from a store that may be far away."""


def command(
    subjects: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SUBJECT",
            help=f"What to look at: {', '.join(SUBJECTS)}, all without; or {STORE} and its URL.",
        ),
    ] = None,
    frontend: Annotated[
        str, setting("client.endpoint", "--frontend", metavar="ENDPOINT")
    ] = SETTINGS.client.endpoint,
    backend: Annotated[
        str, setting("supplier.endpoint", "--backend", metavar="ENDPOINT")
    ] = SETTINGS.supplier.endpoint,
    timeout: Annotated[
        float, setting("client.timeout_s", "--timeout", metavar="SECONDS")
    ] = SETTINGS.client.timeout_s,
    sweep: Annotated[
        bool, typer.Option("--sweep", help="Remove the shared memory that dead owners left.")
    ] = False,
    json: Json = False,
) -> None:
    """Find what is wrong with mediums, broker or a store, and mend it.

    It does the real thing: writes and reads by each medium, and orders a product that it supplies
    itself; in a store, 16 clients race for 50 names. Exit code 1 says that something does not
    work; a warning alone does not.

    \b
    Examples:
      entrepot doctor
      entrepot doctor shm --sweep
      entrepot doctor broker --frontend tcp://b:5555 --backend tcp://b:5556
      entrepot doctor store 's3://studies?endpoint=http://127.0.0.1:9000'
    """
    from entrepot.cli.drawing import drawn
    from entrepot.doctor import examine
    from entrepot.doctor.finding import Level

    asked = tuple(subjects or SUBJECTS)
    leave_s = LEAVE_S
    if asked[0] == STORE:
        findings = _stores(asked[1:])
        leave_s = LEAVE_STORE_S
    else:
        findings = examine(_known(asked), _settings(frontend, backend, timeout), sweep=sweep)
    failed = False
    with drawn(
        findings, leave_s
    ) as found:  # what it made to try is removed also if it is told to stop
        for finding in found:
            failed = failed or finding.level is Level.FAIL
            if json:
                output.emit("finding", **finding.as_dict())
            else:
                output.say(f"{finding.level:<5} {finding.subject:<7} {finding.said}")
                if finding.remedy:
                    output.say(f"{'':13} -> {finding.remedy}")
    if failed:
        raise typer.Exit(1)


def _known(asked: tuple[str, ...]) -> tuple[str, ...]:
    for each in asked:
        if each not in SUBJECTS:
            raise typer.BadParameter(f"{each!r} is none of {', '.join((*SUBJECTS, STORE))}")
    return asked


def _stores(urls: tuple[str, ...]) -> Generator[Finding, None, None]:
    from entrepot.doctor.store import check_store

    if not urls:
        raise typer.BadParameter("which store? Give its path or URL: entrepot doctor store URL")
    return (finding for url in urls for finding in check_store(url))


def _settings(frontend: str, backend: str, timeout_s: float) -> Settings:
    return SETTINGS.model_copy(
        update={
            "client": SETTINGS.client.model_copy(
                update={"endpoint": frontend, "timeout_s": timeout_s}
            ),
            "supplier": SETTINGS.supplier.model_copy(update={"endpoint": backend}),
        }
    )
