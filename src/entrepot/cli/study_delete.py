"""``entrepot study delete``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from entrepot.cli import output
from entrepot.cli.options import Json
from entrepot.cli.study_reading import Name, Url, in_states, line_for, mending
from entrepot.errors import StudyRuns

PARTS = ("trial", "segment", "space")
"""What a study has in a store. Not all below its name: ``team/spam`` is no part of ``team``."""


def command(
    url: Url,
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    force: Annotated[
        bool,
        typer.Option("--force", help="Delete it although trials run; those who run them are lost."),
    ] = False,
    json: Json = False,
) -> None:
    """Delete a study, all its trials with it.

    It asks first, unless --yes is given. Curves and checkpoints stay until `entrepot store gc`
    removes what nothing needs any more. A worker that is still there would begin again at trial 0.

    \b
    Examples:
      entrepot study delete /mnt/shared spam
      entrepot study delete /mnt/shared spam --yes
    """
    with mending(url, name) as (store, found):
        runs = found.states["running"]
        if runs and not force:
            raise StudyRuns(
                f"{runs:,} trials of {name!r:.100} run; wait for them, or hand them back with "
                f"`{line_for('rescue', url, name)}`, or give --force"
            )
        if not yes:
            _ask(name, store.url, in_states(found.states) or "no trials", json=json)
        records = sum(store.delete(f"{name}/{part}/") for part in PARTS)
    if json:
        output.emit("deleted", study=name, trials=len(found), records=records)
    else:
        output.say(f"deleted {output.shown(name, 60)}: {len(found):,} trials, {records:,} records")


def _ask(name: str, url: str, states: str, *, json: bool) -> None:
    if json or not sys.stdin.isatty():
        raise typer.BadParameter("there is nobody to ask; give --yes")
    what = f"delete {output.shown(name, 60)} in {output.shown(url, 120)} ({states})?"
    typer.confirm(what, abort=True, err=True)
