"""The studies of a store as the sidecar sees them: read again and again, never written."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import nlargest

from entrepot.errors import EntrepotError, MissingBlob, NoStudy
from entrepot.logs import why_of
from entrepot.sidecar.meter import Meter
from entrepot.store.base import Store
from entrepot.store.record import Fault
from entrepot.study.catalog import Catalog
from entrepot.study.goals import Goal
from entrepot.study.history import History
from entrepot.study.leaders import leaders
from entrepot.study.looking import Abandoned
from entrepot.study.table import Row, Table, said_goal, table
from entrepot.study.trials import DONE, RUNNING, Attempt, curve_of

log = logging.getLogger(__name__)

ABANDONED = "abandoned"
"""A state that no record has: somebody runs the trial, and has not been heard of for long."""

SKIPS = (*map(str, Fault), "stranger", "more")
"""Why a record is passed over. A stranger is a record, and no trial's; of faults that are too many
to be remembered it is not known which were there before."""


@dataclass(frozen=True)
class StudySeen:
    """One study, as it was at the last look.

    :ivar states: trials in each state; those that are abandoned are not among the running.
    :ivar abandoned: those that nobody seems to run any more.
    :ivar goal: what better means; None if nobody said so.
    :ivar best: the best that is done, or the Pareto front.
    :ivar newest: when a record was written last, in seconds since 1970.
    """

    name: str
    states: dict[str, int]
    abandoned: tuple[Abandoned, ...]
    goal: Goal | None
    best: tuple[Row, ...]
    newest: float

    @property
    def trials(self) -> int:
        return sum(self.states.values())


@dataclass(frozen=True)
class StoreSeen:
    """What is in the store.

    :ivar up: whether it could be read at the last look.
    :ivar studies: by name; what was written last comes first.
    :ivar at: when it was read last, in seconds since 1970.
    :ivar why: why it cannot be read, in words.
    :ivar left_out: studies that were too many to be followed.
    :ivar skipped: records that could not be read, by what is wrong with them, since the watch
        began; one that was mended stays counted.
    """

    up: bool = False
    studies: dict[str, StudySeen] = field(default_factory=dict)
    at: float = 0.0
    why: str = "it has not been read yet"
    left_out: int = 0
    skipped: dict[str, int] = field(default_factory=dict)


class StoreWatch:
    """Reads a store in a thread of its own, and keeps what it read.

    Nobody who looks waits for the store, but for who asks for a curve.

    :param make: opens the store, read-only.
    :param every_s: seconds between two looks.
    :param stale_s: seconds of silence, while we watch, after which a trial counts as abandoned.
    :param most: studies that are followed.
    """

    def __init__(
        self,
        make: Callable[[], Store],
        *,
        every_s: float,
        stale_s: float,
        most: int,
        clock: Callable[[], float] = time.time,
        watch: Callable[[], float] = time.monotonic,
    ) -> None:
        self.seen = StoreSeen()
        self.meter = Meter()
        self.stale_s = stale_s
        self._make = make
        self._every_s = every_s
        self._most = most
        self._clock = clock
        self._watch = watch
        self._store: Store | None = None
        self._catalog: Catalog | None = None
        self._skipped: Counter[str] = Counter()
        """Those that cannot be read now."""
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="entrepot-studies", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends with the look that is under way."""
        self._over.set()
        self._thread.join()

    # --- looking ------------------------------------------------------------------------

    def look(self) -> None:
        """One look at the store."""
        try:
            if self._catalog is None:
                with self.meter.timed("open"):
                    self._store = self._make()
                self._catalog = Catalog(self._store, most=self._most, clock=self._watch)
            with self.meter.timed("changes"), self._lock:
                changed = self._catalog.refresh()
                self._note(self._catalog, changed)
        except EntrepotError as fault:
            if self.seen.up or self.seen.why != str(fault):
                log.warning(
                    "the store cannot be read: %s", why_of(fault), extra={"why": str(fault)}
                )
            before = self.seen
            self.seen = StoreSeen(
                False, before.studies, before.at, str(fault), before.left_out, before.skipped
            )

    def _note(self, catalog: Catalog, changed: set[str]) -> None:
        before = self.seen
        if not before.up:
            log.info("the store can be read", extra={"studies": len(catalog.studies)})
        studies = {
            name: _seen(
                name, history, self.stale_s, None if name in changed else before.studies.get(name)
            )
            for name, history in catalog.studies.items()
        }
        ordered = dict(sorted(studies.items(), key=lambda one: (-one[1].newest, one[0])))
        skipped = Counter(map(str, list(catalog.store.skipped.faults.values())))
        skipped["more"] = catalog.store.skipped.more
        skipped["stranger"] = sum(history.strangers for history in catalog.studies.values())
        counts = Counter(before.skipped)
        counts.update(skipped - self._skipped)
        self._skipped = skipped
        self.seen = StoreSeen(True, ordered, self._clock(), "", len(catalog.left_out), dict(counts))

    def _run(self) -> None:
        try:
            while True:
                self.look()
                if self._over.wait(self._every_s):
                    return
        finally:
            if self._store is not None:
                self._store.close()

    # --- one study ----------------------------------------------------------------------

    def shortlist(self, study: str, most: int) -> Table:
        """Of each state at most so many trials, the best or the latest.

        :raises NoStudy: there is none of that name.
        """
        with self._lock:
            attempts = list(self._history(study).trials.values())
        goal = said_goal(attempts)
        others: dict[str, list[Attempt]] = {}
        for one in attempts:
            others.setdefault(one.meta.state, []).append(one)
        others.pop(DONE, None)
        latest = [
            one for each in others.values() for one in nlargest(most, each, key=lambda a: a.when)
        ]
        return table([*leaders(attempts, goal, most), *latest], goal)

    def trials(self, study: str) -> list[Attempt]:
        """The attempts that speak, by trial. Raises NoStudy."""
        with self._lock:
            return list(self._history(study))

    def curve(self, study: str, trial: int) -> list[float]:
        """What a trial reported. A long one costs a request.

        :raises NoStudy: no such study, or no such trial in it.
        :raises StoreError: the store cannot be read.
        """
        with self._lock:
            attempt = self._history(study).trials.get(trial)
            store = self._store
        if attempt is None or store is None:
            raise NoStudy(f"{study!r} has no trial {trial}")
        with self.meter.timed("get"):
            (blob,) = store.get_many([attempt.digest])
        try:
            return curve_of(attempt, blob)
        except ValueError as fault:
            raise MissingBlob(
                f"the curve of trial {trial} of {study!r} is not there: {fault}"
            ) from fault

    def _history(self, study: str) -> History:
        found = None if self._catalog is None else self._catalog.studies.get(study)
        if found is None:
            raise NoStudy(f"no study is named {study!r:.100} in this store")
        return found


def _seen(name: str, history: History, stale_s: float, before: StudySeen | None) -> StudySeen:
    """A study now. What did not change is taken from ``before``; only time has passed."""
    silent = tuple(
        Abandoned(one.trial, one.attempt, one.meta.point, seconds, one.meta.who)
        for one in history.unfinished()
        if one.state == RUNNING and (seconds := history.watched_s(one.trial)) >= stale_s
    )
    states = {state: count for state, count in history.states.items() if count}
    if silent:
        states[ABANDONED] = len(silent)
        states[RUNNING] = states.get(RUNNING, 0) - len(silent)
    if before is not None:
        goal, best, newest = before.goal, before.best, before.newest
    else:
        attempts = list(history.trials.values())
        goal = said_goal(attempts)
        best = tuple(table(leaders(attempts, goal, 1), goal).best)
        newest = max((one.when for one in attempts), default=0.0)
    return StudySeen(name, states, silent, goal, best, newest)
