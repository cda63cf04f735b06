"""POSIX shared memory: the default medium between processes, or containers, of one machine.

A segment is a file ``/dev/shm/entrepot-<32 hex digits>``, opened with ``os.open``. On Linux
that is all that ``shm_open`` does; the standard library's own door to it,
``multiprocessing.shared_memory``, makes every process that attaches remember the segment in a
``resource_tracker``, which unlinks the *owner's* segment when the one that attached ends. And
the directory is needed anyway: to see what is free, and to find what killed owners left.

**Who lives.** The owner holds an ``flock`` on the segment, through a descriptor of its own.
The kernel drops the lock when the owner ends, however it ends, so whoever can take the lock
knows that the owner is dead and may unlink. No process ids are involved: containers that share
``/dev/shm`` but not their process table agree. A forked child closes its copy of that
descriptor at once; else the lock would live as long as the child.

**Who pays.** ``posix_fallocate`` takes every page before the segment is mapped. Without it a
full ``/dev/shm`` shows as SIGBUS at some later write.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import stat
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from entrepot.errors import (
    BadAddress,
    MediumDenied,
    MediumError,
    MediumGone,
    NotOwner,
    SharedMemoryTooSmall,
)
from entrepot.mediums.base import nbytes_of
from entrepot.mediums.memory import MappedMedium

if TYPE_CHECKING:
    from typing import Self

DIRECTORY = Path("/dev/shm")
NAME = re.compile(r"entrepot-[0-9a-f]{32}")
CREATE_ATTEMPTS = 16
"""Names to try before giving up: one is lost when another owner sweeps in the few microseconds
between its creation and its lock."""

_NO_ROOM = frozenset({errno.ENOSPC, errno.ENOMEM, errno.EFBIG, errno.EDQUOT})
_OPEN_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


def random_token() -> str:
    """32 hex digits from the system's source."""
    return secrets.token_hex(16)


class ShmMedium(MappedMedium):
    """A segment of POSIX shared memory. Linux only; elsewhere use a file or TCP.

    Whoever may write to ``/dev/shm`` as the same user is trusted not to truncate a segment:
    that would end every process that touches it, and no check can exclude it.
    """

    scheme = "shm"

    _path: str
    _identity: tuple[int, int]
    _segment: _Segment
    _mode: int
    _token: Callable[[], str]

    @classmethod
    def create(
        cls,
        slot_nbytes: int,
        slots: int,
        *,
        mode: int = 0o600,
        poison: bool = False,
        token: Callable[[], str] = random_token,
    ) -> Self:
        """Make a segment and own it; all of it is allocated, and zero, on return.

        What killed owners left in ``/dev/shm`` is removed on the way.

        :param mode: permissions of the segment; ``0o660`` lets suppliers of the same group in.
        :param poison: overwrite each slot when it is freed (for debugging).
        :param token: gives 32 hex digits for the name, others at each call.
        :raises SharedMemoryTooSmall: ``/dev/shm`` has no room.
        :raises ConfigurationError: no slots, or slots of no bytes.
        """
        nbytes = nbytes_of(slot_nbytes, slots)
        sweep()
        segment = _Segment(token)
        try:
            segment.allocate(nbytes)
            fd = segment.reopen(mode)
            try:
                medium = cls(
                    f"{cls.scheme}:{segment.name}",
                    fd,
                    slot_nbytes,
                    slots,
                    owner=True,
                    poison=poison,
                )
            finally:
                os.close(fd)
        except BaseException:
            segment.end()
            raise
        medium._segment = segment
        medium._mode = mode
        medium._token = token
        medium._path = str(segment.path)
        medium._identity = segment.identity
        weakref.finalize(medium, segment.end)
        return medium

    @classmethod
    def attach(cls, address: str) -> Self:
        """Map the segment that ``address`` names, as one slot of all its bytes.

        :raises BadAddress: not ``shm:entrepot-<32 hex digits>``, or not a segment.
        :raises MediumGone: its owner has unlinked it, or this container has another
            ``/dev/shm`` than the owner's.
        :raises MediumDenied: it belongs to another user.
        """
        path = _path_of(address)
        try:
            fd = os.open(path, os.O_RDWR | _OPEN_FLAGS)
        except FileNotFoundError:
            raise MediumGone(
                f"{address} is not in {DIRECTORY}: its owner has ended, or runs in a container "
                f"that does not share {DIRECTORY} with this one"
            ) from None
        except PermissionError:
            raise MediumDenied(
                f"{address} belongs to another user; run as the same one, or have the client "
                f"make it with mode=0o660 and share a group"
            ) from None
        except OSError as error:
            raise BadAddress(f"{address} cannot be opened: {error}") from error
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise BadAddress(f"{address} is not a segment of shared memory")
            if found.st_size == 0:
                raise MediumGone(f"{address} is empty: its owner did not finish making it")
            medium = cls(address, fd, found.st_size, 1, owner=False)
        finally:
            os.close(fd)
        medium._path = str(path)
        medium._identity = (found.st_dev, found.st_ino)
        return medium

    def renew(self) -> Self:
        self._check_owner("renew")
        return self.create(
            self.slot_nbytes, self.slots, mode=self._mode, poison=self.poison, token=self._token
        )

    def gone(self) -> bool:
        return not _is_at(self._path, self._identity)

    def close(self) -> None:
        self._memory = None
        if self.owner:
            self._segment.end()

    def unlink(self) -> None:
        self._check_owner("unlink")
        self._segment.end()

    def _check_owner(self, what: str) -> None:
        if not self.owner:
            raise NotOwner(f"{self.address} was attached here; only its owner may {what} it")


class _Segment:
    """The owner's hold on a name in ``/dev/shm``: the file, and the lock that says it lives."""

    name: str
    path: Path
    identity: tuple[int, int]
    lock_fd: int

    def __init__(self, token: Callable[[], str]) -> None:
        """Create the file, empty, under the lock.

        A sweeper may meet the file before it is locked, take the lock itself and unlink: then
        the lock is not ours, or what it is on is no longer there, and another name is tried.

        :raises MediumError: there is no ``/dev/shm``, or names were lost again and again.
        """
        for _ in range(CREATE_ATTEMPTS):
            self.name = f"entrepot-{token()}"
            self.path = DIRECTORY / self.name
            if not NAME.fullmatch(self.name):
                raise BadAddress(f"{self.name} does not end in 32 hex digits; mend the token")
            if self._take():
                return
        raise MediumError(
            f"could not make a segment in {DIRECTORY} under {CREATE_ATTEMPTS} names, the last "
            f"{self.name}; does the token give another name each time?"
        )

    def _take(self) -> bool:
        with _fork_guard:
            try:
                fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _OPEN_FLAGS, 0o600)
            except FileExistsError:
                return False
            except OSError as error:
                if error.errno in _NO_ROOM:
                    raise _too_small(0, error) from error
                raise MediumError(
                    f"cannot make a file in {DIRECTORY}: {error}; use a file or TCP medium where "
                    f"there is no POSIX shared memory"
                ) from error
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                found = os.fstat(fd)
                self.identity = (found.st_dev, found.st_ino)
                if _is_at(self.path, self.identity):
                    self.lock_fd = fd
                    _held.add(self)
                    return True
            except BlockingIOError:
                with suppress(FileNotFoundError):
                    self.path.unlink()  # the sweeper may lack the right to
            os.close(fd)
            return False

    def allocate(self, nbytes: int) -> None:
        """Take ``nbytes`` bytes of memory for it, at once and for good.

        :raises SharedMemoryTooSmall: they are not there; none was kept.
        """
        try:
            os.posix_fallocate(self.lock_fd, 0, nbytes)
        except OverflowError as error:
            raise _too_small(nbytes, error) from error
        except OSError as error:
            if error.errno in _NO_ROOM:
                raise _too_small(nbytes, error) from error
            raise MediumError(f"cannot allocate {nbytes} bytes in {DIRECTORY}: {error}") from error

    def reopen(self, mode: int) -> int:
        """A second descriptor, to map: a mapping keeps the file that it was made of open, and
        with it that file's lock, also in a forked child that cannot let go of the mapping."""
        fd = os.open(self.path, os.O_RDWR | _OPEN_FLAGS)
        os.fchmod(fd, mode)
        return fd

    def end(self) -> None:
        """Unlink, then let the lock go; once, and only in the process that made it."""
        try:
            _held.remove(self)  # whoever removes it ends it: close, unlink and exit may meet here
        except KeyError:
            return
        with suppress(FileNotFoundError):
            self.path.unlink()
        os.close(self.lock_fd)


def sweep() -> list[str]:
    """Unlink the segments whose owners are dead, and return their names.

    Segments of the living, of other users, and of other programs stay. Safe beside an owner
    that is just starting, and beside other sweepers.
    """
    try:
        found = list(DIRECTORY.iterdir())
    except FileNotFoundError:
        return []
    return [path.name for path in found if NAME.fullmatch(path.name) and _unlink_if_dead(path)]


def _unlink_if_dead(path: Path) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY | _OPEN_FLAGS)
    except OSError:  # already gone, or another user's
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        found = os.fstat(fd)
        if not _is_at(path, (found.st_dev, found.st_ino)):
            return False
        path.unlink()
    except OSError:  # its owner lives; or the sticky bit keeps it for its user
        return False
    finally:
        os.close(fd)
    return True


def _path_of(address: str) -> Path:
    scheme, _, name = address.partition(":")
    if scheme != ShmMedium.scheme or not NAME.fullmatch(name):
        raise BadAddress(
            f"{address[:200]!r} is not an address of shared memory, which reads "
            f"shm:entrepot-<32 hex digits>"
        )
    return DIRECTORY / name


def _is_at(path: Path | str, identity: tuple[int, int]) -> bool:
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return False
    return (found.st_dev, found.st_ino) == identity


def _too_small(nbytes: int, error: Exception) -> SharedMemoryTooSmall:
    try:
        room = os.statvfs(DIRECTORY)
        free = f"{room.f_bavail * room.f_frsize} of {room.f_blocks * room.f_frsize} bytes are free"
    except OSError as unknown:
        free = f"what is free is unknown ({unknown})"
    return SharedMemoryTooSmall(
        f"{nbytes} bytes of shared memory were asked for, but in {DIRECTORY} {free} ({error}); "
        f"ask for fewer or smaller slots, or make it larger: shm_size in docker compose, "
        f"--shm-size for docker run, in Kubernetes an emptyDir with medium: Memory and a larger "
        f"sizeLimit mounted there"
    )


# A lock lives until every copy of its descriptor is closed, and fork copies them: without the
# hook, a worker forked from a client would keep a dead client's segments from being swept. The
# guard keeps a fork in another thread from falling between a lock and its being noted here. A
# child holds nothing, so that neither its exit nor its collector unlinks what is the parent's.
_fork_guard = threading.RLock()
_held: set[_Segment] = set()


def _let_go_in_child() -> None:
    for segment in _held:
        os.close(segment.lock_fd)
    _held.clear()
    _fork_guard.release()


os.register_at_fork(
    before=_fork_guard.acquire,
    after_in_parent=_fork_guard.release,
    after_in_child=_let_go_in_child,
)
