"""What an edge gives to a store of keys and bytes, and what it is told in return.

Folder, bucket and memory differ only in the methods that are abstract here. A key is as
:mod:`entrepot.store.layout` makes it.
"""

from __future__ import annotations

import itertools
import logging
from abc import abstractmethod
from collections.abc import Iterable, Sequence

from entrepot.arguments import shown
from entrepot.errors import Closed, StoreReadOnly
from entrepot.store import layout
from entrepot.store.base import Skipped, Store
from entrepot.store.clock import StoreClock
from entrepot.store.cursor import Listing, Tag
from entrepot.store.record import Fault, Record, read_record

_logger = logging.getLogger(__name__)


class Primitives(Store):
    """See the module; the verbs are in :class:`entrepot.store.keyed.KeyedStore`."""

    def __init__(self, url: str, *, read_only: bool, writer: str | None, clock: StoreClock) -> None:
        """
        :param writer: who writes, for people; stands in every record. By default host and process.
        :param clock: anchored by the edge with what the store stamps on its writes.
        """
        self.url = url
        self.read_only = read_only
        self.skipped = Skipped()
        self._writer = writer
        self._clock = clock
        self._closed = False

    # --- primitives ---------------------------------------------------------------------

    @abstractmethod
    def _read(self, key: str) -> bytes | None:
        """The record's bytes at the key, or None. Of more than a record may have, the first
        ``MAX_RECORD_NBYTES`` and at least one more."""

    def _read_many(self, keys: Sequence[str]) -> Iterable[bytes | None]:
        """The bytes at each key, in order. A store across a network asks for many at once."""
        return map(self._read, keys)

    @abstractmethod
    def _read_blob(self, key: str) -> bytes | None:
        """All bytes of a blob, or None."""

    def _read_blobs(self, keys: Sequence[str]) -> Iterable[bytes | None]:
        """The bytes of each, in order. A store across a network asks for many at once."""
        return map(self._read_blob, keys)

    @abstractmethod
    def _list(self, folder: str) -> Listing:
        """What lies in a folder, one level deep; nothing if there is no such folder."""

    def _list_many(self, folders: Sequence[str]) -> Iterable[Listing]:
        """Each folder, in order. A store across a network asks for many at once."""
        return map(self._list, folders)

    @abstractmethod
    def _create(self, key: str, record: Record, data: bytes) -> bool:
        """Write a record, ``data``, only if nothing is at its key, and say whether it did.

        Whatever does not say plainly that the write was made is settled by reading the key
        back: :func:`stands_as`. A record that is torn and that nobody can be writing any more
        counts as nothing.

        :raises ClaimUnsettled: it could not be read back either.
        """

    @abstractmethod
    def _replace(self, key: str, record: Record, data: bytes) -> None:
        """Write a record, whatever is at its key; a reader sees the old one or the new."""

    @abstractmethod
    def _put_blob(self, key: str, data: memoryview) -> None:
        """Write a blob, or make the one that is there young; a damaged one is written anew."""

    def _hold_blob(self, key: str) -> None:
        """A record is about to name this blob: make it young, where that costs no upload."""

    @abstractmethod
    def _remove(self, key: str) -> None:
        """Remove the record at the key, if there is one."""

    def _remove_many(self, keys: Sequence[str]) -> None:
        """:meth:`_remove` of each. A store across a network asks for many at once."""
        for key in keys:
            self._remove(key)

    @abstractmethod
    def _blobs(self) -> Iterable[tuple[str, float, int, Tag]]:
        """Every blob: key, time of its last put by the store's clock, bytes, tag."""

    @abstractmethod
    def _remove_blob(self, key: str, tag: Tag) -> bool:
        """Remove the blob, unless it was put again since it had this tag; whether it is gone."""

    def _remove_blobs(self, blobs: Sequence[tuple[str, Tag]]) -> Iterable[bool]:
        """:meth:`_remove_blob` of each. A store across a network asks for many at once."""
        return itertools.starmap(self._remove_blob, blobs)

    @abstractmethod
    def _stamp(self) -> float:
        """Seconds since 1970, as the store stamps them on a write that is made for the purpose."""

    def _tidy(self) -> None:
        """Remove what killed writers left, if they can leave anything."""

    # --- what is read ----------------------------------------------------------------------

    def _understood(self, key: str, data: bytes | None) -> Record | None:
        """The record at the key; what is none is noted."""
        if data is None:
            if self.skipped.faults:
                self.skipped.clear(key)
            return None
        record = read_record(data)
        if isinstance(record, Fault):
            self._skip(key, record)
        elif layout.key_of(record.name) != key:
            self._skip(key, Fault.FOREIGN)
        else:
            if self.skipped.faults:
                self.skipped.clear(key)
            return record
        return None

    def _skip(self, key: str, fault: Fault) -> None:
        if self.skipped.note(key, fault):
            _logger.warning(
                "%s, among the records of %s, cannot be read: %s",
                shown(key),
                shown(self.url),
                fault,
                extra={"store": self.url, "key": key, "fault": str(fault)},
            )

    # --- what may be done ---------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"{self.url} was closed here; open it again")

    def _check_writable(self, what: str) -> None:
        self._check_open()
        if self.read_only:
            raise StoreReadOnly(
                f"{self.url} was opened read-only and cannot {what}; open it without read_only"
            )


def stands_as(data: bytes | None, nonce: str) -> bool | None:
    """What was read back says of a claim: True, it is ours; False, another's; None, nobody's.

    Bytes that are torn are nobody's yet: somebody is writing them, or was killed in it.
    """
    if data is None:
        return None
    found = read_record(data)
    if isinstance(found, Record):
        return found.nonce == nonce
    return None if found is Fault.TORN else False
