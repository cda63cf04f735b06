"""Trials that this process holds: claimed, written again as they go, and lost or finished."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, SupportsFloat
from weakref import WeakKeyDictionary

from entrepot.arguments import checked_kind
from entrepot.errors import PointError, StudyError, TrialLost
from entrepot.store.base import Store
from entrepot.store.identity import new_nonce
from entrepot.store.record import EMPTY
from entrepot.study.agreed import agree, agreed_goal, check_goal
from entrepot.study.checks import whole
from entrepot.study.curves import Tail, tail
from entrepot.study.goals import Direction, Goal, Score, checked_goal
from entrepot.study.history import History
from entrepot.study.naming import checked_study, readable_study
from entrepot.study.space import Point
from entrepot.study.trials import (
    BECAUSE_CHARS,
    CURVE_CHARS,
    FINISHED,
    RELEASED,
    RUNNING,
    Attempt,
    Said,
    attempt_of,
    checked_reports,
    checked_score,
    checked_who,
    curve_blob,
    cut,
    meta_of,
    trial_name,
    write_curve,
    write_goal,
    write_score,
)

clock = time.monotonic
"""Seconds, going up."""


@dataclass
class Held:
    """A trial that this process took, until it reports it finished.

    :ivar lock: held while its record is written: a beat and a report are two threads.
    """

    study: str
    trial: int
    attempt: int
    nonce: str
    point: str
    space: str
    who: str
    goal: Goal | None
    since: float
    beat: int = 0
    lost: bool = False
    said: Said | None = None
    digest: str = EMPTY
    lock: threading.Lock = field(default_factory=threading.Lock)


class _Known:
    """What this process knows of one store."""

    def __init__(self) -> None:
        self.histories: dict[str, History] = {}
        self.held: dict[tuple[str, int], Held] = {}
        self.goals: dict[str, Goal] = {}
        self.lock = threading.RLock()


_stores: WeakKeyDictionary[Store, _Known] = WeakKeyDictionary()
_stores_lock = threading.Lock()


def _check_store(store: object) -> None:
    checked_kind("store", store, Store, "Store.open(place) opens one")


def _known(store: Store) -> _Known:
    _check_store(store)
    with _stores_lock:
        known = _stores.get(store)
        if known is None:
            known = _stores[store] = _Known()
        return known


def history(store: Store, study: str) -> History:
    """The study's trials, with what is new since this process looked last.

    :raises StoreError: the store cannot be read.
    """
    known = _known(store)
    with known.lock:
        found = known.histories.get(readable_study(study))
        if found is None:
            found = known.histories[study] = History(store, study)
        found.refresh()
        return found


def settle(store: Store, study: str, goal: Goal, *, anew: bool = False) -> None:
    """Have ``goal`` be the study's: written down, and the same for all who work on it.

    :param anew: ask the store also where this process has asked before: who deletes a study and
        begins it again begins with nothing written down.
    :raises GoalMismatch: others search it with another.
    :raises StoreError: the store cannot be read or written.
    """
    known = _known(store)
    with known.lock:
        if anew or known.goals.get(study) != goal:
            agree(store, study, goal, lambda: history(store, study))
            known.goals[study] = goal


def check_settled(store: Store, study: str, goal: Goal) -> None:
    """:raises GoalMismatch: the study is searched with another goal; nothing is written."""
    known = _known(store)
    with known.lock:
        if known.goals.get(study) != goal:
            check_goal(study, agreed_goal(store, study), goal)


def claimed(
    store: Store,
    point: Point | str | None,
    *,
    study: str,
    trial: int,
    me: str,
    attempt: int = 0,
    goal: Goal | None = None,
) -> Held | None:
    """:func:`take`, with what is needed to report on it; None when somebody else has it."""
    held = Held(
        checked_study(study),
        whole("trial", trial, 0),
        whole("attempt", attempt, 0),
        new_nonce(),
        *point_text(point),
        checked_who(me),
        None if goal is None else checked_goal(goal),
        clock(),
    )
    said = _said(held, RUNNING)
    known = _known(store)
    if held.goal is not None:
        settle(store, study, held.goal)
    name = trial_name(study, trial, attempt)
    if not store.claim(name, EMPTY, meta_of(said), nonce=held.nonce):
        return None
    held.said = said
    with known.lock:
        known.held[study, trial] = held
    return held


def again(store: Store, last: Attempt, study: str, me: str) -> Held | None:
    """Claim the attempt after ``last``, with the point that it had; None when it is taken."""
    said = last.meta
    held = Held(
        study,
        last.trial,
        last.attempt + 1,
        new_nonce(),
        said.point,
        said.space,
        me,
        last.goal,
        clock(),
    )
    fresh = _said(held, RUNNING, kept=said.kept)
    name = trial_name(study, held.trial, held.attempt)
    if not store.claim(name, EMPTY, meta_of(fresh), nonce=held.nonce):
        return None
    held.said = fresh
    known = _known(store)
    with known.lock:
        known.held[study, held.trial] = held
    return held


def write(
    store: Store,
    held: Held,
    reports: Iterable[SupportsFloat],
    *,
    state: str,
    score: Score | None = None,
    because: str = "",
    goal: Goal | None = None,
    checkpoint: str = "",
    so_far: Tail | None = None,
) -> None:
    """:func:`report` on a trial that is held.

    :param so_far: the tail of the reports, by who has it: of thousands it takes milliseconds.
    """
    numbers = checked_reports(reports)
    goal = _same_goal(store, held, goal)
    if score is None and numbers and state in FINISHED and not isinstance(goal, Mapping):
        score = numbers[-1]
    score = checked_score(score, goal, state)
    with held.lock:
        _check_not_lost(store, held)
        # One number and what parts it from the next are two characters at least.
        if so_far is None or so_far.length != len(numbers):
            so_far = tail(numbers, direction_of(goal))
        curve = write_curve(numbers) if 2 * len(numbers) <= CURVE_CHARS + 1 else None
        digest = EMPTY
        if curve is None or len(curve) > CURVE_CHARS:
            # While it runs the tail says enough; a blob each time would be a blob each time.
            curve = ""
            if state != RUNNING:
                digest = store.put(curve_blob(numbers, because))
        said = _said(
            held,
            state,
            score=write_score(score),
            tail=str(so_far),
            curve=curve,
            because=cut(because, BECAUSE_CHARS),
            kept=checkpoint or (held.said.kept if held.said else ""),
        )
        _bind(store, held, said, digest)
    if state != RUNNING:
        known = _known(store)
        with known.lock:
            if known.held.get((held.study, held.trial)) is held:
                del known.held[held.study, held.trial]


def beat(store: Store, held: Held) -> None:
    """Say that the trial is alive, when there is nothing else to say.

    :raises TrialLost: it is somebody else's by now.
    """
    with held.lock:
        if held.said is None or held.said.state != RUNNING:
            return
        _check_not_lost(store, held)
        said = _said(held, RUNNING)
        kept = {
            name: getattr(held.said, name) for name in ("score", "tail", "curve", "because", "kept")
        }
        _bind(store, held, with_(said, kept), held.digest)


def _bind(store: Store, held: Held, said: Said, digest: str) -> None:
    store.bind(trial_name(held.study, held.trial, held.attempt), digest, meta_of(said))
    held.said = said
    held.digest = digest
    held.beat += 1


def _said(held: Held, state: str, **more: str) -> Said:
    return Said(
        state=state,
        point=held.point,
        who=held.who,
        goal=write_goal(held.goal),
        beat=str(held.beat),
        space=held.space,
        took=f"{clock() - held.since:.3f}",
        **more,
    )


def with_(said: Said, more: Mapping[str, str]) -> Said:
    return Said(**{**{name: getattr(said, name) for name in Said.__struct_fields__}, **more})


def _check_not_lost(store: Store, held: Held) -> None:
    """:raises TrialLost: somebody began the next attempt."""
    lost = "it was rescued by another attempt, since it had been silent for too long"
    if held.lost or store.resolve(trial_name(held.study, held.trial, held.attempt + 1)):
        held.lost = True
        known = _known(store)
        with known.lock:
            known.held.pop((held.study, held.trial), None)
        raise TrialLost(held.study, held.trial, held.attempt, lost)


def _same_goal(store: Store, held: Held, goal: Goal | None) -> Goal | None:
    if goal is None:
        return held.goal
    goal = checked_goal(goal)
    if held.goal is None:
        settle(store, held.study, goal)
        held.goal = goal
    elif held.goal != goal:
        raise StudyError(
            f"trial {held.trial} of {held.study!r} was taken with the goal {held.goal!r}, and is "
            f"reported with {goal!r}"
        )
    return goal


def direction_of(goal: Goal | None) -> Direction:
    """Which of two reports is better; of several goals nobody says so, and the lower one is."""
    return goal if isinstance(goal, str) else "min"


def point_text(point: Any) -> tuple[str, str]:
    """A point's text, and its space's digest."""
    if isinstance(point, Point):
        return str(point), point.space.digest
    if isinstance(point, str):
        return point, ""
    if point is None:
        raise PointError("there is no point: the sampler had none left; end the loop there")
    raise PointError(f"a point is a Point or its text, got {point!r:.100}")


def held_by(store: Store, study: str, trial: int, attempt: int | None, me: str) -> Held:
    """What this process took; or, of another process of ours, what the record says."""
    known = _known(store)
    with known.lock:
        held = known.held.get((study, trial))
        if held is not None and attempt in (None, held.attempt):
            return held
        attempts = attempts_of(store, study, trial)
        if attempt is not None:
            attempts = {attempt: attempts[attempt]} if attempt in attempts else {}
        mine = [one for one in attempts.values() if one.meta.who == me]
        if not mine:
            raise TrialLost(study, trial, attempt, f"{me!r} did not take it; take it first")
        latest = max(mine, key=lambda one: one.attempt)
        if latest.finished or latest.state == RELEASED:
            raise TrialLost(study, trial, latest.attempt, f"it was reported {latest.state} before")
        held = known.held[study, trial] = _held_of(latest, study)
        return held


def _held_of(attempt: Attempt, study: str) -> Held:
    said = attempt.meta
    return Held(
        study,
        attempt.trial,
        attempt.attempt,
        attempt.nonce,
        said.point,
        said.space,
        said.who,
        attempt.goal,
        clock() - attempt.took_s,
        int(said.beat) + 1 if said.beat.isdecimal() else 1,
        said=said,
        digest=attempt.digest,
    )


def attempts_of(store: Store, study: str, trial: int) -> dict[int, Attempt]:
    """Every attempt of a trial, read now."""
    _check_store(store)
    found: dict[int, Attempt] = {}
    number = 0
    while True:
        names = [trial_name(study, trial, number + more) for more in range(4)]
        for record in store.resolve_many(names):
            attempt = None if record is None else attempt_of(record, study)
            if record is None:
                return found
            if attempt is not None:
                found[attempt.attempt] = attempt
        number += len(names)
