"""A file that client and supplier both see: through a shared volume, or a network file system.

The file is read and written with system calls and never mapped. Whoever may write to a file may
also cut it short, and a mapping of a file that was cut, or whose disk fails, ends the process that
touches it with SIGBUS; here both are errors. The owner reads a product into memory of its own, and
views are windows on that: what was verified is what is served, whatever is written later.

**The address** is ``file:<name>``: a name of ours in the owner's directory, without the directory.
A supplier looks for it in the one directory that it was told of, which may be mounted elsewhere
than the owner's. There is no path in an address that could lead out of it, and a link is not
followed.

**Network file systems** show a file's new bytes to whoever opens it after the writer has flushed
it. There, with ``network=True``, a write ends with ``fdatasync`` and each read begins with an
``open``. Locks may not reach from one machine to another, so that an owner sweeps only what dead
owners of its own machine left.
"""

from __future__ import annotations

import os
import stat
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

import xxhash

from entrepot.arguments import checked_int
from entrepot.errors import (
    BadAddress,
    Closed,
    ConfigurationError,
    MediumDenied,
    MediumError,
    MediumGone,
    NotOwner,
)
from entrepot.mediums import owned
from entrepot.mediums.base import Medium, nbytes_of
from entrepot.mediums.buffers import as_bytes
from entrepot.mediums.file_place import (
    NETWORK_PREFIX,
    SCHEME,
    directory_at,
    full,
    name_of,
    open_in,
    place_in,
)
from entrepot.mediums.landing import Landing
from entrepot.mediums.owned import NO_ROOM, OPEN_FLAGS, OwnedFile, is_at, random_token

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Self

    from typing_extensions import Buffer

    from entrepot.settings import Settings, SupplierSettings

FILE_CHUNK_NBYTES = 256 * 1024
"""Bytes written or read by one call, and hashed: half of a common L2 cache. Larger ones are slower
on a file system in memory, and alike on disks."""


class FilesystemMedium(Medium):
    """A file below a directory that client and suppliers share.

    The owner keeps a copy in memory of each slot that it reads, until it is released: with all
    slots in use, as many bytes again as the file has.
    """

    scheme = SCHEME
    in_place = False

    _root: Path
    _path: str
    _identity: tuple[int, int]
    _owned: OwnedFile
    _mode: int
    _token: Callable[[], str]
    _landing: Landing

    def __init__(
        self,
        address: str,
        file: _Descriptor,
        slot_nbytes: int,
        slots: int,
        *,
        owner: bool,
        poison: bool = False,
    ) -> None:
        self._file: _Descriptor | None = file
        super().__init__(address, slot_nbytes, slots, owner=owner, poison=poison)
        self._network = address.startswith(f"{self.scheme}:{NETWORK_PREFIX}")
        if owner:
            self._landing = Landing(slots, self._stride, address)

    # --- made, found, ended -------------------------------------------------------------

    @classmethod
    def create(
        cls,
        slot_nbytes: int,
        slots: int,
        *,
        root: str | os.PathLike[str] | None = None,
        network: bool = False,
        mode: int = 0o600,
        poison: bool = False,
        token: Callable[[], str] = random_token,
    ) -> Self:
        """Make a file in ``root`` and own it; all of it is allocated, and zero, on return.

        What killed owners left there is removed on the way.

        :param root: a directory that the suppliers see as well, under whatever path; by default
            the client's setting ``file_root``.
        :param network: the directory is on a network file system (NFS and the like).
        :param mode: permissions of the file; ``0o660`` lets suppliers of the same group in.
        :param poison: overwrite each slot when it is freed (for debugging).
        :param token: gives 32 hex digits for the name, others at each call.
        :raises MediumFull: the file system has no room.
        :raises MediumDenied: this user may not make files there.
        :raises ConfigurationError: no such directory, or none was said; no slots, or slots of no
            bytes.
        """
        nbytes = nbytes_of(slot_nbytes, slots)
        mode = checked_int("mode", mode, 0o400, 0o777)
        if root is None:
            root = _settings().client.file_root
        if root is None:
            raise ConfigurationError(
                "a medium of files needs a directory that client and suppliers share: give root, "
                "or set ENTREPOT_CLIENT__FILE_ROOT"
            )
        directory = directory_at(root)
        place = place_in(directory, network)
        owned.sweep(place)
        file = OwnedFile(place, token)
        try:
            file.allocate(nbytes)
            medium = cls(
                f"{cls.scheme}:{file.name}",
                _Descriptor(file.reopen(mode)),
                slot_nbytes,
                slots,
                owner=True,
                poison=poison,
            )
        except BaseException:
            file.end()
            raise
        medium._owned = file
        medium._mode = mode
        medium._token = token
        medium._root = directory
        medium._path = str(file.path)
        medium._identity = file.identity
        weakref.finalize(medium, file.end)
        return medium

    @classmethod
    def attach(
        cls,
        address: str,
        settings: SupplierSettings | None = None,
        *,
        root: str | os.PathLike[str] | None = None,
    ) -> Self:
        """Open the file that ``address`` names, as one slot of all its bytes.

        :param root: the directory that it must be in; by default the setting ``file_root``.
        :raises BadAddress: not ``file:entrepot-<32 hex digits>``, or not a file.
        :raises MediumGone: its owner has unlinked it, or the directory is not the owner's.
        :raises MediumDenied: this supplier takes no files, or this one is another user's.
        """
        name = name_of(address)
        if root is None:
            root = (settings or _settings().supplier).file_root
        if root is None:
            raise MediumDenied(
                f"{address} is refused: this supplier takes no files; set "
                f"ENTREPOT_SUPPLIER__FILE_ROOT to the directory that it shares with the client"
            )
        directory = directory_at(root)
        file = _Descriptor(open_in(directory, name, address))
        found = os.fstat(file.fd)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
            # A second name of it may be one outside of the directory.
            raise BadAddress(f"{address} is not a file of its own in {directory}")
        if found.st_size == 0:
            raise MediumGone(f"{address} is empty: its owner did not finish making it")
        medium = cls(address, file, found.st_size, 1, owner=False)
        medium._root = directory
        medium._path = str(directory / name)
        medium._identity = (found.st_dev, found.st_ino)
        return medium

    def renew(self) -> Self:
        self._check_owner("renew")
        return self.create(
            self.slot_nbytes,
            self.slots,
            root=self._root,
            network=self._network,
            mode=self._mode,
            poison=self.poison,
            token=self._token,
        )

    def gone(self) -> bool:
        return not is_at(self._path, self._identity)

    def close(self) -> None:
        self._file = None
        if self.owner:
            self._owned.end()

    def unlink(self) -> None:
        self._check_owner("unlink")
        self._owned.end()

    @property
    def closed(self) -> bool:
        return self._file is None

    def _check_owner(self, what: str) -> None:
        if not self.owner:
            raise NotOwner(f"{self.address} was attached here; only its owner may {what} it")

    def _open_file(self) -> _Descriptor:
        file = self._file
        if file is None:
            raise Closed(f"{self.address} was closed on this side; attach again, or make another")
        return file

    # --- writing ------------------------------------------------------------------------

    def write(
        self,
        offset: int,
        data: Buffer,
        limit: int | None = None,
        *,
        lease: int = 0,  # noqa: ARG002  # a file cannot tell one writer from another
    ) -> int:
        flat = as_bytes(data)
        self._write(offset, flat, limit, None)
        return len(flat)

    def write_checksummed(
        self,
        offset: int,
        data: Buffer,
        limit: int | None = None,
        *,
        lease: int = 0,  # noqa: ARG002
    ) -> int:
        running = xxhash.xxh3_64()
        self._write(offset, as_bytes(data), limit, running)
        return running.intdigest()

    def _write(
        self, offset: int, flat: memoryview, limit: int | None, running: xxhash.xxh3_64 | None
    ) -> None:
        """Each chunk is summed while it is in the cache."""
        file = self._open_file()
        nbytes = len(flat)
        self.check_write(offset, nbytes, limit)
        try:
            self._check_whole(file.fd)
            for start in range(0, nbytes, FILE_CHUNK_NBYTES):
                chunk = flat[start : start + FILE_CHUNK_NBYTES]
                _write_all(file.fd, chunk, offset + start)
                if running is not None:
                    running.update(chunk)
            if self._network:
                os.fdatasync(file.fd)
        except OSError as error:
            if isinstance(error, MediumError):
                raise
            if error.errno in NO_ROOM:
                raise full(self._root, nbytes, error) from error
            raise MediumError(
                f"{nbytes} bytes could not be written at offset {offset} of {self.address}: {error}"
            ) from error
        if self.owner:
            landed = self._landing.at(offset, nbytes)
            if landed is not None:
                landed[:] = flat

    def _check_whole(self, fd: int) -> None:
        size = os.fstat(fd).st_size
        if size < self.nbytes:
            raise self._cut(size)

    def _cut(self, size: int) -> MediumError:
        return MediumError(
            f"{self.address} has {size} bytes and had {self.nbytes}: another program cut it short; "
            f"keep {self._root} to the clients and suppliers"
        )

    # --- reading ------------------------------------------------------------------------

    def read(self, offset: int, nbytes: int) -> bytes:
        file = self._open_file()
        self.check_range(offset, nbytes)
        target = bytearray(nbytes)
        self._fetch(file, offset, memoryview(target), None)
        return bytes(target)

    def view(self, offset: int, nbytes: int, *, writable: bool = False) -> memoryview:
        file = self._open_file()
        self.check_range(offset, nbytes)
        if writable:
            raise MediumError(f"{self.address} is not mapped here: fill memory and write it")
        if self.owner:
            landed = self._landing.at(offset, nbytes)
            if landed is not None:
                return landed.toreadonly()
        target = self._target(offset, nbytes)
        self._fetch(file, offset, target, None)
        return target.toreadonly()

    def checksum(self, offset: int, nbytes: int) -> int:
        file = self._open_file()
        self.check_range(offset, nbytes)
        running = xxhash.xxh3_64()
        self._fetch(file, offset, self._target(offset, nbytes), running)
        return running.intdigest()

    def _target(self, offset: int, nbytes: int) -> memoryview:
        """Memory of this process to read that into."""
        if self.owner:
            target = self._landing.take(offset, nbytes)
            if target is not None:
                return target
        return memoryview(bytearray(nbytes))

    def released(self, slot: int) -> None:
        self._landing.give(slot)

    def _fetch(
        self,
        file: _Descriptor,
        offset: int,
        target: memoryview,
        running: xxhash.xxh3_64 | None,
    ) -> None:
        """Fill ``target`` from ``offset``, with each chunk summed while it is in the cache."""
        try:
            if self._network:
                file = self._opened_anew(file)
            for start in range(0, len(target), FILE_CHUNK_NBYTES):
                chunk = target[start : start + FILE_CHUNK_NBYTES]
                got = _read_all(file.fd, chunk, offset + start)
                if got < len(chunk):
                    raise self._cut(offset + start + got)
                if running is not None:
                    running.update(chunk)
        except OSError as error:
            raise MediumError(
                f"{len(target)} bytes could not be read at offset {offset} of {self.address}: "
                f"{error}"
            ) from error

    def _opened_anew(self, file: _Descriptor) -> _Descriptor:
        """What was written on another machine shows only through a descriptor opened since."""
        try:
            fresh = _Descriptor(os.open(self._path, os.O_RDONLY | OPEN_FLAGS))
        except FileNotFoundError:  # unlinked: what is there is what there was
            return file
        found = os.fstat(fresh.fd)
        return fresh if (found.st_dev, found.st_ino) == self._identity else file


class _Descriptor:
    """An open file, closed with the last reference to it.

    So that a thread that still reads or writes while another closes the medium does not meet a
    number that is another file's by then.
    """

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __del__(self) -> None:
        os.close(self.fd)


def _write_all(fd: int, data: memoryview, offset: int) -> None:
    written = os.pwrite(fd, data, offset)
    while written < len(data):
        written += os.pwrite(fd, data[written:], offset + written)


def _read_all(fd: int, target: memoryview, offset: int) -> int:
    """Bytes that were there: fewer than asked for only at the end of the file."""
    got = os.preadv(fd, [target], offset)
    while 0 < got < len(target):
        more = os.preadv(fd, [target[got:]], offset + got)
        if not more:
            break
        got += more
    return got


def sweep(root: str | os.PathLike[str], *, network: bool = False) -> list[str]:
    """Unlink the files in ``root`` whose owners are dead, and return their names.

    :param network: as for ``create``; those of other machines stay.
    :raises ConfigurationError: there is no such directory.
    """
    return owned.sweep(place_in(directory_at(root), network))


def _settings() -> Settings:
    from entrepot.settings import read_settings  # pydantic takes a while to load

    return read_settings()
