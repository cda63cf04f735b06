"""File systems that fail, and processes that are killed, at a system call of one's choice."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable
from enum import Enum
from typing import Any

from entrepot.store.calls import Calls

NAMES = (
    *("open", "close", "read", "write", "fsync", "fstat", "stat", "lstat"),
    *("link", "rename", "unlink", "mkdir", "utime", "scandir"),
)


class NoLinks(Calls):
    """A file system without hard links, such as FAT or an SMB share."""

    @staticmethod
    def link(*arguments: Any, **options: Any) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))


class When(Enum):
    """Where a process is killed."""

    BEFORE = "before"
    AFTER = "after"
    WITHIN = "within"
    """Half of what a write was to write is written."""


class Hooked(Calls):
    """System calls that ``hook(name, call, arguments)`` may do something around."""

    def __init__(self, hook: Callable[[str, Callable[[], Any], tuple[Any, ...]], Any]) -> None:
        for name in NAMES:
            setattr(self, name, self._hooked(name, getattr(Calls, name), hook))

    @staticmethod
    def _hooked(
        name: str,
        real: Callable[..., Any],
        hook: Callable[[str, Callable[[], Any], tuple[Any, ...]], Any],
    ) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            return hook(name, lambda: real(*arguments, **options), arguments)

        return call


class Killing(Hooked):
    """Kills the process at the n-th call, counted from 1, once it is armed.

    Listings do not count: a gc makes hundreds of them, and they change nothing.
    """

    def __init__(self, *, links: bool = True) -> None:
        self._left = 0
        self._when = When.BEFORE
        self._links = links
        super().__init__(self._call)

    def arm(self, n: int, when: When) -> None:
        self._left, self._when = n, when

    def _call(self, name: str, call: Callable[[], Any], arguments: tuple[Any, ...]) -> Any:
        if name == "link" and not self._links:
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))
        counts = name == "write" if self._when is When.WITHIN else name != "scandir"
        if self._left == 0 or not counts:
            return call()
        self._left -= 1
        if self._left:
            return call()
        try:
            if self._when is When.AFTER:
                call()
            elif self._when is When.WITHIN:
                os.write(arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2])
        finally:
            os.kill(os.getpid(), signal.SIGKILL)


def in_child(work: Callable[[], None]) -> tuple[bool, bool]:
    """Runs ``work`` in a forked child: whether it returned, and whether it was killed instead.

    That it returned is said through a pipe, as an acknowledgement to somebody who relies on it.
    """
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            os.write(theirs, b"!")
            code = 0
        finally:
            os._exit(code)
    os.close(theirs)
    try:
        said = os.read(ours, 1) == b"!"
    finally:
        os.close(ours)
        _, status = os.waitpid(child, 0)
    killed = os.WIFSIGNALED(status)
    assert killed or os.waitstatus_to_exitcode(status) == 0, "the child failed by itself"
    return said, killed
