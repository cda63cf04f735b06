"""Files that belong to one living process, and that others may remove once it is dead.

For shared memory and for files alike: a name with a random part in a directory, and

**who lives.** The owner holds an ``flock`` on its file, through a descriptor of its own. The
kernel drops the lock when the owner ends, however it ends, so whoever can take the lock knows
that the owner is dead and may unlink. No process ids are involved: containers that share the
directory but not their process table agree. A forked child closes its copy of that descriptor
at once; else the lock would live as long as the child.

**Who pays.** ``posix_fallocate`` takes every byte before the file is used. Without it a full
disk shows at some later write: as an error at best, and as SIGBUS where the file is mapped.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from entrepot.errors import BadAddress, MediumError
from entrepot.mediums import huge

CREATE_ATTEMPTS = 16
"""Names to try before giving up: one is lost when another owner sweeps in the few microseconds
between its creation and its lock."""

NO_ROOM = frozenset({errno.ENOSPC, errno.ENOMEM, errno.EFBIG, errno.EDQUOT})
OPEN_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK

_NO_FALLOCATE = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})
_ZEROS_NBYTES = 1 << 20


def random_token() -> str:
    """32 hex digits from the system's source."""
    return secrets.token_hex(16)


@dataclass(frozen=True)
class Place:
    """Where owned files lie, and what they are called there.

    :ivar path: the directory.
    :ivar prefix: what their names begin with; 32 hex digits follow.
    :ivar full: the error that says that ``nbytes`` more do not fit.
    :ivar unusable: the error that says that no file can be made there.
    """

    path: Path
    prefix: str
    full: Callable[[int, Exception], MediumError]
    unusable: Callable[[OSError], MediumError]

    def owns(self, name: str) -> bool:
        """Whether a file of that name would be one of ours."""
        return re.fullmatch(re.escape(self.prefix) + "[0-9a-f]{32}", name) is not None


class OwnedFile:
    """The owner's hold on a name: the file, and the lock that says that the owner lives.

    :ivar name: what it is called in its directory.
    :ivar identity: its device and inode.
    """

    name: str
    path: Path
    identity: tuple[int, int]
    lock_fd: int

    def __init__(self, place: Place, token: Callable[[], str]) -> None:
        """Create the file, empty, under the lock.

        A sweeper may meet the file before it is locked, take the lock itself and unlink: then
        the lock is not ours, or what it is on is no longer there, and another name is tried.

        :raises MediumError: no file can be made there, or names were lost again and again.
        """
        self._place = place
        for _ in range(CREATE_ATTEMPTS):
            self.name = f"{place.prefix}{token()}"
            self.path = place.path / self.name
            if not place.owns(self.name):
                raise BadAddress(f"{self.name} does not end in 32 hex digits; mend the token")
            if self._take():
                return
        raise MediumError(
            f"could not make a file in {place.path} under {CREATE_ATTEMPTS} names, the last "
            f"{self.name}; does the token give another name each time?"
        )

    def _take(self) -> bool:
        with _fork_guard:
            try:
                fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | OPEN_FLAGS, 0o600)
            except FileExistsError:
                return False
            except OSError as error:
                if error.errno in NO_ROOM:
                    raise self._place.full(0, error) from error
                raise self._place.unusable(error) from error
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                found = os.fstat(fd)
                self.identity = (found.st_dev, found.st_ino)
                if is_at(self.path, self.identity):
                    self.lock_fd = fd
                    _held.add(self)
                    return True
            except BlockingIOError:
                with suppress(FileNotFoundError):
                    self.path.unlink()  # the sweeper may lack the right to
            except OSError as error:
                with suppress(OSError):
                    self.path.unlink()
                os.close(fd)
                raise self._place.unusable(error) from error
            os.close(fd)
            return False

    def allocate(self, nbytes: int) -> None:
        """Take room for ``nbytes`` bytes, zeros, at once and for good.

        :raises MediumError: there is no such room; none was kept.
        """
        try:
            self._check_room(nbytes)
            huge.allocate(self.lock_fd, nbytes)
            try:
                os.posix_fallocate(self.lock_fd, 0, nbytes)
            except OSError as error:
                if error.errno not in _NO_FALLOCATE:
                    raise
                self._fill(nbytes)
        except OverflowError as error:
            raise self._place.full(nbytes, error) from error
        except OSError as error:
            if error.errno in NO_ROOM:
                with suppress(OSError):
                    os.ftruncate(self.lock_fd, 0)  # so that what is said to be free is free
                raise self._place.full(nbytes, error) from error
            raise MediumError(
                f"cannot allocate {nbytes} bytes in {self._place.path}: {error}"
            ) from error

    def _check_room(self, nbytes: int) -> None:
        """What can never fit is refused before a page of it is taken. The rest is tried."""
        room = os.fstatvfs(self.lock_fd)
        if room.f_blocks and nbytes > room.f_bfree * room.f_frsize:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _fill(self, nbytes: int) -> None:
        """For file systems that cannot allocate, and a C library that does not do it for them."""
        zeros = bytes(_ZEROS_NBYTES)
        written = 0
        while written < nbytes:
            written += os.pwrite(self.lock_fd, zeros[: nbytes - written], written)

    def reopen(self, mode: int) -> int:
        """A second descriptor, to work with, and the file's permissions from now on.

        A mapping keeps the file that it was made of open, and with it that file's lock, also in a
        forked child that cannot let go of the mapping.
        """
        os.fchmod(self.lock_fd, mode)
        return os.open(self.path, os.O_RDWR | OPEN_FLAGS)

    def end(self) -> None:
        """Unlink, then let the lock go; once, and only in the process that made it."""
        try:
            _held.remove(self)  # whoever removes it ends it: close, unlink and exit may meet here
        except KeyError:
            return
        with suppress(OSError):
            self.path.unlink()
        os.close(self.lock_fd)


def end_all() -> None:
    """End every file of this process, for one that leaves by force: no exit removes them then."""
    for file in list(_held):
        file.end()


def sweep(place: Place) -> list[str]:
    """Unlink the files whose owners are dead, and return their names.

    Files of the living, of other users, and of other programs stay. Safe beside an owner that
    is just starting, and beside other sweepers.
    """
    return [path.name for path in _owned_in(place) if _if_dead(path, Path.unlink)]


def leftovers(place: Place) -> list[Path]:
    """The files that :func:`sweep` would unlink."""
    return [path for path in _owned_in(place) if _if_dead(path, lambda _: None)]


def _owned_in(place: Place) -> list[Path]:
    try:
        found = list(place.path.iterdir())
    except OSError:
        return []
    return [path for path in found if place.owns(path.name)]


def _if_dead(path: Path, act: Callable[[Path], None]) -> bool:
    """Whether the file's owner is dead, and ``act`` was called before another could take it."""
    try:
        fd = os.open(path, os.O_RDONLY | OPEN_FLAGS)
    except OSError:  # already gone, or another user's
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        found = os.fstat(fd)
        if not is_at(path, (found.st_dev, found.st_ino)):
            return False
        act(path)
    except OSError:  # its owner lives; or the sticky bit keeps it for its user
        return False
    finally:
        os.close(fd)
    return True


def is_at(path: Path | str, identity: tuple[int, int]) -> bool:
    """Whether what lies at ``path`` is what has that device and inode."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return (found.st_dev, found.st_ino) == identity


def free_bytes(directory: Path) -> str:
    """How much room there is in ``directory``, for an error."""
    try:
        room = os.statvfs(directory)
    except OSError as unknown:
        return f"what is free is unknown ({unknown})"
    return f"{room.f_bavail * room.f_frsize} of {room.f_blocks * room.f_frsize} bytes are free"


# A lock lives until every copy of its descriptor is closed, and fork copies them: without the
# hook, a worker forked from a client would keep a dead client's files from being swept. The
# guard keeps a fork in another thread from falling between a lock and its being noted here. A
# child holds nothing, so that neither its exit nor its collector unlinks what is the parent's.
_fork_guard = threading.RLock()
_held: set[OwnedFile] = set()


def _let_go_in_child() -> None:
    for file in _held:
        os.close(file.lock_fd)
    _held.clear()
    _fork_guard.release()


os.register_at_fork(
    before=_fork_guard.acquire,
    after_in_parent=_fork_guard.release,
    after_in_child=_let_go_in_child,
)
