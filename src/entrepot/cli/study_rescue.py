"""``entrepot study rescue``."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Annotated

import typer

from entrepot.cli import output
from entrepot.cli.options import Json
from entrepot.cli.study_reading import Name, Stale, Url, line_for, mending
from entrepot.errors import StudyError, TrialLost
from entrepot.study.looking import STALE, Abandoned
from entrepot.study.rescue import MAX_ATTEMPTS

if TYPE_CHECKING:
    from entrepot.store.base import Store
    from entrepot.study.history import History


def command(
    url: Url,
    name: Name,
    trial: Annotated[
        list[int] | None,
        typer.Option("--trial", metavar="N", min=0, help="Only this trial; may be given again."),
    ] = None,
    stale: Stale = STALE,
    max_attempts: Annotated[
        int,
        typer.Option(
            "--max-attempts",
            metavar="N",
            min=1,
            help="Attempts that may fall silent before a trial is written off as failed.",
        ),
    ] = MAX_ATTEMPTS,
    json: Json = False,
) -> None:
    """Hand trials of machines that died to whoever works next.

    Of each trial that was silent for --stale seconds the next attempt is begun, with the same
    point, and released. Workers do the same by themselves, so this is for a study that none works
    on, and for machines that are known to be gone: --stale 0 takes whatever runs. Nothing of what
    the old attempt wrote is touched; if it is alive after all, it is told at its next report.

    \b
    Examples:
      entrepot study rescue /mnt/shared spam
      entrepot study rescue /mnt/shared spam --trial 7 --stale 0
    """
    from entrepot.study.looking import abandoned

    with mending(url, name) as (store, found):
        silent = abandoned(store, study=name, stale=stale)
        if trial:
            heard = {one.trial: one for one in abandoned(store, study=name, stale=0)}
            gone = {one.trial for one in silent}
            for number in trial:
                if number not in gone:
                    raise _not_abandoned(found, name, number, heard.get(number), stale)
            silent = [one for one in silent if one.trial in trial]
        for one in silent:
            _rescue(store, found, name, one, max_attempts, json=json)
    if json:
        output.emit("rescued", trials=len(silent))
    elif not silent:
        output.say(f"no trial was silent for {stale:g} s; {line_for('show', url, name)} shows all")


def _not_abandoned(
    found: History, name: str, number: int, heard: Abandoned | None, stale: float
) -> StudyError:
    known = found.trials.get(number)
    if known is None:
        why = f"{name!r:.100} has no trial {number}"
    elif heard is None:
        free = "; whoever works next has it" if known.state == "released" else ""
        why = f"trial {number} is {known.state}{free}"
    else:
        why = (
            f"trial {number} was heard of {heard.silent_s:,.0f} s ago, and counts as abandoned "
            f"after {stale:g}; a smaller --stale takes it from {heard.who:.100}"
        )
    return StudyError(f"{why}; nothing was rescued")


def _rescue(
    store: Store, found: History, name: str, one: Abandoned, max_attempts: int, *, json: bool
) -> None:
    from entrepot.study.held import write
    from entrepot.study.rescue import rescue
    from entrepot.study.trials import RELEASED

    me = f"{socket.gethostname()[:150]}:{os.getpid()} rescue"
    held = rescue(store, study=name, trial=one.trial, me=me, max_attempts=max_attempts)
    try:
        if held is not None:
            write(store, held, [], state=RELEASED)
    except TrialLost:
        held = None
    if held is not None:
        became, attempt = RELEASED, held.attempt
        said = f"attempt {attempt} is free for whoever works next"
    else:
        found.refresh()
        now = found.trials[one.trial]
        became, attempt = now.state, now.attempt
        if now.meta.because == "lost":
            said = f"written off as failed, since {max_attempts} attempts or more fell silent"
        else:
            said = f"somebody else was faster: attempt {attempt} is {became}"
    if json:
        output.emit(
            "rescue",
            trial=one.trial,
            attempt=attempt,
            state=became,
            silent_s=one.silent_s,
            who=one.who,
        )
    else:
        who = output.shown(one.who, 60)
        output.say(f"trial {one.trial}, silent for {one.silent_s:,.0f} s ({who}): {said}")
