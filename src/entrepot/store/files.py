"""Files below the root of a store: written whole or not at all, and read."""

from __future__ import annotations

import errno
import os

from entrepot.errors import StoreUnreachable
from entrepot.store import layout
from entrepot.store.calls import NO_SYNC, Calls
from entrepot.store.identity import temporary_name

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_FOLDER = os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY

_MODE = 0o666
"""Less the umask: who shares a store with a group sets it to 002."""

_FIRST_READ_NBYTES = 16 * 1024
"""Records are smaller as a rule, and are read with one call."""

_STALE_TRIES = 4
"""Times to open a file again that was replaced on the server while it was opened."""

NOT_OURS = b"\xff"
"""What is read from something that is no file: not a record, and not the beginning of one."""


class Files:
    """Reads and writes by key.

    :param durable: whether what is written is synced, and so outlives a power cut.
    """

    def __init__(self, root: str, *, durable: bool, calls: Calls) -> None:
        self.root = root
        self.durable = durable
        self.calls = calls
        self._manifest = f"{root}/{layout.MANIFEST}"

    def path(self, key: str) -> str:
        return f"{self.root}/{key}"

    def check_there(self) -> None:
        """Tell a store that lacks a file from a folder that is not a store, or no longer.

        Without this a folder whose file system was unmounted would seem empty, and would be
        written to.
        """
        try:
            self.calls.stat(self._manifest)
        except OSError as error:
            raise StoreUnreachable(
                f"{self.root} has no {layout.MANIFEST} any more ({error.strerror}): it was "
                f"removed, or its file system is not mounted"
            ) from error

    # --- reading ------------------------------------------------------------------------

    def read(self, key: str, most: int | None = None) -> bytes | None:
        """The bytes, or None where there is no file.

        :param most: of a file with more, only somewhat more than these are read.
        :raises StoreUnreachable: there is no store either.
        """
        data = self.peek(key, most)
        if data is None:
            self.check_there()
        return data

    def peek(self, key: str, most: int | None = None) -> bytes | None:
        """The same for who finds out by himself whether there is a store."""
        calls = self.calls
        path = f"{self.root}/{key}"
        for last in range(1, _STALE_TRIES + 1):
            try:
                fd = calls.open(path, _READ)
                try:
                    if most is None:
                        return self._whole(fd)
                    data = calls.read(fd, _FIRST_READ_NBYTES)
                    if len(data) < _FIRST_READ_NBYTES:
                        return data
                    return self._rest(fd, data, most)
                finally:
                    calls.close(fd)
            except (FileNotFoundError, NotADirectoryError):
                return None
            except OSError as error:
                if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.EAGAIN):
                    return NOT_OURS
                if error.errno != errno.ESTALE or last == _STALE_TRIES:
                    raise
        return None

    def _rest(self, fd: int, first: bytes, most: int) -> bytes:
        parts = [first]
        got = len(first)
        while got <= most:
            more = self.calls.read(fd, most)
            if not more:
                break
            parts.append(more)
            got += len(more)
        return b"".join(parts)

    def _whole(self, fd: int) -> bytes:
        size = self.calls.fstat(fd).st_size
        data = self.calls.read(fd, size + 1)
        if len(data) == size:
            return data
        parts = [data]
        while more := self.calls.read(fd, max(size, _FIRST_READ_NBYTES)):
            parts.append(more)
        return b"".join(parts)

    # --- writing ------------------------------------------------------------------------

    def temporary(self, data: bytes | memoryview, nonce: str) -> str:
        """Write a file in ``tmp``, all of it and synced, and return its path.

        Nothing is left of it when that fails.
        """
        path = f"{self.root}/{layout.TMP}/{temporary_name(nonce)}"
        self.create(path, data)
        return path

    def create(self, path: str, data: bytes | memoryview) -> None:
        """Write a file where there is none, all of it and synced, or leave nothing.

        :raises FileExistsError: there is one.
        """
        calls = self.calls
        fd = calls.open(path, _CREATE, _MODE)
        try:
            try:
                written = calls.write(fd, data)
                while written < len(data):
                    written += calls.write(fd, memoryview(data)[written:])
                if self.durable:
                    calls.fsync(fd)
            finally:
                calls.close(fd)  # over NFS, this is where a full disk may show
        except BaseException:
            self.remove(path)
            raise

    def remove(self, path: str) -> None:
        """Unlink what is of no use any more; what cannot be unlinked is swept later."""
        try:
            self.calls.unlink(path)
        except OSError:
            pass

    def sync_folder(self, path: str) -> None:
        """Have the entries of the folder that ``path`` is in outlive a power cut."""
        if not self.durable:
            return
        calls = self.calls
        fd = calls.open(path.rpartition("/")[0] or "/", _FOLDER)
        try:
            calls.fsync(fd)
        except OSError as error:
            if error.errno not in NO_SYNC:
                raise
        finally:
            calls.close(fd)

    def make_folders(self, key: str) -> None:
        """Make the folders above a key.

        :raises StoreUnreachable: the store itself is not there.
        """
        self.check_there()
        path = self.root
        for part in key.split("/")[:-1]:
            path = f"{path}/{part}"
            try:
                self.calls.mkdir(path)
            except FileExistsError:
                pass
            # Also where another made it just now: who it was may not have got as far as here.
            self.sync_folder(path)

    def move(self, path: str, key: str) -> None:
        """Rename a temporary file to its key, whatever is there, and sync that."""
        target = f"{self.root}/{key}"
        try:
            self.calls.rename(path, target)
        except FileNotFoundError:
            self.make_folders(key)
            self.calls.rename(path, target)
        self.sync_folder(target)

    def stamp(self, nonce: str) -> float:
        """The time that the file system stamps on a write made now, in seconds since 1970."""
        path = f"{self.root}/{layout.TMP}/{temporary_name(nonce)}"
        fd = self.calls.open(path, _CREATE, _MODE)
        try:
            return self.calls.fstat(fd).st_mtime
        finally:
            self.calls.close(fd)
            self.remove(path)
