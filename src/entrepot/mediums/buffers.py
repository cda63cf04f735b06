"""Whatever has bytes, as flat bytes: copied, and summed on the way."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import xxhash

from entrepot.errors import NotBytes

if TYPE_CHECKING:
    from typing_extensions import Buffer

COPY_CHUNK_NBYTES = 1024 * 1024
"""Bytes copied and hashed at a time: what is still in the L2 cache, or just behind it.

Measured with 16 MiB and 1 MiB products into rings of 8 and 64 slots. From some 768 KiB the C
library copies past the cache, where it would first read what it overwrites: a third faster for
1 MiB products than pieces of 128 to 512 KiB, which are alike. With 2 MiB and more the hash reads
main memory again.
"""

_FIELD_NAME = re.compile(":[^:]*:")
"""In the format of a record, such as ``T{i:count:O:what:}``."""


def as_bytes(data: Buffer) -> memoryview:
    """``data`` as a flat window of unsigned bytes, without a copy.

    :raises NotBytes: ``data`` has no buffer, or one that is not C-contiguous.
    """
    try:
        view = memoryview(data)
        if view.nbytes == 0:
            return memoryview(b"")
        if "O" in view.format and "O" in _FIELD_NAME.sub("", view.format):
            raise TypeError("what is in it are addresses of Python objects")
        if view.format == "B" and view.ndim == 1 and view.contiguous:
            return view
        return view.cast("B")
    except TypeError as error:
        raise NotBytes(
            f"a {type(data).__name__} cannot be put in a slot ({error}); give bytes, or an array "
            f"that is C-contiguous and of a plain dtype"
        ) from None


def checksum_of(data: Buffer) -> int:
    """xxh3, 64 bit, of ``data``: an unsigned integer below ``2**64``."""
    return xxhash.xxh3_64_intdigest(as_bytes(data))


def copy_with_checksum(target: memoryview, data: memoryview) -> int:
    """Copy ``data`` over ``target`` (equally long, both flat bytes) and return its checksum.

    Each chunk is hashed while it is in the cache, so that main memory is read once, not twice.
    """
    nbytes = len(data)
    if nbytes <= COPY_CHUNK_NBYTES:
        target[:] = data
        return xxhash.xxh3_64_intdigest(data)
    running = xxhash.xxh3_64()
    copy_summed(target, data, running)
    return running.intdigest()


def copy_summed(target: memoryview, data: memoryview, running: xxhash.xxh3_64) -> None:
    """Copy ``data`` over ``target``, and put it into ``running``."""
    for start in range(0, len(data), COPY_CHUNK_NBYTES):
        chunk = data[start : start + COPY_CHUNK_NBYTES]
        target[start : start + COPY_CHUNK_NBYTES] = chunk
        running.update(chunk)


def checksum_of_copy(target: memoryview, data: memoryview) -> int:
    """Copy ``data`` over ``target``, and return the checksum of what is there then.

    Others may be able to write to ``data``; nobody but this process to ``target``.
    """
    running = xxhash.xxh3_64()
    for start in range(0, len(data), COPY_CHUNK_NBYTES):
        chunk = target[start : start + COPY_CHUNK_NBYTES]
        chunk[:] = data[start : start + COPY_CHUNK_NBYTES]
        running.update(chunk)
    return running.intdigest()
