"""Memory in pages of 2 MiB, where the kernel gives them to who asks.

What is copied through 4 KiB pages is looked up page by page: by the processor in its page tables,
and, for a file in memory that is read and written, by the kernel in an index of the file. A copy
of 16 MiB takes half as long again for that. Everything here is a wish: where it cannot be granted,
all works as before.

A file on a tmpfs is made of huge pages by ``MADV_COLLAPSE`` (Linux 6.1), whatever the mount was
told, unless huge pages are denied on this machine. Python's ``mmap`` cannot place a mapping at a
multiple of 2 MiB, as that asks for; the C library can.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from contextlib import suppress
from functools import cache

HUGE_NBYTES = 2 << 20
"""Bytes of a huge page on x86-64, and on most ARM machines."""

_MADV_COLLAPSE = 25
_MAP_FIXED = 0x10
_MAP_NORESERVE = 0x4000
_FAILED = ctypes.c_void_p(-1).value


def allocate(fd: int, nbytes: int) -> None:
    """Have the empty file ``fd``, in memory, be of huge pages, as far as it will go.

    Afterwards parts of it may be allocated, and others not; all of it is zeros. Nothing is mapped
    beyond the call, and nothing is touched through a mapping, so that a file that somebody cuts
    short meanwhile is no harm.
    """
    whole = nbytes - nbytes % HUGE_NBYTES
    if not whole:
        return
    with suppress(OSError):  # no room: who allocates the rest will say so
        # The kernel makes a huge page of 2 MiB that have a page; on other file systems, of none.
        os.pwrite(fd, b"\0", 0)
        if not _collapse(fd, HUGE_NBYTES):
            return
        for start in range(HUGE_NBYTES, whole, HUGE_NBYTES):
            os.pwrite(fd, b"\0", start)
        _collapse(fd, whole)


def prefer(memory: mmap.mmap) -> None:
    """Have memory that is this process's own be of huge pages as it is touched."""
    if len(memory) >= HUGE_NBYTES:
        with suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)


def _collapse(fd: int, nbytes: int) -> bool:
    libc = _libc()
    room = nbytes + HUGE_NBYTES
    base = libc.mmap(None, room, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE, -1, 0)
    if base == _FAILED:
        return False
    try:
        aligned = -(-base // HUGE_NBYTES) * HUGE_NBYTES
        readable = mmap.PROT_READ | mmap.PROT_WRITE
        at = libc.mmap(aligned, nbytes, readable, mmap.MAP_SHARED | _MAP_FIXED, fd, 0)
        return bool(at == aligned and libc.madvise(at, nbytes, _MADV_COLLAPSE) == 0)
    finally:
        libc.munmap(base, room)


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None)
    length, offset = ctypes.c_size_t, ctypes.c_int64
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, length, ctypes.c_int, ctypes.c_int, ctypes.c_int, offset]
    libc.munmap.argtypes = [ctypes.c_void_p, length]
    libc.madvise.argtypes = [ctypes.c_void_p, length, ctypes.c_int]
    return libc
