"""Every study of a store, kept up to date by one look at all of it."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING

from entrepot.study.history import History
from entrepot.study.trials import is_optunas, is_trial

if TYPE_CHECKING:
    from entrepot.store.base import Store
    from entrepot.store.cursor import Cursor
    from entrepot.store.record import Record
    from entrepot.store.segment import Segment

OPTUNAS = b'"meta":{"is":"'
"""What stands in a segment of a study of Optuna's, and in no other: text has its quotes escaped."""


class Catalog:
    """The histories of all studies in a store, without those of Optuna's.

    A refresh lists what is open and reads what changed, however many studies there are.

    :param most: studies that are followed; what comes later is counted in ``left_out``.
    :param clock: seconds, going up; see :class:`History`.
    :ivar studies: the histories by name, in no order. To be looked at, not to be refreshed.
    :ivar left_out: names of studies that are too many, up to as many as are followed.
    """

    def __init__(
        self, store: Store, *, most: int = 10_000, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.store = store
        self.studies: dict[str, History] = {}
        self.left_out: set[str] = set()
        self._most = most
        self._clock = clock
        self._cursor: Cursor | None = None
        self._optunas: set[str] = set()

    def refresh(self) -> set[str]:
        """Take note of what is new, and return the names of the studies that changed.

        :raises StoreError: the store cannot be read.
        """
        changes = self.store.changes("", self._cursor)
        records: defaultdict[str, list[Record]] = defaultdict(list)
        closed: defaultdict[str, list[Segment]] = defaultdict(list)
        for record in changes.records:
            study = study_of(record.name)
            if study is not None:
                records[study].append(record)
                if is_optunas(record):
                    self._optunas.add(study)
        for segment in changes.closed:
            closed[segment.study].append(segment)
            if OPTUNAS in segment.data:
                self._optunas.add(segment.study)
        for study in {*records, *closed} - self._optunas:
            history = self._history(study)
            if history is not None:
                history.note(records[study], closed[study])
        self._cursor = changes.cursor
        return {*records, *closed} & self.studies.keys()

    def _history(self, study: str) -> History | None:
        history = self.studies.get(study)
        if history is None:
            if len(self.studies) >= self._most:
                if len(self.left_out) < self._most:
                    self.left_out.add(study)
                return None
            history = self.studies[study] = History(self.store, study, clock=self._clock)
        return history


def study_of(name: str) -> str | None:
    """The study of whose trial the record of that name would be; None if of none."""
    study, _, _ = name.rpartition("/trial/")
    return study if study and is_trial(name, study) else None
