"""``entrepot store gc``."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Annotated, Any

import typer

from entrepot.cli import output
from entrepot.cli.options import Json, seconds
from entrepot.cli.store_init import Url
from entrepot.store.base import GRACE_S

SHOWN = 10
"""Blobs that are named without --json."""


def command(
    url: Url,
    grace: Annotated[
        float,
        typer.Option(
            "--grace",
            metavar="SECONDS",
            parser=seconds(0),
            help="Age in seconds below which blobs stay: longer than from any put to its record.",
        ),
    ] = GRACE_S,
    delete: Annotated[
        bool, typer.Option("--delete", help="Remove them; without it they are only listed.")
    ] = False,
    json: Json = False,
) -> None:
    """Find blobs that nothing needs, and remove them if told to.

    A blob is needed while its digest stands in any record, or in a segment. It is safe beside
    machines that write.

    \b
    Examples:
      entrepot store gc /mnt/shared/studies
      entrepot store gc /mnt/shared/studies --grace 3600 --delete
    """
    from entrepot.store import Store

    with Store.open(url) as store, _at_work(f"looking through {store.url}", json=json):
        swept = store.gc(grace, dry_run=not delete)
    if json:
        output.emit(
            "gc",
            deleted=delete,
            digests=swept.digests,
            blobs=len(swept.digests),
            nbytes=swept.nbytes,
            kept=swept.kept,
        )
        return
    for digest in swept.digests[:SHOWN]:
        output.say(digest)
    if len(swept.digests) > SHOWN:
        output.say(f"... and {len(swept.digests) - SHOWN:,} more")
    blobs = f"{len(swept.digests):,} blobs, {swept.nbytes:,} bytes"
    kept = f"{swept.kept:,} are needed or younger than {grace:g} s"
    if delete:
        output.say(f"removed {blobs}; {kept}")
    elif swept.digests:
        output.say(f"nothing needs {blobs}; {kept}. --delete removes them")
    else:
        output.say(f"every blob is needed; {kept}")


def _at_work(doing: str, *, json: bool) -> Any:
    """Something that moves, on a terminal, while the store is looked through."""
    console = output.console(stderr=True)
    if json or not console.is_terminal:
        return nullcontext()
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    shown = Progress(
        SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=console
    )
    shown.add_task(doing, total=None)
    return shown
