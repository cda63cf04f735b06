"""The system calls that a folder's store makes, and what their errors mean in words.

All of them go through one object, so that a test can end a process before or after any of them, or
have one fail as a file system would.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager

from entrepot.errors import (
    StoreDenied,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnreachable,
)

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
GONE = frozenset(
    {
        errno.ENOENT,
        errno.ENOTDIR,
        errno.ESTALE,
        errno.ENOTCONN,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ETIMEDOUT,
        errno.ENODEV,
    }
)
NO_LINKS = frozenset(
    {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV, errno.EINVAL}
)
"""How file systems say that they have no hard links: FAT, SMB, gcsfuse, BeeGFS, virtiofs."""

NO_SYNC = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.EBADF})
"""How some say that a folder cannot be synced; there, its entries are synced with its files."""


class Calls:
    """What is called of the operating system; :mod:`os` by itself."""

    open = staticmethod(os.open)
    close = staticmethod(os.close)
    read = staticmethod(os.read)
    write = staticmethod(os.write)
    fsync = staticmethod(os.fsync)
    fstat = staticmethod(os.fstat)
    stat = staticmethod(os.stat)
    lstat = staticmethod(os.lstat)
    link = staticmethod(os.link)
    rename = staticmethod(os.rename)
    unlink = staticmethod(os.unlink)
    mkdir = staticmethod(os.mkdir)
    utime = staticmethod(os.utime)

    @staticmethod
    def scandir(path: str) -> AbstractContextManager[Iterator[os.DirEntry[str]]]:
        return os.scandir(path)


def in_words(error: OSError, doing: str, root: str) -> StoreError:
    """What a failed call means for whoever asked.

    :param doing: what was being done, such as ``claim 'spam/trial/7/0'``.
    """
    if isinstance(error, StoreError):
        return error
    number = error.errno
    why = error.strerror or str(error)
    if number in NO_ROOM:
        return StoreFull(f"cannot {doing}: {root} has no room ({why}), {_free(root)}; make some")
    if number == errno.EROFS:
        return StoreReadOnly(
            f"cannot {doing}: the file system of {root} is mounted read-only; open the store with "
            f"read_only=True, or mount it for writing"
        )
    if number in (errno.EACCES, errno.EPERM):
        return StoreDenied(
            f"cannot {doing}: user {os.geteuid()} may not ({why}: {error.filename or root}); run "
            f"as the folder's owner, or share a group that may write"
        )
    if number in GONE:
        return StoreUnreachable(
            f"cannot {doing}: {root} is not there as it was ({why}: {error.filename}); is it "
            f"mounted?"
        )
    return StoreError(f"cannot {doing} in {root}: {error}")


def _free(root: str) -> str:
    try:
        room = os.statvfs(root)
    except OSError:
        return "and what is free is unknown"
    return (
        f"{room.f_bavail * room.f_frsize} of {room.f_blocks * room.f_frsize} bytes and "
        f"{room.f_favail} of {room.f_files} files are free"
    )
