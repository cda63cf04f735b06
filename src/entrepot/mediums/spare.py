"""Memory for what is read from elsewhere, used again once nobody looks at it.

Fresh memory of a megabyte takes longer to be had than to be filled: the kernel gives it page by
page, each of them zeroed, and takes it back as soon as it is free.
"""

from __future__ import annotations

import ctypes
from collections import deque
from functools import lru_cache
from typing import Any

LEAST_NBYTES = 1 << 16
"""What is smaller is left to the allocator."""

MOST_NBYTES = 64 << 20
"""What is larger is not kept."""

KEPT = 4
"""Blocks that are kept while nobody uses them."""


class _Lent:
    """Brings a block back with its own end; a finalizer takes twice as long."""

    __slots__ = ("_block", "_free")

    def __init__(self, block: bytearray, free: deque[bytearray]) -> None:
        self._block = block
        self._free = free

    def __del__(self) -> None:
        self._free.append(self._block)


@lru_cache(64)
def _kind(nbytes: int) -> Any:
    """A class of arrays of so many bytes that may have an attribute."""
    return type("Block", (ctypes.c_ubyte * nbytes,), {})


class Spare:
    """A few blocks that are free. From any thread.

    :param kept: how many, at most.
    """

    def __init__(self, kept: int = KEPT) -> None:
        self._free: deque[bytearray] = deque(maxlen=kept)

    def take(self, nbytes: int) -> memoryview:
        """A window on all of a block of that size, whose content is what it happens to be.

        The block comes back once all that was made over it is gone: not only windows, of which a
        bytearray knows, but also arrays of numpy's, which keep the window's object and no window.
        So each time there is another object in between, whose end is what is waited for.
        """
        if not LEAST_NBYTES <= nbytes <= MOST_NBYTES:
            return memoryview(bytearray(nbytes))
        block = self._block(nbytes)
        whole = _kind(nbytes).from_buffer(block)
        whole.lent = _Lent(block, self._free)
        return memoryview(whole).cast("B")

    def _block(self, nbytes: int) -> bytearray:
        for _ in range(len(self._free)):
            try:
                block = self._free.pop()  # the last one that came back is still in the cache
            except IndexError:  # another thread was quicker
                break
            if len(block) == nbytes:
                return block
            self._free.appendleft(block)
        return bytearray(nbytes)


def own(window: memoryview) -> memoryview | None:
    """Another window, which may be kept, if all of its memory was set aside for this one alone."""
    block = window.obj
    if isinstance(block, (bytearray, ctypes.Array)) and len(block) == len(window):
        return memoryview(block).cast("B")
    return None
