"""One look at the records below a prefix: what is open, what is closed, what has to be read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from entrepot.store import layout
from entrepot.store.cursor import UNSEEN, Cursor, Listing, Seen, Tag, to_read
from entrepot.store.primitives import Primitives
from entrepot.store.record import Fault
from entrepot.store.segment import Segment, read_segment, segments_beside


class Folder(NamedTuple):
    """One folder as it was met: as it was, as it is, and the bytes of what has to be read in it."""

    path: str
    before: Seen
    listing: Listing
    data: dict[str, bytes]


class Walk:
    """Goes level by level from the folder of the cursor's prefix downwards.

    :ivar closed: the folders of closed blocks, with the tags of the records that close them; they
        are found before they would be listed.
    :ivar segments: those that the cursor does not know.
    """

    def __init__(self, store: Primitives, cursor: Cursor) -> None:
        self.closed: dict[str, Tag] = {}
        self.segments: list[Segment] = []
        self._store = store
        self._cursor = cursor
        self._noted: dict[str, list[str]] = {}
        for key in list(store.skipped.faults):
            self._noted.setdefault(key.rpartition("/")[0], []).append(key)

    def folders(self) -> Iterator[Folder]:
        """Every open folder, with what is to be read in it."""
        prefix = self._cursor.prefix
        root = layout.folder_of(prefix)
        narrow = "" if layout.is_whole(prefix) else prefix
        beside = segments_beside(root)
        if beside is not None:
            self._find_closed(beside)
        level = [root] if root not in self.closed else []
        while level:
            below: list[str] = []
            met: list[tuple[str, Seen, Listing, list[str]]] = []
            for path, listing in zip(level, self._store._list_many(level), strict=True):
                if layout.TRIAL in listing.folders and layout.SEGMENT in listing.folders:
                    self._find_closed(f"{path}/{layout.SEGMENT}")
                self._note_strange(path, listing)
                before = self._cursor.seen.get(path, UNSEEN)
                files = to_read(before, listing)
                if narrow:
                    files = [each for each in files if _may_begin(f"{path}/{each}", narrow)]
                met.append((path, before, listing, files))
                below += [
                    folder
                    for each in listing.folders
                    if (folder := f"{path}/{each}") not in self.closed
                ]
            keys = [f"{path}/{file}" for path, _, _, files in met for file in files]
            read = iter(self._store._read_many(keys))
            for path, before, listing, files in met:
                data = {file: found for file in files if (found := next(read)) is not None}
                yield Folder(path, before, listing, data)
            level = below

    def _find_closed(self, folder: str) -> None:
        """Note which blocks the segments in ``folder`` close, and read those that are new."""
        store, known = self._store, self._cursor.closed
        trials = f"{folder.rpartition('/')[0]}/{layout.TRIAL}"
        new: dict[str, tuple[str, Tag]] = {}
        for file, tag in store._list(folder).files.items():
            block = f"{trials}/{file.removesuffix(layout.SUFFIX)}"
            if layout.block_at(block) is None:
                continue
            if block in known and known[block] == tag:
                self.closed[block] = tag
            else:
                new[block] = (f"{folder}/{file}", tag)
        keys = [key for key, _ in new.values()]
        records = list(map(store._understood, keys, store._read_many(keys)))
        digests = [record.digest for record in records if record is not None]
        blobs = iter(store._read_blobs([layout.blob_key(each) for each in digests]))
        for (block, (key, tag)), record in zip(new.items(), records, strict=True):
            if record is None:
                continue
            data = next(blobs)
            segment = None if data is None else read_segment(record, data)
            if segment is None:
                # The files of the block are still there, and speak as before.
                store._skip(key, Fault.FOREIGN)
                continue
            self.closed[block] = tag
            self.segments.append(segment)

    def _note_strange(self, path: str, listing: Listing) -> None:
        """What is not ours is noted, and what was noted and is gone is forgotten."""
        for each in listing.strange:
            self._store._skip(f"{path}/{each}", Fault.FOREIGN)
        for key in self._noted.get(path, ()):
            file = key.rpartition("/")[2]
            if file not in listing.files and file not in listing.strange:
                self._store.skipped.clear(key)


def _may_begin(key: str, prefix: str) -> bool:
    name = layout.name_of(key)
    return layout.is_hashed(key) if name is None else name.startswith(prefix)
