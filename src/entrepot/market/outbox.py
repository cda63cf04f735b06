"""What a peer is still to be sent, and what a client has not yet acknowledged. Both bounded."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

Frames = tuple[bytes, ...]


class Full(Exception):
    """The peer reads too slowly, or not at all. Caught by the broker, which drops the peer."""


class Bounded:
    """A count and a sum of bytes, each with a limit."""

    __slots__ = ("_max_count", "_max_nbytes", "nbytes")

    def __init__(self, max_count: int, max_nbytes: int) -> None:
        self._max_count = max_count
        self._max_nbytes = max_nbytes
        self.nbytes = 0

    def check(self, count: int) -> None:
        if count > self._max_count or self.nbytes > self._max_nbytes:
            raise Full(f"{count:,} messages of {self.nbytes:,} bytes wait for the peer")


class Pending(Bounded):
    """Messages that the connection would not take at once, in their order."""

    __slots__ = ("_queue",)

    def __init__(self, max_count: int, max_nbytes: int) -> None:
        super().__init__(max_count, max_nbytes)
        self._queue: deque[Frames] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, frames: Frames) -> None:
        """Raises Full."""
        self._queue.append(frames)
        self.nbytes += sum(map(len, frames))
        self.check(len(self._queue))

    def first(self) -> Frames:
        return self._queue[0]

    def sent(self) -> None:
        self.nbytes -= sum(map(len, self._queue.popleft()))


class Pushes(Bounded):
    """A session's numbered pushes, kept until the client says that it has seen them."""

    __slots__ = ("_kept", "last")

    def __init__(self, max_count: int, max_nbytes: int) -> None:
        super().__init__(max_count, max_nbytes)
        self._kept: deque[tuple[int, Frames, Sequence[str]]] = deque()
        self.last = 0

    def __len__(self) -> int:
        return len(self._kept)

    def number(self) -> int:
        """The number of the next push."""
        self.last += 1
        return self.last

    def keep(self, push: int, frames: Frames, ends: Sequence[str]) -> None:
        """Keeps a push that ends the orders ``ends``. Raises Full."""
        self._kept.append((push, frames, ends))
        self.nbytes += sum(map(len, frames))
        self.check(len(self._kept))

    def acknowledge(self, last_push: int) -> None:
        kept = self._kept
        while kept and kept[0][0] <= last_push:
            self.nbytes -= sum(map(len, kept.popleft()[1]))

    def __iter__(self) -> Iterator[Frames]:
        return (frames for _, frames, _ in self._kept)

    def ended(self) -> set[str]:
        """The orders that a kept push ends."""
        return {order_id for _, _, ends in self._kept for order_id in ends}
