"""POSIX shared memory: the default medium between processes, or containers, of one machine.

A segment is a file ``/dev/shm/entrepot-<32 hex digits>``, opened with ``os.open``. On Linux
that is all that ``shm_open`` does; the standard library's own door to it,
``multiprocessing.shared_memory``, makes every process that attaches remember the segment in a
``resource_tracker``, which unlinks the *owner's* segment when the one that attached ends. And
the directory is needed anyway: to see what is free, and to find what killed owners left. Who
owns a segment, and until when, is in ``owned.py``.
"""

from __future__ import annotations

import os
import re
import stat
import weakref
from collections.abc import Callable
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
from entrepot.mediums import owned
from entrepot.mediums.base import nbytes_of
from entrepot.mediums.memory import MappedMedium
from entrepot.mediums.owned import OPEN_FLAGS, OwnedFile, Place, is_at, random_token

if TYPE_CHECKING:
    from typing import Self

    from entrepot.settings import SupplierSettings

DIRECTORY = Path("/dev/shm")
PREFIX = "entrepot-"
NAME = re.compile(re.escape(PREFIX) + "[0-9a-f]{32}")


class ShmMedium(MappedMedium):
    """A segment of POSIX shared memory. Linux only; elsewhere use a file or TCP.

    Whoever may write to ``/dev/shm`` as the same user is trusted not to truncate a segment:
    that would end every process that touches it, and no check can exclude it.
    """

    scheme = "shm"

    _path: str
    _identity: tuple[int, int]
    _segment: OwnedFile
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
        segment = OwnedFile(_place(), token)
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
    def attach(cls, address: str, settings: SupplierSettings | None = None) -> Self:
        """Map the segment that ``address`` names, as one slot of all its bytes.

        :raises BadAddress: not ``shm:entrepot-<32 hex digits>``, or not a segment.
        :raises MediumGone: its owner has unlinked it, or this container has another
            ``/dev/shm`` than the owner's.
        :raises MediumDenied: it belongs to another user.
        """
        del settings
        path = _path_of(address)
        try:
            fd = os.open(path, os.O_RDWR | OPEN_FLAGS)
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
        return not is_at(self._path, self._identity)

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


def sweep() -> list[str]:
    """Unlink the segments whose owners are dead, and return their names. See ``owned.sweep``."""
    return owned.sweep(_place())


def leftovers() -> list[Path]:
    """The segments that :func:`sweep` would unlink."""
    return owned.leftovers(_place())


def _place() -> Place:
    return Place(DIRECTORY, PREFIX, _too_small, _unusable)


def _path_of(address: str) -> Path:
    scheme, _, name = address.partition(":")
    if scheme != ShmMedium.scheme or not NAME.fullmatch(name):
        raise BadAddress(
            f"{address[:200]!r} is not an address of shared memory, which reads "
            f"shm:entrepot-<32 hex digits>"
        )
    return DIRECTORY / name


def _unusable(error: OSError) -> MediumError:
    return MediumError(
        f"cannot make a file in {DIRECTORY}: {error}; use a file or TCP medium where there is no "
        f"POSIX shared memory"
    )


def _too_small(nbytes: int, error: Exception) -> SharedMemoryTooSmall:
    return SharedMemoryTooSmall(
        f"{nbytes} bytes of shared memory were asked for, but in {DIRECTORY} "
        f"{owned.free_bytes(DIRECTORY)} ({error}); ask for fewer or smaller slots, or make it "
        f"larger: shm_size in docker compose, --shm-size for docker run, in Kubernetes an "
        f"emptyDir with medium: Memory and a larger sizeLimit mounted there"
    )
