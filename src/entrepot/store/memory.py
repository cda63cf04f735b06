"""A store in this process's memory, for tests and for trying things out.

It is :class:`~entrepot.store.keyed.KeyedStore` on a dictionary: what holds for the rules of a store
holds here, and nothing outlives the process.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from entrepot.store import layout
from entrepot.store.clock import StoreClock
from entrepot.store.cursor import NOTHING, Listing, Tag
from entrepot.store.keyed import KeyedStore
from entrepot.store.primitives import stands_as
from entrepot.store.record import Record


class _Object(NamedTuple):
    data: bytes
    at: float
    version: int


class _Objects:
    """What stores that share their memory have in common."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.by_key: dict[str, _Object] = {}
        self.versions = itertools.count()


class MemoryStore(KeyedStore):
    """Records and blobs in a dictionary.

    :param wall: the store's clock, seconds since 1970.
    :param torn_grace_s: age at which a torn record counts as nothing.
    """

    def __init__(
        self,
        *,
        read_only: bool = False,
        writer: str | None = None,
        wall: Callable[[], float] = time.time,
        torn_grace_s: float = 60.0,
    ) -> None:
        super().__init__(
            f"memory:{id(self):x}",
            read_only=read_only,
            writer=writer,
            clock=StoreClock(uptime=wall, wall=wall),
        )
        self._wall = wall
        self._torn_grace_s = torn_grace_s
        self._objects = _Objects()

    def view(self, *, read_only: bool = False, writer: str | None = None) -> MemoryStore:
        """Another store with the same contents."""
        other = MemoryStore(
            read_only=read_only,
            writer=writer,
            wall=self._wall,
            torn_grace_s=self._torn_grace_s,
        )
        other._objects = self._objects
        other.url = self.url
        return other

    def plant(self, key: str, data: bytes) -> None:
        """Put bytes at a key past all rules, as another program or a crash might."""
        with self._objects.lock:
            self._write(key, data)

    def keys(self) -> list[str]:
        """Every key there is."""
        with self._objects.lock:
            return sorted(self._objects.by_key)

    def _write(self, key: str, data: bytes) -> None:
        self._objects.by_key[key] = _Object(data, self._wall(), next(self._objects.versions))

    # --- primitives ---------------------------------------------------------------------

    def _read(self, key: str) -> bytes | None:
        found = self._objects.by_key.get(key)
        return None if found is None else found.data

    _read_blob = _read

    def _list(self, folder: str) -> Listing:
        files: dict[str, Tag] = {}
        strange: list[str] = []
        folders: set[str] = set()
        start = folder + "/"
        with self._objects.lock:
            for key, found in self._objects.by_key.items():
                if not key.startswith(start):
                    continue
                first, slash, _ = key[len(start) :].partition("/")
                if slash:
                    folders.add(first)
                elif first.endswith(layout.SUFFIX):
                    files[first] = found.version
                else:
                    strange.append(first)
        return Listing(files, folders, strange=strange) if files or folders or strange else NOTHING

    def _create(self, key: str, record: Record, data: bytes) -> bool:
        with self._objects.lock:
            there = self._objects.by_key.get(key)
            stands = stands_as(None if there is None else there.data, record.nonce)
            if stands is not None:
                return stands
            if there is not None and self._wall() - there.at <= self._torn_grace_s:
                return False
            self._write(key, data)
            return True

    def _replace(self, key: str, record: Record, data: bytes) -> None:  # noqa: ARG002
        with self._objects.lock:
            self._write(key, data)

    def _put_blob(self, key: str, data: memoryview) -> None:
        with self._objects.lock:
            self._write(key, bytes(data))

    def _hold_blob(self, key: str) -> None:
        with self._objects.lock:
            there = self._objects.by_key.get(key)
            if there is not None:
                self._write(key, there.data)

    def _remove(self, key: str) -> None:
        with self._objects.lock:
            self._objects.by_key.pop(key, None)

    def _blobs(self) -> Iterable[tuple[str, float, int, Tag]]:
        with self._objects.lock:
            return [
                (key, found.at, len(found.data), found.version)
                for key, found in self._objects.by_key.items()
                if layout.digest_at(key) is not None
            ]

    def _remove_blob(self, key: str, tag: Tag) -> bool:
        with self._objects.lock:
            there = self._objects.by_key.get(key)
            if there is not None and there.version != tag:
                return False
            self._objects.by_key.pop(key, None)
            return True

    def _stamp(self) -> float:
        return self._wall()
