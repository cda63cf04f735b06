"""Mediums whose bytes are mapped into this process: shared memory, and files.

One place for the copying and for what ``close`` means while somebody still looks at a slot.
"""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING

import xxhash

from entrepot.errors import Closed, MediumError
from entrepot.mediums.base import Medium, as_bytes, copy_with_checksum

if TYPE_CHECKING:
    from typing_extensions import Buffer


class MappedMedium(Medium):
    """A medium over a mapping of its own; abstract in where the mapping comes from.

    ``close`` drops this object's reference to the mapping and nothing more. A window that was
    handed out holds a reference of its own, so that it stays good, and the memory is unmapped
    with the last of them: never a crash, never a ``BufferError``, whichever thread closes while
    another copies.
    """

    in_place = True

    def __init__(
        self,
        address: str,
        fd: int,
        slot_nbytes: int,
        slots: int,
        *,
        owner: bool,
        poison: bool = False,
    ) -> None:
        """Map all of it, shared and writable; the caller closes ``fd`` afterwards.

        :raises MediumError: there is no address space for it.
        """
        super().__init__(address, slot_nbytes, slots, owner=owner, poison=poison)
        self._memory: memoryview | None = None
        try:
            self._memory = memoryview(mmap.mmap(fd, self.nbytes, mmap.MAP_SHARED))
        except OSError as error:
            raise MediumError(
                f"cannot map the {self.nbytes} bytes of {address}: {error}; is the address space "
                f"limited (ulimit -v)?"
            ) from error

    def _open_memory(self) -> memoryview:
        memory = self._memory
        if memory is None:
            raise Closed(f"{self.address} was closed on this side; attach again, or make another")
        return memory

    @property
    def closed(self) -> bool:
        return self._memory is None

    # Memory cannot tell one writer from another: `lease` is for mediums that can.

    def write(
        self,
        offset: int,
        data: Buffer,
        limit: int | None = None,
        *,
        lease: int = 0,  # noqa: ARG002
    ) -> int:
        memory = self._open_memory()
        flat = as_bytes(data)
        nbytes = len(flat)
        self.check_write(offset, nbytes, limit)
        memory[offset : offset + nbytes] = flat
        return nbytes

    def write_checksummed(
        self,
        offset: int,
        data: Buffer,
        limit: int | None = None,
        *,
        lease: int = 0,  # noqa: ARG002
    ) -> int:
        memory = self._open_memory()
        flat = as_bytes(data)
        nbytes = len(flat)
        self.check_write(offset, nbytes, limit)
        return copy_with_checksum(memory[offset : offset + nbytes], flat)

    def read(self, offset: int, nbytes: int) -> bytes:
        memory = self._open_memory()
        self.check_range(offset, nbytes)
        return memory[offset : offset + nbytes].tobytes()

    def view(self, offset: int, nbytes: int, *, writable: bool = False) -> memoryview:
        memory = self._open_memory()
        self.check_range(offset, nbytes)
        window = memory[offset : offset + nbytes]
        return window if writable else window.toreadonly()

    def checksum(self, offset: int, nbytes: int) -> int:
        memory = self._open_memory()
        self.check_range(offset, nbytes)
        return xxhash.xxh3_64_intdigest(memory[offset : offset + nbytes])
