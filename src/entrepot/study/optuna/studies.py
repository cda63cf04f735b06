"""Studies of Optuna's in a store: their ids, names and attributes.

::

    <root>/studies/id-<id>                  claimed: an id is given out once, also after deletions
    <root>/studies/name-<hash>-<k>          claimed: the k-th study of that name, with its id
    <root>/studies/gone-<id>                claimed by who deletes it
    <root>/studies/removed-<id>             claimed when none of its records is left
    <root>/<id>/study                       bound anew when a trial was enqueued; not there: deleted
    <root>/<id>/attr/<kind>-<hash of key>   an attribute: whoever writes it last is read

A study is there if its name says so and nobody claimed that it is gone, so a process that is killed
between two of these leaves nothing that is half there. What one that was killed while it deleted
has left of the records is removed by whoever deletes next, or lists all studies.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from optuna.exceptions import DuplicatedStudyError
from optuna.study import StudyDirection

from entrepot.errors import ClaimUnsettled, StoreError
from entrepot.logs import why_of
from entrepot.store.base import Store
from entrepot.store.cursor import Cursor
from entrepot.store.identity import new_nonce
from entrepot.store.record import EMPTY, Record

_logger = logging.getLogger(__name__)

Kind = Literal["user", "system"]

INLINE_CHARS = 30_000
"""An attribute whose JSON is longer is a blob."""


@dataclass(frozen=True)
class Known:
    """A study: what never changes of it."""

    id: int
    name: str
    directions: list[StudyDirection]


class Studies:
    """The studies below ``root``, as far as this process knows them."""

    def __init__(self, store: Store, root: str) -> None:
        self.store = store
        self._root = root
        self._prefix = f"{root}/studies/"
        self._lock = threading.Lock()
        self._cursor: Cursor | None = None
        self._ids = -1
        self._of_name: dict[str, dict[int, Known]] = {}
        self._by_id: dict[int, Known] = {}
        self._gone: set[int] = set()
        self._removed: set[int] = set()

    def refresh(self) -> None:
        """Look at what others made and deleted."""
        with self._lock:
            found = self.store.changes(self._prefix, self._cursor)
            for record in found.records:
                self._learn(record)
            self._cursor = found.cursor

    def _learn(self, record: Record) -> None:
        kind, _, rest = record.name[len(self._prefix) :].partition("-")
        try:
            match kind:
                case "id":
                    self._ids = max(self._ids, int(rest))
                case "gone":
                    self._gone.add(int(rest))
                case "removed":
                    self._removed.add(int(rest))
                case "name":
                    said = record.meta
                    directions = [StudyDirection[one] for one in said["directions"].split(",")]
                    known = Known(int(said["id"]), said["name"], directions)
                    self._of_name.setdefault(known.name, {})[int(rest.rpartition("-")[2])] = known
                    self._by_id[known.id] = known
        except (KeyError, ValueError):  # somebody else's
            pass

    def all(self) -> list[Known]:
        """Every study there is, by id. What is left of those that were deleted is removed."""
        self.refresh()
        if not self.store.read_only:
            try:
                self._finish()
            except StoreError as error:  # others may do it, or this one the next time
                _logger.warning(
                    "what is left of a deleted study cannot be removed: %s",
                    why_of(error),
                    extra={"store": self.store.url, "error": str(error)},
                )
        return [known for id_, known in sorted(self._by_id.items()) if id_ not in self._gone]

    def get(self, study_id: int) -> Known:
        """:raises KeyError: there is none with that id."""
        if study_id not in self._by_id and study_id not in self._gone:
            self.refresh()
        known = self._by_id.get(study_id)
        if known is None or study_id in self._gone:
            raise KeyError(f"no study has the id {study_id} in {self.store.url}")
        return known

    def of_name(self, name: str) -> Known:
        """:raises KeyError: there is none of that name."""
        self.refresh()
        known, _ = self._living(name)
        if known is None:
            raise KeyError(f"no study has the name {name!r} in {self.store.url}")
        return known

    def _living(self, name: str) -> tuple[Known | None, int]:
        """The study that has the name, and how many have had it."""
        had = self._of_name.get(name, {})
        latest = had.get(max(had, default=-1))
        if latest is not None and latest.id in self._gone:
            latest = None
        return latest, len(had)

    def make(self, name: str, directions: Sequence[StudyDirection]) -> Known:
        """A new study.

        :raises DuplicatedStudyError: there is one of that name.
        """
        self.refresh()
        hashed = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:40]
        while True:
            living, count = self._living(name)
            if living is not None:
                raise DuplicatedStudyError(
                    f"a study named {name!r} is in {self.store.url}; give another name, or "
                    f"load_if_exists=True"
                )
            made = Known(self._new_id(), name, list(directions))
            self.store.bind(f"{self._root}/{made.id}/study")
            meta = {
                "name": name,
                "id": str(made.id),
                "directions": ",".join(one.name for one in made.directions),
            }
            if claimed(self.store, f"{self._prefix}name-{hashed}-{count}", EMPTY, meta):
                with self._lock:
                    self._of_name.setdefault(name, {})[count] = made
                    self._by_id[made.id] = made
                return made
            self.refresh()

    def _new_id(self) -> int:
        while True:
            number = self._ids + 1
            won = claimed(self.store, f"{self._prefix}id-{number}", EMPTY, {})
            with self._lock:
                self._ids = max(self._ids, number)
            if won:
                return number

    def delete(self, study_id: int) -> None:
        """Delete it, and what others that were killed have left of theirs.

        :raises KeyError: there is none with that id, or somebody was faster.
        """
        self.refresh()
        known = self.get(study_id)
        won = claimed(self.store, f"{self._prefix}gone-{known.id}", EMPTY, {})
        self._gone.add(known.id)
        if not won:
            raise KeyError(f"the study with the id {study_id} was deleted by somebody else")
        self._finish()

    def _finish(self) -> None:
        """Remove every record of the studies that are gone. Several may do so at once."""
        for study_id in sorted(self._gone - self._removed):
            self.store.delete(f"{self._root}/{study_id}/")
            claimed(self.store, f"{self._prefix}removed-{study_id}", EMPTY, {})
            self._removed.add(study_id)


class Attributes:
    """The attributes of one study."""

    def __init__(self, store: Store, base: str) -> None:
        self._store = store
        self._prefix = f"{base}/attr/"
        self._lock = threading.Lock()
        self._cursor: Cursor | None = None
        self._said: dict[str, dict[str, Any]] = {"user": {}, "system": {}}

    def set(self, kind: Kind, key: str, value: Any) -> None:
        """:raises TypeError: JSON cannot say this value."""
        text = json.dumps(value)
        hashed = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:40]
        name = f"{self._prefix}{kind}-{hashed}"
        meta = {"key": json.dumps(key)}
        if len(text) <= INLINE_CHARS:
            self._store.bind(name, EMPTY, {**meta, "value": text})
        else:
            self._store.bind(name, self._store.put(text.encode()), meta)

    def get(self, kind: Kind) -> dict[str, Any]:
        """All of a kind, as somebody may keep it: nothing changes it any more."""
        with self._lock:
            found = self._store.changes(self._prefix, self._cursor)
            records = found.records
            if records:
                digests = [each.digest for each in records if each.digest != EMPTY]
                blobs = dict(zip(digests, self._store.get_many(digests), strict=True))
                said = {kind: dict(had) for kind, had in self._said.items()}
                for record in sorted(records, key=lambda record: record.when):
                    self._learn(record, blobs.get(record.digest), said)
                self._said = said
            self._cursor = found.cursor
            return self._said[kind]

    def _learn(self, record: Record, blob: bytes | None, said: dict[str, dict[str, Any]]) -> None:
        kind = record.name[len(self._prefix) :].partition("-")[0]
        text: str | bytes | None = record.meta.get("value", blob)
        if kind in said and text is not None:
            try:
                said[kind][json.loads(record.meta["key"])] = json.loads(text)
            except (KeyError, ValueError, TypeError):  # somebody else's
                pass


def claimed(store: Store, name: str, digest: str, meta: dict[str, str]) -> bool:
    """:meth:`Store.claim`, asked once more where the store failed in the middle.

    :raises ClaimUnsettled: it failed again.
    """
    nonce = new_nonce()
    try:
        return store.claim(name, digest, meta, nonce=nonce)
    except ClaimUnsettled:
        return store.claim(name, digest, meta, nonce=nonce)
