"""The trials of one study, as Optuna writes them.

Who may write what is in :mod:`entrepot.study.optuna.slots`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

from msgspec import structs
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial, TrialState

from entrepot.arguments import shown
from entrepot.errors import EntrepotError
from entrepot.logs import why_of
from entrepot.store.base import Store
from entrepot.store.record import EMPTY
from entrepot.study.optuna.seen import Seen, next_slot
from entrepot.study.optuna.slots import (
    FINISHED,
    FULL_CHARS,
    MADE,
    TAKEN,
    Body,
    last,
    length,
    started_now,
    written,
)
from entrepot.study.optuna.studies import claimed

_logger = logging.getLogger(__name__)

Change = Callable[[Body], Body]


@dataclass
class _Mine:
    """The slot of a trial that this process claimed and may write again.

    :ivar ahead: whether its body says what is not yet in the store.
    """

    slot: int
    body: Body
    digest: str
    meta: dict[str, str]
    ahead: bool = False


class Trials(Seen):
    """
    :param soon_s: within so many seconds what :meth:`write_soon` is given is in the store; 0 writes
        it at once.
    """

    def __init__(self, store: Store, base: str, study_id: int, soon_s: float) -> None:
        super().__init__(store, base, study_id)
        self._mine: dict[int, _Mine] = {}
        self._locks: dict[int, threading.RLock] = {}
        self._next = 0
        self._soon_s = soon_s
        self._due: set[int] = set()
        self._writer: threading.Thread | None = None
        self._written = threading.Event()

    def _forget(self, number: int) -> None:
        super()._forget(number)
        self._mine.pop(number, None)
        self._locks.pop(number, None)

    # --- making -------------------------------------------------------------------------

    def make(self, body: Body) -> int:
        """Claim the next number."""
        meta, blob = written(body)
        digest = EMPTY if blob is None else self._store.put(blob)
        number, stride = max(self._next, len(self._row)), 1
        while not claimed(self._store, self._name(number, MADE), digest, meta):
            number, stride = self._gallop(number + 1, stride), min(2 * stride, 64)
        with self._lock:
            self._next = max(self._next, number + 1)
            self._mine[number] = _Mine(MADE, body, digest, meta)
            self._hold(number, MADE, body)
        if body.state == TrialState.WAITING.name:
            self._store.bind(f"{self._base}/study")
        return number

    def _gallop(self, number: int, stride: int) -> int:
        """The first number from this one on that nobody had when it was looked at, or further."""
        names = [self._name(each, MADE) for each in range(number, number + stride)]
        for ahead, record in enumerate(self._store.resolve_many(names)):
            if record is None:
                return number + ahead
        return number + stride

    def take_up(self, number: int) -> bool:
        """Whether a trial that waited is this process's now.

        :raises UpdateFinishedTrialError: it is finished.
        """
        with self._lock_of(number):
            trial = self._unfinished(number)
            if trial.state is not TrialState.WAITING:
                return False
            return self._claim(number, TAKEN, started_now())

    # --- writing ------------------------------------------------------------------------

    def write(self, number: int, change: Change) -> None:
        """Change what a trial says.

        :raises UpdateFinishedTrialError: it is finished.
        """
        with self._lock_of(number):
            self._unfinished(number)
            mine = self._mine.get(number)
            if mine is not None and self._goes_on(number, mine):
                self._rewrite(number, mine, change(mine.body))
                return
            body = change(Body())
            while not self._claim(number, next_slot(self._slots[number]), body):
                self._look(number)

    def write_soon(self, number: int, change: Change) -> None:
        """The same, but written with what comes next, or by a thread in a moment: what a trial
        tries is told one by one.

        :raises UpdateFinishedTrialError: it is finished, as far as is known.
        """
        with self._lock_of(number):
            mine = self._mine.get(number)
            if not self._soon_s or mine is None or not self._goes_on(number, mine):
                self.write(number, change)
                return
            self._keep(number, replace(mine, body=change(mine.body), ahead=True))
        with self._lock:
            self._due.add(number)
            if self._writer is None:
                # No daemon: a process that asks and ends waits for it.
                self._writer = threading.Thread(target=self._write_due, name="entrepot-optuna")
                self._writer.start()

    def flush(self) -> None:
        """Write what is not yet in the store."""
        with self._lock:
            due = list(self._due)
            self._due.clear()
        for number in due:
            with self._lock_of(number):
                mine = self._mine.get(number)
                if mine is not None and mine.ahead:
                    self._rewrite(number, mine, mine.body)
        self._written.set()

    def _write_due(self) -> None:
        while True:
            try:
                if not self._written.wait(self._soon_s):
                    self.flush()
                self._written.clear()
            except EntrepotError as error:  # the next write of the trial, or its finish, has it too
                _logger.warning(
                    "what a trial of %s tries could not be written yet: %s",
                    shown(self._base),
                    why_of(error),
                    extra={"study": self._base, "error": str(error)},
                )
            with self._lock:
                if not self._due:
                    self._writer = None
                    return

    def _goes_on(self, number: int, mine: _Mine) -> bool:
        """Whether more can be written into the slot: nothing hides it, and it is not full."""
        return (
            mine.slot == last(self._slots[number])
            and length(mine.meta) < FULL_CHARS
            and mine.digest == EMPTY
        )

    def beat(self, number: int) -> None:
        """Say that the trial's process lives; says nothing of a trial that is finished."""
        with self._lock_of(number):
            mine = self._mine.get(number)
            if mine is None:
                try:
                    self.write(number, beating)
                except UpdateFinishedTrialError:
                    pass
                return
            body = beating(mine.body)
            meta = {**mine.meta, "beat": str(body.beat)}
            self._store.bind(self._name(number, mine.slot), mine.digest, meta)
            self._keep(number, replace(mine, body=body, meta=meta))

    def finish(self, number: int, body: Body) -> None:
        """Finish a trial.

        :raises UpdateFinishedTrialError: it is finished; of all that finish it one is not told so.
        """
        with self._lock_of(number):
            trial = self.get(number)
            mine = self._mine.get(number)
            if mine is not None and mine.ahead:
                body = structs.replace(body, params=mine.body.params)
            if trial.state.is_finished() or not self._claim(number, FINISHED, body):
                self._look(number)
                raise finished_already(number)

    def _unfinished(self, number: int) -> FrozenTrial:
        trial = self.get(number)
        if trial.state.is_finished():
            raise finished_already(number)
        return trial

    def _claim(self, number: int, slot: int, body: Body) -> bool:
        mine = self._mine.get(number)
        if mine is not None and mine.ahead and slot != FINISHED:
            self._rewrite(number, mine, mine.body)
        meta, blob = written(body)
        digest = EMPTY if blob is None else self._store.put(blob)
        if not claimed(self._store, self._name(number, slot), digest, meta):
            return False
        with self._lock:
            self._mine[number] = _Mine(slot, body, digest, meta)
            self._hold(number, slot, body)
        return True

    def _rewrite(self, number: int, mine: _Mine, body: Body) -> None:
        meta, blob = written(body)
        digest = EMPTY if blob is None else self._store.put(blob)
        self._store.bind(self._name(number, mine.slot), digest, meta)
        self._keep(number, _Mine(mine.slot, body, digest, meta))

    def _keep(self, number: int, mine: _Mine) -> None:
        with self._lock:
            self._mine[number] = mine
            self._hold(number, mine.slot, mine.body)

    def _hold(self, number: int, slot: int, body: Body) -> None:
        """Know what was written here, which is as new as can be."""
        self._ours.setdefault(number, set()).add(slot)
        self._slots.setdefault(number, {})[slot] = body
        self._rebuild(number)

    def _lock_of(self, number: int) -> threading.RLock:
        with self._lock:
            return self._locks.setdefault(number, threading.RLock())


def beating(body: Body) -> Body:
    """The same a beat later."""
    return structs.replace(body, beat=body.beat + 1)


def finished_already(number: int) -> UpdateFinishedTrialError:
    return UpdateFinishedTrialError(f"trial {number} is finished and cannot be changed")
