"""A descriptor that any thread, or a signal handler, may write to without a lock."""

from __future__ import annotations

import os
from contextlib import suppress


class Wake:
    """An eventfd that is closed when the last reference to it is gone, and not before.

    Whoever writes holds a reference while it does. So nobody can find the descriptor closed under
    its hands, or, worse, see its number given to something else.
    """

    __slots__ = ("fd",)

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def set(self) -> None:
        """Whoever sleeps on it wakes."""
        os.eventfd_write(self.fd, 1)

    def clear(self) -> None:
        with suppress(BlockingIOError):
            os.eventfd_read(self.fd)

    def __del__(self) -> None:
        with suppress(AttributeError):  # there was no descriptor to be had
            os.close(self.fd)
