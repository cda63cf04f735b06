"""A store in a folder that the machines have in common: a local disk, NFS, a volume.

What a folder can and cannot do is in ``docs/stores.md``. Claims are in
:mod:`entrepot.store.claims`, whole files in :mod:`entrepot.store.files`; every rule that is not
about files is in :mod:`entrepot.store.keyed`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from entrepot.arguments import checked_seconds
from entrepot.errors import ConfigurationError, StoreFormat, StoreUnreachable
from entrepot.store import layout
from entrepot.store.blobs import Blobs
from entrepot.store.calls import Calls, in_words
from entrepot.store.claims import Claims
from entrepot.store.clock import COARSE_GRAIN_NS, Horizon, StoreClock, recurs
from entrepot.store.cursor import NOTHING, Listing, Tag
from entrepot.store.files import Files
from entrepot.store.identity import new_nonce
from entrepot.store.keyed import KeyedStore
from entrepot.store.manifest import LINK, Manifest, make_manifest, read_manifest
from entrepot.store.primitives import stands_as
from entrepot.store.record import MAX_RECORD_NBYTES, Record

TORN_GRACE_S = 60.0
"""Age, in seconds, from which a torn record counts as left by a crash."""


class FolderStore(KeyedStore):
    """A folder. Its parent must be there; the folder itself is made.

    :param path: where it is.
    :param read_only: write nothing, also not now. The store must be there already.
    :param durable: what is claimed, bound or put outlives a power cut; without, only the end of the
        process. Faster by a factor, since nothing is synced.
    :param torn_grace_s: age, in seconds, from which a torn record counts as left by a crash. On a
        file system without hard links it must be longer than any process is stopped for.
    :param writer: who writes, for people; stands in every record. By default host and process.
    :param calls: the system calls, for tests.
    :raises StoreUnreachable: there is no such folder, or none that could be made.
    :raises StoreFormat: the store is of a later format, or its ``store.json`` is not one.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        read_only: bool = False,
        durable: bool = True,
        torn_grace_s: float = TORN_GRACE_S,
        writer: str | None = None,
        calls: Calls | None = None,
    ) -> None:
        self._torn_grace_s = checked_seconds("torn_grace_s", torn_grace_s)
        root = str(checked_path(path).absolute())
        super().__init__(
            f"file://{quote(root)}", read_only=read_only, writer=writer, clock=StoreClock()
        )
        self._calls = calls or Calls()
        self._files = Files(root, durable=durable, calls=self._calls)
        self._blobs_here = Blobs(self._files)
        self._horizon = Horizon()
        try:
            manifest = self._opened(root)
            self.claims = manifest.claims
            self._claims = Claims(
                self._files,
                self._clock,
                links=manifest.claims == LINK,
                torn_grace_s=self._torn_grace_s,
            )
            if not read_only:
                self.now()
                self._tidy()
        except OSError as error:
            raise in_words(error, "open the store", root) from error

    def _opened(self, root: str) -> Manifest:
        if not Path(root).is_dir():
            _check_no_file(Path(root))
            if self.read_only or not Path(root).parent.is_dir():
                raise StoreUnreachable(
                    f"there is no folder {root}; is its file system mounted? A store makes its own "
                    f"folder, but none above it"
                )
            try:
                self._calls.mkdir(root)
            except FileExistsError:
                pass
            self._files.sync_folder(root)
        manifest = read_manifest(self._files)
        if manifest is not None:
            return manifest
        if self.read_only:
            raise StoreFormat(
                f"there is no store in {root} yet, and read_only makes none; open it for writing "
                f"once, or wait for who does"
            )
        return make_manifest(self._files)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        # For a process that is spawned with it.
        return _again, (
            *(str(self.path), self.read_only, self._files.durable),
            *(self._torn_grace_s, self._writer),
        )

    @property
    def path(self) -> Path:
        """The folder."""
        return Path(self._files.root)

    # --- records ------------------------------------------------------------------------

    def _read(self, key: str) -> bytes | None:
        try:
            return self._files.read(key, MAX_RECORD_NBYTES)
        except OSError as error:
            raise in_words(error, f"read {key}", self._files.root) from error

    def _create(self, key: str, record: Record, data: bytes) -> bool:
        return self._claims.create(key, record, data)

    def _replace(self, key: str, record: Record, data: bytes) -> None:
        files = self._files
        try:
            temporary = files.temporary(data, record.nonce)
            try:
                files.move(temporary, key)
            except OSError:
                # Over NFS a rename can succeed and say that it failed.
                files.remove(temporary)
                if stands_as(files.read(key, MAX_RECORD_NBYTES), record.nonce) is not True:
                    raise
                files.sync_folder(files.path(key))
            except BaseException:
                files.remove(temporary)
                raise
        except OSError as error:
            raise in_words(error, f"bind {record.name!r}", files.root) from error

    def _remove(self, key: str) -> None:
        try:
            self._calls.unlink(self._files.path(key))
            self._files.sync_folder(self._files.path(key))
        except FileNotFoundError:
            self._files.check_there()
        except OSError as error:
            raise in_words(error, f"delete {key}", self._files.root) from error

    def _list(self, folder: str) -> Listing:
        try:
            return self._listed(folder)
        except (FileNotFoundError, NotADirectoryError):
            self._files.check_there()
            return NOTHING
        except OSError as error:
            raise in_words(error, f"list {folder}", self._files.root) from error

    def _listed(self, folder: str) -> Listing:
        files: dict[str, Tag] = {}
        stamps: list[int] = []
        folders: list[str] = []
        strange: list[str] = []
        suffix = layout.SUFFIX
        with self._calls.scandir(self._files.path(folder)) as entries:
            for entry in entries:
                name = entry.name
                if name[0] == ".":
                    # None of ours: what NFS keeps for who still reads it, snapshots, editors'.
                    continue
                if name.endswith(suffix) and entry.is_file(follow_symlinks=False):
                    try:
                        found = entry.stat(follow_symlinks=False)
                    except FileNotFoundError:
                        continue
                    stamp = found.st_mtime_ns
                    files[name] = (found.st_ino, stamp, found.st_size)
                    stamps.append(stamp)
                elif entry.is_dir(follow_symlinks=False):
                    folders.append(name)
                else:
                    strange.append(name)
        if not stamps:
            return Listing(files, folders, strange=strange)
        horizon = self._horizon.seen(max(stamps))
        settled = horizon - COARSE_GRAIN_NS
        fresh = [
            name
            for name, stamp in zip(files, stamps, strict=True)
            if stamp > settled and recurs(stamp, horizon)
        ]
        return Listing(files, folders, frozenset(fresh), strange)

    # --- blobs --------------------------------------------------------------------------

    def _read_blob(self, key: str) -> bytes | None:
        try:
            return self._blobs_here.read(key)
        except OSError as error:
            raise in_words(error, f"read {key}", self._files.root) from error

    def _put_blob(self, key: str, data: memoryview) -> None:
        try:
            self._blobs_here.put(key, data)
        except OSError as error:
            raise in_words(error, f"put {len(data)} bytes", self._files.root) from error

    def _hold_blob(self, key: str) -> None:
        self._blobs_here.hold(key)

    def _blobs(self) -> Iterator[tuple[str, float, int, Tag]]:
        try:
            yield from self._blobs_here.all()
        except OSError as error:
            raise in_words(error, "list the blobs", self._files.root) from error

    def _remove_blob(self, key: str, tag: Tag) -> bool:
        try:
            return self._blobs_here.remove(key, tag)
        except OSError as error:
            raise in_words(error, f"remove {key}", self._files.root) from error

    # --- the folder itself --------------------------------------------------------------

    def _stamp(self) -> float:
        try:
            return self._files.stamp(new_nonce())
        except OSError as error:
            raise in_words(error, "write", self._files.root) from error

    def _tidy(self) -> None:
        self._blobs_here.sweep(self._clock.now())


def checked_path(path: Any) -> Path:
    """``path``, if it names a folder.

    :raises ConfigurationError: it is empty, or no path.
    """
    try:
        text = os.fspath(path)
    except TypeError:
        text = None
    if not isinstance(text, str) or not text or "\0" in text:
        raise ConfigurationError(f"a store needs a path, got {path!r:.100}")
    return Path(text)


def _check_no_file(path: Path) -> None:
    """:raises StoreUnreachable: a file is where the folder, or one above it, would be."""
    there = next((each for each in (path, *path.parents) if each.exists()), None)
    if there is not None and not there.is_dir():
        raise StoreUnreachable(f"{there} is a file, and a store is a folder: give a folder's path")


def _again(
    path: str, read_only: bool, durable: bool, torn_grace_s: float, writer: str | None
) -> FolderStore:
    return FolderStore(
        path, read_only=read_only, durable=durable, torn_grace_s=torn_grace_s, writer=writer
    )
