"""What the commands of ``entrepot study`` share: which study, and what of it cannot be read."""

from __future__ import annotations

import difflib
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from entrepot.cli import output
from entrepot.cli.options import seconds
from entrepot.errors import NoStudy, StoreError
from entrepot.study.plain import plain

if TYPE_CHECKING:
    from entrepot.store.base import Store
    from entrepot.store.record import Record
    from entrepot.study.history import History
    from entrepot.study.looking import Abandoned
    from entrepot.study.table import Row, Table

Url = Annotated[str, typer.Argument(metavar="STORE", help="The store: a path, or its URL.")]
Name = Annotated[
    str,
    typer.Argument(metavar="STUDY", help="The study's name; `entrepot study list` has them all."),
]
Stale = Annotated[
    float,
    typer.Option(
        "--stale",
        metavar="SECONDS",
        parser=seconds(0),
        help="Seconds of silence after which a trial counts as abandoned: longer than an epoch.",
    ),
]

NAME_CHARS = 60
NEAREST = 3

PLAIN = ("done", "pruned", "failed", "running", "released")
"""States in the order in which they are told."""


@contextmanager
def looking(url: str, name: str) -> Iterator[tuple[Store, History]]:
    """The store, read-only, and what is known of the study. At the end it is said on standard
    error what could not be read.

    :raises NoStudy: it is not there.
    :raises StudyNameError: it is not there, and none could be.
    """
    from entrepot.store import Store
    from entrepot.study.held import history
    from entrepot.study.naming import checked_study

    with Store.open(url, read_only=True) as store:
        found = history(store, name)
        has_records = found.trials or found.strangers or store.skipped.faults
        if not has_records and not _is_described(store, name):
            raise no_study(store, checked_study(name))
        if found.strangers and not found.trials:
            _refuse_optunas(store, name)
        yield store, found
        tell_unreadable(store, found.strangers)


@contextmanager
def mending(url: str, name: str) -> Iterator[tuple[Store, History]]:
    """The same, to be written to. A store that is not there is not made.

    :raises NoStudy: it is not there.
    """
    from entrepot.store import Store
    from entrepot.study.held import history

    with looking(url, name):
        pass
    with Store.open(url) as store:
        yield store, history(store, name)


def _is_described(store: Store, name: str) -> bool:
    return bool(store.scan(f"{name}/space/"))


def no_study(store: Store, name: str) -> NoStudy:
    """The error that names those that are most like it."""
    names = list(studies_in(store.scan()))
    if not names:
        said = "it has no studies"
    else:
        near = sorted(names, key=lambda one: (-_likeness(one, name), one))[:NEAREST]
        said = f"it has {', '.join(map(repr, near))}"
        if len(names) > NEAREST:
            said += f" and {len(names) - NEAREST:,} others; `entrepot study list` has them all"
    return NoStudy(f"no study is named {name!r:.100} in {store.url}: {said}")


def _likeness(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one.lower(), other.lower()).ratio()


def _refuse_optunas(store: Store, name: str) -> None:
    from entrepot.study.trials import is_optunas

    if any(is_optunas(record) for record in store.scan(f"{name}/trial/")):
        raise NoStudy(
            f"{name!r} in {store.url} is a study of Optuna's; it is read and deleted through "
            f"optuna, with EntrepotStorage({store.url!r})"
        )


def studies_in(records: list[Record]) -> dict[str, list[Record]]:
    """The records of each study's trials, by its name; none for one that was only described.

    Not those of Optuna's studies: nothing here can read them.
    """
    from entrepot.study.trials import is_optunas, is_trial

    found: dict[str, list[Record]] = {}
    optunas = set()
    for record in records:
        name = record.name
        study, _, _ = name.rpartition("/trial/")
        if study and is_trial(name, study):
            found.setdefault(study, []).append(record)
            if is_optunas(record):
                optunas.add(study)
            continue
        study, _, digest = name.rpartition("/space/")
        if study and "/" not in digest and "space" in record.meta:
            found.setdefault(study, [])
    return {study: found[study] for study in sorted(found.keys() - optunas)}


def unreadable(store: Store) -> dict[str, int]:
    """How many records could not be read, by what is wrong with them."""
    from collections import Counter

    return dict(Counter(str(fault) for fault in store.skipped.faults.values()))


def tell_unreadable(store: Store, strangers: int) -> None:
    """Say on standard error what was passed over. It is no fault of the study."""
    bad = unreadable(store)
    if bad:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in bad.items())
        sys.stderr.write(
            f"passed over, since they cannot be read: {kinds}; `entrepot store ls "
            f"{shlex.quote(store.url)}` names them\n"
        )
    if strangers:
        sys.stderr.write(f"passed over, since they are no trial's record: {strangers:,}\n")


def abandoned_in(url: str, found: History, stale: float) -> list[Abandoned] | None:
    """Trials that nobody seems to run any more; None where the store's clock, which takes a write,
    cannot be read."""
    from entrepot.store import Store
    from entrepot.study.looking import Abandoned
    from entrepot.study.trials import RUNNING

    running = [one for one in found.unfinished() if one.state == RUNNING]
    if not running:
        return []
    try:
        with Store.open(url) as writable:
            now = writable.now()
    except StoreError:
        return None
    return [
        Abandoned(one.trial, one.attempt, one.meta.point, max(0.0, now - one.when), one.meta.who)
        for one in running
        if max(0.0, now - one.when) >= stale  # a clock may go by whole seconds
    ]


# --- saying it --------------------------------------------------------------------------


def said_row(row: Row) -> dict[str, Any]:
    """A trial for ``--json``."""
    said = row.attempted.meta
    return {
        "trial": row.trial,
        "attempt": row.attempt,
        "state": row.state,
        "best": row.best,
        "score": plain(said_score(row.scores)),
        "reports": row.reports,
        "took_s": row.attempted.took_s,
        "when": row.attempted.when,
        "who": said.who,
        "because": said.because or None,
        "point": said.point,
        "values": plain(row.values),
    }


def said_score(scores: Mapping[str, float]) -> float | Mapping[str, float] | None:
    """One score as a number, several by their names."""
    if not scores:
        return None
    return scores["score"] if scores.keys() == {"score"} else dict(scores)


def in_states(states: Mapping[str, int]) -> str:
    """``12 done, 3 pruned, 1 running``."""
    return ", ".join(f"{states[state]:,} {state}" for state in PLAIN if states.get(state))


def in_scores(row: Row) -> str:
    """``0.25``, or ``loss 0.25, latency 3``."""
    from entrepot.study.table import shown

    if row.scores.keys() == {"score"}:
        return shown(row.scores["score"])
    return ", ".join(f"{output.shown(name, 30)} {shown(one)}" for name, one in row.scores.items())


def best_line(made: Table) -> str | None:
    """The best, or how large the front is; None before a trial is done."""
    best = made.best
    if not best:
        return None
    if not isinstance(made.goal, str):
        return f"{len(best):,} trials on the Pareto front"
    point = output.shown(best[0].attempted.meta.point, 200)
    return f"{in_scores(best[0])} ({made.goal}), trial {best[0].trial}: {point}"


def line_for(verb: str, url: str, name: str) -> str:
    """A command to type next."""
    return f"entrepot study {verb} {shlex.quote(url)} {shlex.quote(name)}"
