"""``entrepot doctor``."""

from __future__ import annotations

from typing import Annotated

import typer

from entrepot.cli import output
from entrepot.cli.options import Json, current, setting

SETTINGS = current()
SUBJECTS = ("shm", "tcp", "file", "broker", "limits")


def command(
    subjects: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SUBJECT", help=f"What to look at: {', '.join(SUBJECTS)}; all without."
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
    """Find what is wrong with memory, mediums or broker, and mend it.

    It does the real thing: writes and reads by each medium, and orders a product that it supplies
    itself. Exit code 1 says that something does not work; a warning alone does not.

    \b
    Examples:
      entrepot doctor
      entrepot doctor shm --sweep
      entrepot doctor broker --frontend tcp://b:5555 --backend tcp://b:5556
    """
    from entrepot.doctor import Level, examine

    asked = tuple(subjects or SUBJECTS)
    for each in asked:
        if each not in SUBJECTS:
            raise typer.BadParameter(f"{each!r} is none of {', '.join(SUBJECTS)}")
    settings = SETTINGS.model_copy(
        update={
            "client": SETTINGS.client.model_copy(
                update={"endpoint": frontend, "timeout_s": timeout}
            ),
            "supplier": SETTINGS.supplier.model_copy(update={"endpoint": backend}),
        }
    )
    failed = False
    for finding in examine(asked, settings, sweep=sweep):
        failed = failed or finding.level is Level.FAIL
        if json:
            output.emit("finding", **finding.as_dict())
        else:
            output.say(f"{finding.level:<5} {finding.subject:<7} {finding.said}")
            if finding.remedy:
                output.say(f"{'':13} -> {finding.remedy}")
    if failed:
        raise typer.Exit(1)
