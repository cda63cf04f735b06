"""What this process knows of the trials of one study. A look at all of them costs a listing and
what changed; a look at one costs a few small reads, and none once it is finished.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterable, Sequence

from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial, TrialState

from entrepot.arguments import shown
from entrepot.errors import StoreError
from entrepot.logs import why_of
from entrepot.store.base import Store
from entrepot.store.cursor import Cursor
from entrepot.store.layout import BLOCK_TRIALS, block_of
from entrepot.store.record import Record
from entrepot.study.optuna.slots import (
    FINISHED,
    FURTHER,
    MADE,
    TAKEN,
    Body,
    frozen,
    in_blob,
    last,
    lost,
    read,
)

_logger = logging.getLogger(__name__)

TRIALS = 10**9
"""Trials of a study: trial n of study s has the id ``s * TRIALS + n``, exact in a double too."""


class Seen:
    """The trials below ``base``, as far as they were read."""

    def __init__(self, store: Store, base: str, study_id: int) -> None:
        self._store = store
        self._base = base
        self._first_id = study_id * TRIALS
        self._lock = threading.RLock()
        self._looking = threading.Lock()
        self._cursor: Cursor | None = None
        self._slots: dict[int, dict[int, Body]] = {}
        self._known: dict[int, FrozenTrial] = {}
        self._row: list[FrozenTrial] = []
        self._ours: dict[int, set[int]] = {}  # slots that nobody else writes
        self._lost: set[int] = set()
        self._waiting: set[int] = set()
        self._news: str | None = None
        self._done: Counter[int] = Counter()
        self._full: set[int] = set()
        self._closed: set[int] = set()
        self.distributions: dict[str, BaseDistribution] = {}

    # --- reading ------------------------------------------------------------------------

    def all(self) -> list[FrozenTrial]:
        """Every trial, by number."""
        self.refresh()
        with self._lock:
            return self._row.copy()

    def waiting(self) -> list[FrozenTrial]:
        """Those that wait, by number.

        :raises KeyError: the study was deleted.
        """
        if self._waiting or self._study().nonce != self._news:
            self.refresh()
        with self._lock:
            return [self._known[number] for number in sorted(self._waiting)]

    def get(self, number: int) -> FrozenTrial:
        """One trial as it is now.

        :raises KeyError: there is none with that number.
        """
        trial = self._known.get(number)
        if trial is None or not trial.state.is_finished():
            self._look(number)
            trial = self._known.get(number)
        if trial is None:
            raise KeyError(f"no trial has the id {self._first_id + number} in {self._store.url}")
        return trial

    def check(self, number: int) -> None:
        """:raises KeyError: there is no trial with that number."""
        if number not in self._known:
            self.get(number)

    def refresh(self) -> None:
        """Look at what others wrote.

        :raises KeyError: the study was deleted.
        """
        with self._looking:
            news = self._study().nonce
            found = self._store.changes(f"{self._base}/trial/", self._cursor)
            records = found.records
            for segment in found.closed:
                self._closed.add(segment.block)
                # Of what is finished nothing changes: who saw all of it has nothing to read.
                if self._finished(segment.block) < BLOCK_TRIALS:
                    records += segment.records()
            self._apply(records)
            self._cursor = found.cursor
            self._news = news
            self._fill()
            for block in [each for each, done in self._done.items() if done == BLOCK_TRIALS]:
                self._close(block)

    def _finished(self, block: int) -> int:
        """How many of a block's trials are known to be finished."""
        return BLOCK_TRIALS if block in self._full else self._done[block]

    def _study(self) -> Record:
        """The record that is written anew when a trial was enqueued."""
        found = self._store.resolve(f"{self._base}/study")
        if found is None:
            raise KeyError(f"the study {self._base} was deleted from {self._store.url}")
        return found

    def silent(self, grace_s: float) -> list[int]:
        """Numbers of trials whose process beat, and has not beaten for so long."""
        self.refresh()
        with self._lock:
            running = {
                number: [self._name(number, slot) for slot in slots]
                for number, slots in self._slots.items()
                if number in self._known
                and self._known[number].state is TrialState.RUNNING
                and any(slot.beat for slot in slots.values())
            }
        if not running:
            return []
        heard: dict[int, float] = {}
        for number, names in running.items():
            records = self._store.resolve_many(names)
            heard[number] = max((each.when for each in records if each is not None), default=0.0)
        now = self._store.now()
        return [number for number, when in heard.items() if now - when > grace_s]

    def _look(self, number: int) -> None:
        """Read what others may have written of one trial."""
        while True:
            with self._lock:
                slots = set(self._slots.get(number, ()))
                trial = self._known.get(number)
                upcoming = next_slot(slots)
                wanted = {MADE, FINISHED, upcoming} | slots
                if trial is None or trial.state is TrialState.WAITING:
                    wanted.add(TAKEN)
                wanted -= self._ours.get(number, set())
            found = self._store.resolve_many([self._name(number, slot) for slot in sorted(wanted)])
            there = [record for record in found if record is not None]
            self._apply(there)
            if not any(record.name == self._name(number, upcoming) for record in there):
                return

    def _apply(self, records: Sequence[Record]) -> None:
        if not records:
            return
        digests = list({record.digest for record in records if in_blob(record)})
        blobs = dict(zip(digests, self._store.get_many(digests), strict=True)) if digests else {}
        with self._lock:
            touched: set[int] = set()
            for record in records:
                place = self._place(record.name)
                if place is None:
                    continue
                number, slot = place
                if slot in self._ours.get(number, ()):
                    continue  # what was read may be older than what was written since
                said = read(record, blobs.get(record.digest))
                if said is not None:
                    self._slots.setdefault(number, {})[slot] = said
                    touched.add(number)
            for number in sorted(touched):
                self._rebuild(number)

    def _rebuild(self, number: int) -> None:
        slots = self._slots[number]
        if MADE not in slots:
            return
        before = self._known.get(number)
        try:
            trial = frozen(self._first_id + number, number, slots)
        except (ValueError, TypeError, LookupError):  # not ours, or of a later release
            return
        self._known[number] = trial
        self._lost.discard(number)
        for name, distribution in trial.distributions.items():
            self.distributions.setdefault(name, distribution)
        if trial.state is TrialState.WAITING:
            self._waiting.add(number)
        else:
            self._waiting.discard(number)
        if trial.state.is_finished():
            if before is None or not before.state.is_finished():
                self._done[block_of(number)] += 1
            self._forget(number)
        self._into_row(number)

    def _forget(self, number: int) -> None:
        """A trial is finished: nobody writes it any more."""
        self._ours.pop(number, None)

    def _into_row(self, number: int) -> None:
        row = self._row
        if number < len(row):
            row[number] = self._known[number]
        while (trial := self._known.get(len(row))) is not None:
            row.append(trial)

    def _fill(self) -> None:
        """A number is claimed only behind those before it: what a listing missed is there."""
        with self._lock:
            if len(self._row) == len(self._known) + len(self._lost):
                return
            missing = set(range(len(self._row), max(self._known))) - self._known.keys()
        for number in sorted(missing):
            self._look(number)
            with self._lock:
                if number not in self._known:
                    self._lost.add(number)
                    self._row.append(lost(self._first_id + number, number))
                    self._into_row(number + 1)

    def _name(self, number: int, slot: int) -> str:
        return f"{self._base}/trial/{number}/{slot}"

    def _place(self, name: str) -> tuple[int, int] | None:
        """The trial and slot that a record is of."""
        trial, _, slot = name[len(self._base) + len("/trial/") :].partition("/")
        return (int(trial), int(slot)) if trial.isdecimal() and slot.isdecimal() else None

    # --- finished blocks ----------------------------------------------------------------

    def _close(self, block: int) -> None:
        """Make a finished block one read for everybody."""
        with self._lock:
            del self._done[block]
            self._full.add(block)
            numbers = range(block * BLOCK_TRIALS, (block + 1) * BLOCK_TRIALS)
            names = [
                self._name(number, slot)
                for number in numbers
                for slot in self._slots.pop(number, ())
            ]
        if block in self._closed or self._store.read_only:
            return
        try:
            records = [each for each in self._store.resolve_many(names) if each is not None]
            self._store.close_block(self._base, block, records)
        except StoreError as error:  # the records are there and speak as before
            _logger.warning(
                "a finished block of trials of %s could not be closed: %s",
                shown(self._base),
                why_of(error),
                extra={"study": self._base, "block": block, "error": str(error)},
            )


def next_slot(slots: Iterable[int]) -> int:
    """The first slot that is anybody's and not known to be claimed."""
    return max(FURTHER, last(slots) + 1)
