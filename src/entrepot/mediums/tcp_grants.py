"""Who may write and read what of a TCP medium, and who last did. No sockets, no threads, no clock.

A *grant* is what one order's token allows: to write one slot, or to read one input. Whoever uses it
is a *line*, which this module only compares. A slot has one writer at a time. The order's lease is
first heard of from the write itself, so any lease may begin, and the newest has the slot: one that
was overtaken is refused from then on, and its line is to be stopped.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

from entrepot.mediums.tcp_wire import FENCED, OUT_OF_RANGE, REST, TOO_LARGE

Line = TypeVar("Line")


class Refusal(Exception):
    """A request is not granted: a status of the wire, and a sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class Grant(Generic[Line]):
    """What a token allows.

    :ivar lease: the last that began to write.
    :ivar overtaken: leases that had begun before that one.
    :ivar lines: who writes or reads just now.
    :ivar filled: whether there is something to read; of an input that may be granted before.
    :ivar writes: how many have begun.
    :ivar memory: what a write of exactly that many bytes goes to, in place of the slot.
    :ivar aimed: whether the last one does.
    """

    __slots__ = (
        "aimed",
        "filled",
        "lease",
        "lines",
        "memory",
        "nbytes",
        "offset",
        "overtaken",
        "readonly",
        "token",
        "writes",
    )

    def __init__(
        self, token: bytes, offset: int, nbytes: int, readonly: bool, filled: bool = True
    ) -> None:
        self.token = token
        self.offset = offset
        self.nbytes = nbytes
        self.readonly = readonly
        self.lease: int | None = None
        self.overtaken: set[int] = set()
        self.lines: set[Line] = set()
        self.filled = filled
        self.writes = 0
        self.memory: memoryview | None = None
        self.aimed = False

    def target(self, slots: memoryview, offset: int, nbytes: int) -> memoryview:
        """Where the write that has just begun goes; asked before another can begin."""
        if self.aimed and self.memory is not None:
            return self.memory
        return slots[offset : offset + nbytes]


class Grants(Generic[Line]):
    """All grants of one medium: at most one for each offset."""

    def __init__(self) -> None:
        self._by_token: dict[bytes, Grant[Line]] = {}
        self._by_offset: dict[int, Grant[Line]] = {}
        self._written: dict[int, int] = {}
        self._sums: dict[int, tuple[int, int]] = {}
        self._landed: dict[int, memoryview] = {}

    def __len__(self) -> int:
        return len(self._by_token)

    # --- the owner ----------------------------------------------------------------------

    def add(
        self, token: bytes, offset: int, nbytes: int, readonly: bool, filled: bool = True
    ) -> Iterable[Line]:
        """Grant it, in place of what was granted at ``offset``; the lines to be stopped."""
        stopped = self.remove(offset)
        grant: Grant[Line] = Grant(token, offset, nbytes, readonly, filled)
        self._by_token[token] = self._by_offset[offset] = grant
        self._written.pop(offset, None)
        self._sums.pop(offset, None)
        self._landed.pop(offset, None)
        return stopped

    def fill(self, offset: int) -> None:
        """What is granted at ``offset`` may be read from now on."""
        grant = self._by_offset.get(offset)
        if grant is not None:
            grant.filled = True

    def remove(self, offset: int) -> Iterable[Line]:
        """Take back what is granted at ``offset``; the lines to be stopped."""
        grant = self._by_offset.pop(offset, None)
        if grant is None:
            return ()
        del self._by_token[grant.token]
        return grant.lines

    def written(self, offset: int) -> int:
        """The lease whose write to ``offset`` is complete and was the last to begin, or 0."""
        return self._written.get(offset, 0)

    def aim(self, offset: int, memory: memoryview) -> None:
        """A write of as many bytes to what is granted at ``offset`` goes to ``memory``."""
        self._by_offset[offset].memory = memory

    def landed(self, offset: int) -> memoryview | None:
        """That memory, if the last write to ``offset`` is complete and went there."""
        return self._landed.get(offset)

    def let_go(self, offset: int) -> None:
        """Nobody looks at what was written to ``offset`` any more. From any thread."""
        self._landed.pop(offset, None)

    def checksum(self, offset: int, nbytes: int) -> int | None:
        """That of the last write to ``offset``, if it had ``nbytes`` bytes and was summed."""
        summed, checksum = self._sums.get(offset, (-1, 0))
        return checksum if summed == nbytes else None

    # --- the lines ----------------------------------------------------------------------

    def find(self, token: bytes) -> Grant[Line]:
        """What ``token`` allows.

        :raises Refusal: nothing.
        """
        grant = self._by_token.get(token)
        if grant is None:
            raise Refusal(
                FENCED, "this address is no order's any more: it has ended, or moved to another"
            )
        return grant

    def begin_write(
        self, token: bytes, lease: int, offset: int, limit: int, nbytes: int, line: Line
    ) -> tuple[Grant[Line], Iterable[Line]]:
        """``line`` is about to write; the grant, and the lines to be stopped before it does.

        :raises Refusal: it may not.
        """
        grant = self.find(token)
        if grant.readonly:
            raise Refusal(FENCED, "this address is an input's, to be read and not written")
        end = grant.offset + grant.nbytes
        limit = end - offset if limit == REST else limit
        if offset < grant.offset or limit < 0 or offset + limit > end:
            raise Refusal(
                OUT_OF_RANGE,
                f"{max(limit, 0)} bytes at offset {offset} are not within the order's slot, which "
                f"has {grant.nbytes} bytes at offset {grant.offset}",
            )
        if nbytes > limit:
            raise Refusal(
                TOO_LARGE,
                f"a product of {nbytes} bytes does not fit in the {limit} bytes at offset {offset}",
            )
        if lease in grant.overtaken:
            raise Refusal(FENCED, f"the slot waits for another lease than {lease:#x}")
        if grant.lease is not None and grant.lease != lease:
            grant.overtaken.add(grant.lease)
        grant.lease = lease
        stopped = grant.lines
        grant.lines = {line}
        grant.writes += 1
        grant.aimed = grant.memory is not None and (offset, nbytes) == (
            grant.offset,
            len(grant.memory),
        )
        self._written.pop(grant.offset, None)
        self._sums.pop(grant.offset, None)
        self._landed.pop(grant.offset, None)
        return grant, stopped

    def end_write(self, grant: Grant[Line], line: Line, complete: bool) -> None:
        """``line`` is done with it.

        :raises Refusal: the write was overtaken, or what it was granted was taken back.
        """
        if not self.is_granted(grant) or line not in grant.lines:
            raise Refusal(FENCED, "the slot was taken back while it was being written")
        grant.lines.discard(line)
        if complete:
            assert grant.lease is not None
            self._written[grant.offset] = grant.lease
            if grant.aimed and grant.memory is not None:
                self._landed[grant.offset] = grant.memory

    def is_granted(self, grant: Grant[Line]) -> bool:
        """Whether it was not taken back."""
        return self._by_token.get(grant.token) is grant

    def summed(self, grant: Grant[Line], writes: int, nbytes: int, checksum: int) -> None:
        """What the last of so many ``writes`` put at its beginning has this checksum.

        Forgotten, when another write has begun since, or it was taken back.
        """
        if self.is_granted(grant) and grant.writes == writes:
            self._sums[grant.offset] = nbytes, checksum

    def begin_read(self, token: bytes, offset: int, nbytes: int, line: Line) -> Grant[Line]:
        """``line`` is about to read.

        :raises Refusal: it may not.
        """
        grant = self.find(token)
        if offset < grant.offset or offset + nbytes > grant.offset + grant.nbytes:
            raise Refusal(
                OUT_OF_RANGE,
                f"{nbytes} bytes at offset {offset} are not within the order's input, which has "
                f"{grant.nbytes} bytes at offset {grant.offset}",
            )
        if not grant.readonly:
            raise Refusal(FENCED, "this address is a slot's, to be written and not read")
        grant.lines.add(line)
        return grant

    def end_read(self, grant: Grant[Line], line: Line) -> None:
        """``line`` is done with it."""
        grant.lines.discard(line)
