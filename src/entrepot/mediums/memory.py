"""Mediums whose bytes are in this process's memory: mapped shared memory, and an owner's own.

One place for the copying and for what ``close`` means while somebody still looks at a slot.
"""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING

import xxhash

from entrepot.errors import Closed, MediumError
from entrepot.mediums import huge
from entrepot.mediums.base import Medium
from entrepot.mediums.buffers import as_bytes, checksum_of_copy, copy_with_checksum

if TYPE_CHECKING:
    from typing_extensions import Buffer


class MemoryMedium(Medium):
    """A medium over memory; abstract in where that comes from.

    ``close`` drops this object's reference to the memory and nothing more. A window that was
    handed out holds a reference of its own, so that it stays good, and the memory is given back
    with the last of them: never a crash, never a ``BufferError``, whichever thread closes while
    another copies.
    """

    in_place = True
    in_memory = True

    _memory: memoryview | None = None

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
        return self._window(offset, nbytes).tobytes()

    def view(self, offset: int, nbytes: int, *, writable: bool = False) -> memoryview:
        window = self._window(offset, nbytes)
        return window if writable else window.toreadonly()

    def checksum(self, offset: int, nbytes: int) -> int:
        return xxhash.xxh3_64_intdigest(self._window(offset, nbytes))

    def _window(self, offset: int, nbytes: int) -> memoryview:
        """What is in a slot, or in the memory that was aimed at."""
        memory = self._open_memory()
        landed = self.landed(offset)
        if landed is not None and nbytes <= len(landed):
            return landed[:nbytes]
        self.check_range(offset, nbytes)
        return memory[offset : offset + nbytes]


class MappedMedium(MemoryMedium):
    """A medium over a mapping of a file that both sides have.

    What its owner aims at is copied to while it is summed: who wants a copy has it for less than
    another pass over what is in the cache no more.
    """

    shared = True
    aims = True

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
        self._memory = map_memory(fd, self.nbytes, address)
        self._aimed: dict[int, memoryview] = {}
        self._landed: dict[int, memoryview] = {}

    def grant(self, offset: int, nbytes: int, *, readonly: bool = False) -> str:
        self._let_go(offset)
        return super().grant(offset, nbytes, readonly=readonly)

    def aim(self, offset: int, memory: memoryview) -> None:
        self._aimed[offset] = memory

    def landed(self, offset: int) -> memoryview | None:
        return self._landed.get(offset)

    def checksum_written(self, offset: int, nbytes: int) -> int:
        aimed = self._aimed.pop(offset, None)
        if aimed is None or len(aimed) != nbytes:
            return self.checksum(offset, nbytes)
        checksum = checksum_of_copy(aimed, self._window(offset, nbytes))
        self._landed[offset] = aimed
        return checksum

    def revoke(self, offset: int) -> None:
        self._let_go(offset)

    def released(self, slot: int) -> None:
        self._let_go(slot * self._stride)

    def _let_go(self, offset: int) -> None:
        self._aimed.pop(offset, None)
        self._landed.pop(offset, None)


def map_memory(fd: int, nbytes: int, address: str) -> memoryview:
    """``nbytes`` of the file ``fd``, shared; or, with -1, of memory that is this process's own.

    :raises MediumError: there is no address space for it.
    """
    own = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    try:
        memory = mmap.mmap(fd, nbytes, own if fd == -1 else mmap.MAP_SHARED)
    except (OSError, OverflowError) as error:
        raise MediumError(
            f"cannot map the {nbytes} bytes of {address}: {error}; is the address space limited "
            f"(ulimit -v)?"
        ) from error
    if fd == -1:
        huge.prefer(memory)
    return memoryview(memory)
