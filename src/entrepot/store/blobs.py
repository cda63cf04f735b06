"""The blobs of a folder: written once, compared when they are there, and taken by gc alone.

**gc beside a put.** A put that finds its blob sets its time, and gc takes by time; but between
gc's look and its unlink the time may be set. So gc first renames the blob to
``tmp/gc-<digest>-<random>``, then looks at the time, and puts it back if that is another. A put
sets the time first and then looks whether the file is still at its place. One of the two sees the
other. Should gc be killed in between, a reader who misses the blob finds it there, and the next
sweep puts it back.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from entrepot.store import layout
from entrepot.store.cursor import Tag
from entrepot.store.files import Files
from entrepot.store.identity import new_nonce

SWEEP_S = 24 * 3600.0
"""Age, in seconds, from which a temporary file is a killed writer's."""

PUT_BACK_S = 60.0
"""The same for what gc was about to remove."""

_COMPARE_NBYTES = 1 << 20
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_TRASHED = re.compile(r"gc-([0-9a-f]{64})-[0-9a-f]+")


def tag_of(found: os.stat_result) -> Tag:
    """What changes whenever a file is written anew."""
    return (found.st_ino, found.st_mtime_ns, found.st_size)


class Blobs:
    """Blobs below ``blobs``, and what is in ``tmp``."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._calls = files.calls

    def read(self, key: str) -> bytes | None:
        """All bytes, or None where there is no blob."""
        data = self._files.read(key)
        if data is not None:
            return data
        digest = layout.digest_at(key) or ""
        for trashed in self._trashed(digest[-64:]):
            data = self._files.read(trashed)
            if data is not None:
                return data
        # It may have been put back since the first look.
        return self._files.read(key)

    def put(self, key: str, data: memoryview) -> None:
        """Write a blob, or set the time of the one that is there."""
        if self._renewed(key, data):
            return
        files = self._files
        temporary = files.temporary(data, new_nonce())
        try:
            files.move(temporary, key)
        except BaseException:
            files.remove(temporary)
            raise

    def hold(self, key: str) -> None:
        """Set the time of a blob if it is there and may be touched."""
        try:
            self._calls.utime(self._files.path(key))
        except OSError:
            pass

    def _renewed(self, key: str, data: memoryview) -> bool:
        """Whether these very bytes are there, and young; what a crash left of them is not."""
        calls = self._calls
        path = self._files.path(key)
        try:
            fd = calls.open(path, _READ)
        except OSError:
            return False
        try:
            calls.utime(fd)
            found = calls.fstat(fd)
            if found.st_size != len(data) or not self._same(fd, data):
                return False
            if self._files.durable:
                calls.fsync(fd)
            if calls.lstat(path).st_ino != found.st_ino:
                return False
        except OSError:  # another user's, or gone meanwhile
            return False
        finally:
            calls.close(fd)
        self._files.sync_folder(path)
        return True

    def _same(self, fd: int, data: memoryview) -> bool:
        at = 0
        while at < len(data):
            part = self._calls.read(fd, _COMPARE_NBYTES)
            if not part or data[at : at + len(part)] != part:
                return False
            at += len(part)
        return True

    def all(self) -> Iterator[tuple[str, float, int, Tag]]:
        """Key, time of the last put in seconds since 1970, bytes, tag."""
        for folder in layout.BLOB_FOLDERS:
            for entry in self._entries(folder):
                try:
                    found = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                yield f"{folder}/{entry.name}", found.st_mtime, found.st_size, tag_of(found)

    def _entries(self, folder: str) -> list[os.DirEntry[str]]:
        """What lies in a folder, if there is such a folder."""
        try:
            with self._calls.scandir(self._files.path(folder)) as entries:
                return list(entries)
        except FileNotFoundError:
            return []

    def remove(self, key: str, tag: Tag) -> bool:
        """Remove a blob unless its time was set since; whether it is gone."""
        calls = self._calls
        path = self._files.path(key)
        trash = self._files.path(f"{layout.TMP}/gc-{key[-64:]}-{new_nonce()}")
        try:
            calls.rename(path, trash)
        except FileNotFoundError:
            self._files.check_there()
            return True
        try:
            if tag_of(calls.lstat(trash)) == tag:
                calls.unlink(trash)
                return True
            self._put_back(trash, path)
        except FileNotFoundError:  # we slept, and a sweep took us for dead
            pass
        return False

    def sweep(self, now: float) -> None:
        """Remove what killed writers left in ``tmp``, and put back what a killed gc took.

        :param now: seconds since 1970 on the file system's clock.
        """
        for entry in self._entries(layout.TMP):
            trashed = _TRASHED.fullmatch(entry.name)
            try:
                found = entry.stat(follow_symlinks=False)
                if trashed is None and now - found.st_mtime > SWEEP_S:
                    self._calls.unlink(entry.path)
                # When it was renamed, which does not touch the time of its last put.
                elif trashed is not None and now - found.st_ctime > PUT_BACK_S:
                    place = self._files.path(layout.blob_key(trashed[1]))
                    self._put_back(entry.path, place)
            except FileNotFoundError:  # its writer, or another sweep, was quicker
                continue

    def _put_back(self, trash: str, place: str) -> None:
        """Young, since it may replace what was put once more: the same bytes, and as young."""
        self._calls.utime(trash)
        self._calls.rename(trash, place)

    def _trashed(self, hex_: str) -> list[str]:
        """Keys of what gc has taken of one blob and may yet put back."""
        return [
            f"{layout.TMP}/{entry.name}"
            for entry in self._entries(layout.TMP)
            if entry.name.startswith(f"gc-{hex_}-")
        ]
