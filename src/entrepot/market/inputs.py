"""What comes with an order for its supplier to read: bytes in one buffer, or in several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from entrepot.mediums.base import Medium
from entrepot.mediums.buffers import as_bytes


class Input:
    """Buffers that are to lie one after the other, and where they are written.

    A subclass may know a better way than to write one buffer after the other.

    :param parts: flat bytes, each of them.
    :ivar nbytes: of all of them.
    """

    __slots__ = ("_parts", "nbytes")

    def __init__(self, parts: Sequence[Any]) -> None:
        self._parts = parts
        self.nbytes = sum(map(len, parts))

    def announce(self, medium: Medium, offset: int) -> bool:
        """Whether it may be written once its order is on the way, to memory that both sides see.

        That is so where who reads it can tell by itself when it is all there. What is at ``offset``
        says then that it is not.
        """
        del medium, offset
        return False

    def write(self, medium: Medium, offset: int) -> None:
        """Write them into the slot at ``offset``, which has room for them; by its owner."""
        at, end = offset, offset + self.nbytes
        for part in self._parts:
            at += medium.write(at, part, end - at)


def input_of(data: Any) -> Input:
    """What a user gives as an input: a buffer, or a list of some; or it is an :class:`Input`.

    :raises NotBytes: a part is no buffer, or not C-contiguous.
    """
    if isinstance(data, Input):
        return data
    return Input([as_bytes(part) for part in (data if isinstance(data, list) else (data,))])
