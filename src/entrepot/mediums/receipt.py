"""Writes that are still under way when the call that began them returns."""

from __future__ import annotations

from abc import ABC, abstractmethod


class Receipt:
    """What became of one write.

    :ivar post: who carries it.
    :ivar done: whether that is known.
    :ivar error: why it is not where it was to be written, once that is known; None if it is there.
    """

    __slots__ = ("done", "error", "post")

    def __init__(self, post: Post) -> None:
        self.post = post
        self.done = False
        self.error: Exception | None = None


class Post(ABC):
    """Carries writes to one medium, several together, and hears later that they have arrived.

    A write is not begun before :meth:`push`, or until there are so many that they go by themselves.
    Its receipt is done some time after that, but only the methods here take note. From any number
    of threads: while one of them is at it, what does not wait does nothing.
    """

    @property
    @abstractmethod
    def under_way(self) -> int:
        """Writes whose receipts are not done."""

    @abstractmethod
    def push(self) -> None:
        """Have what was gathered leave now. Waits for the other end to take it, no more."""

    @abstractmethod
    def look(self) -> None:
        """Have what can leave leave, and take note of what is done by now, without waiting."""

    @abstractmethod
    def wait(self) -> None:
        """:meth:`push`, and wait until something more is done; at once if nothing is under way."""

    @abstractmethod
    def fileno(self) -> int:
        """A descriptor that can be read when something more is done, or -1 if there is none now."""
