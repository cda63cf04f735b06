"""A store made of keys and bytes: every verb, on top of a few primitives.

Folder, bucket and memory differ only in the primitives; what a record is, where it lies, what is
new, which blocks are closed and what gc may take is decided in one place for all of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from entrepot.errors import BadRecord, ConfigurationError, CorruptBlob, MissingBlob
from entrepot.store import layout
from entrepot.store.base import GRACE_S, Changes, Swept
from entrepot.store.cursor import Cursor, Seen, Tag, after, checked_cursor, is_new
from entrepot.store.identity import default_writer, new_nonce
from entrepot.store.primitives import Primitives
from entrepot.store.record import (
    EMPTY,
    Digest,
    Record,
    bytes_in,
    checked_digest,
    checked_meta,
    checked_name,
    checked_nonce,
    checked_prefix,
    digest_of,
    digests_in,
    pack_record,
)
from entrepot.store.segment import pack_segment, segment_of
from entrepot.store.walk import Walk


class KeyedStore(Primitives):
    """See the module. A class of yours gives what is abstract in
    :class:`~entrepot.store.primitives.Primitives`."""

    # --- blobs --------------------------------------------------------------------------

    def put(self, data: bytes | bytearray | memoryview) -> Digest:
        self._check_writable("put a blob")
        view = bytes_in(data)
        digest = digest_of(view)
        if digest != EMPTY:
            self._put_blob(layout.blob_key(digest), view)
        return digest

    def get(self, digest: str) -> bytes:
        return self._known(checked_digest(digest), self.get_many([digest])[0])

    def _known(self, digest: str, data: bytes | None) -> bytes:
        if data is None:
            raise MissingBlob(
                f"{digest} is not in {self.url}; if it was put there, it was not named by a "
                f"record before gc's grace had passed, or its record was deleted"
            )
        return data

    def get_many(self, digests: Sequence[str]) -> list[bytes | None]:
        self._check_open()
        wanted = {each: layout.blob_key(checked_digest(each)) for each in digests if each != EMPTY}
        found: dict[str, bytes | None] = {EMPTY: b""}
        for digest, data in zip(wanted, self._read_blobs(list(wanted.values())), strict=True):
            if data is not None and digest_of(data) != digest:
                raise CorruptBlob(
                    f"what {self.url} has under {digest} are {len(data)} other bytes; put the "
                    f"right ones again, or remove {layout.blob_key(digest)}"
                )
            found[digest] = data
        return [found[each] for each in digests]

    # --- names --------------------------------------------------------------------------

    def claim(
        self,
        name: str,
        digest: str = EMPTY,
        meta: Mapping[str, str] | None = None,
        *,
        nonce: str | None = None,
    ) -> bool:
        record = self._record("claim", name, digest, meta, nonce)
        return self._create(layout.key_of(name), record, pack_record(record))

    def bind(
        self,
        name: str,
        digest: str = EMPTY,
        meta: Mapping[str, str] | None = None,
        *,
        nonce: str | None = None,
    ) -> None:
        record = self._record("bind", name, digest, meta, nonce)
        self._replace(layout.key_of(name), record, pack_record(record))

    def _record(
        self,
        verb: str,
        name: str,
        digest: str,
        meta: Mapping[str, str] | None,
        nonce: str | None,
    ) -> Record:
        self._check_writable(verb)
        if self._clock.due:
            self._clock.anchor(self._stamp())
        record = Record(
            checked_name(name),
            checked_digest(digest),
            checked_meta(meta or {}),
            int(self._clock.now() * 1e6) / 1e6,
            self._writer or default_writer(),
            new_nonce() if nonce is None else checked_nonce(nonce),
        )
        if digest != EMPTY:
            self._hold_blob(layout.blob_key(digest))
        return record

    def resolve(self, name: str) -> Record | None:
        self._check_open()
        key = layout.key_of(checked_name(name))
        return self._understood(key, self._read(key))

    def resolve_many(self, names: Sequence[str]) -> list[Record | None]:
        self._check_open()
        keys = [layout.key_of(checked_name(name)) for name in names]
        return list(map(self._understood, keys, self._read_many(keys)))

    # --- many records -------------------------------------------------------------------

    def scan(self, prefix: str = "") -> list[Record]:
        found = self.changes(prefix)
        records = found.records
        for segment in found.closed:
            records += segment.records()
        records.sort(key=lambda record: record.name)
        return records

    def changes(self, prefix: str = "", cursor: Cursor | None = None) -> Changes:
        self._check_open()
        checked_prefix(prefix)
        cursor = checked_cursor(cursor, self.url, prefix)
        records: list[Record] = []
        seen: dict[str, Seen] = {}
        walk = Walk(self, cursor)
        for folder in walk.folders():
            nonces: dict[str, str] = {}
            for file, data in folder.data.items():
                record = self._understood(f"{folder.path}/{file}", data)
                if record is None:
                    nonces[file] = ""
                    continue
                nonces[file] = record.nonce
                if record.name.startswith(prefix) and is_new(
                    folder.before, folder.listing, file, record.nonce
                ):
                    records.append(record)
            seen[folder.path] = after(folder.before, folder.listing, nonces)
        segments = walk.segments
        if not layout.is_whole(prefix):
            # A segment that has more than what was asked for is no answer by itself.
            for segment in segments:
                records += [each for each in segment.records() if each.name.startswith(prefix)]
            segments = []
        return Changes(records, segments, Cursor(self.url, prefix, seen, walk.closed))

    def delete(self, prefix: str) -> int:
        self._check_writable("delete records")
        if not prefix:
            raise BadRecord("delete needs a prefix, such as 'spam/': an empty one is every study")
        checked_prefix(prefix)
        removed = 0
        level = [layout.folder_of(prefix)]
        while level:
            below: list[str] = []
            for path, listing in zip(level, list(self._list_many(level)), strict=True):
                gone = [
                    key
                    for file in listing.files
                    if self._name_at(key := f"{path}/{file}").startswith(prefix)
                ]
                segment = segment_of(path)
                if gone and segment is not None:
                    # First, since what it holds would be served when its files are gone.
                    self._remove(segment)
                self._remove_many(gone)
                removed += len(gone)
                below += [f"{path}/{each}" for each in listing.folders]
            level = below
        return removed

    def _name_at(self, key: str) -> str:
        name = layout.name_of(key)
        if name is None and layout.is_hashed(key):
            record = self._understood(key, self._read(key))
            name = None if record is None else record.name
        return name or ""

    # --- the store itself ---------------------------------------------------------------

    def close(self) -> None:
        self._closed = True

    def now(self) -> float:
        self._check_writable("read its clock, which takes a write")
        stamp = self._stamp()
        self._clock.anchor(stamp)
        return stamp

    def close_block(self, study: str, block: int, records: Sequence[Record]) -> bool:
        digest = self.put(pack_segment(study, block, records))
        name = layout.segment_name(study, block)
        return self.claim(name, digest, {"records": str(len(records))})

    def gc(self, grace_s: float = GRACE_S, *, dry_run: bool = True) -> Swept:
        if not grace_s >= 0:
            raise ConfigurationError(f"grace_s is in seconds, at least 0, got {grace_s!r:.100}")
        now = self.now()
        old: dict[str, tuple[str, int, Tag]] = {}
        kept = 0
        # The blobs before the records: one that is put and named meanwhile is in neither list.
        for key, at, nbytes, tag in self._blobs():
            digest = layout.digest_at(key)
            if digest is None:
                continue
            if at < now - grace_s:
                old[digest] = (key, nbytes, tag)
            else:
                kept += 1
        needed, cursor = self._needed(Cursor(self.url, ""))
        if not old.keys() <= needed:
            # A digest that was copied to another name and taken off the first, while this one was
            # read and that one was not, is in what changed meanwhile.
            needed |= self._needed(cursor)[0]
        swept: list[Digest] = []
        total = 0
        taken = {digest: found for digest, found in old.items() if digest not in needed}
        kept += len(old) - len(taken)
        gone: Iterable[bool] = itertools.repeat(True, len(taken))
        if not dry_run:
            gone = self._remove_blobs([(key, tag) for key, _, tag in taken.values()])
        for (digest, (_, nbytes, _)), is_gone in zip(taken.items(), gone, strict=True):
            if not is_gone:
                kept += 1
                continue
            swept.append(Digest(digest))
            total += nbytes
        if not dry_run:
            self._tidy()
        return Swept(swept, total, kept)

    def _needed(self, cursor: Cursor) -> tuple[set[str], Cursor]:
        """Every digest in a record or a segment that is new, whatever else that may be."""
        needed: set[str] = set()
        walk = Walk(self, cursor)
        seen: dict[str, Seen] = {}
        for folder in walk.folders():
            seen[folder.path] = after(folder.before, folder.listing, dict.fromkeys(folder.data, ""))
            for data in folder.data.values():
                needed |= digests_in(data)
        for segment in walk.segments:
            needed |= digests_in(segment.data)
        return needed, replace(cursor, seen=seen, closed=walk.closed)
