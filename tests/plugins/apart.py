"""Tests that run beside each other, each process with shared memory of its own.

What is in ``/dev/shm`` is everybody's: a test that looks for what was left there would find what a
test beside it has just made. So a process of pytest-xdist takes a mount namespace of its own, which
its children have as well, and an empty ``/dev/shm`` in it. That takes the right to mount; where
it is not had, tests run one after another, in one process.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress

import pytest

PROCESSES = 2
"""As many as the machines of our CI have cores. More would make slow what others wait for."""

SHM = b"/dev/shm"

_CLONE_NEWNS = 0x00020000
_MS_REC, _MS_PRIVATE = 0x4000, 0x40000
_MS_NOSUID, _MS_NODEV = 0x2, 0x4


def take_shared_memory() -> None:
    """From now on ``/dev/shm`` is this thread's and its children's, and empty.

    :raises OSError: this process may not do that.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    _call(libc.unshare(_CLONE_NEWNS))
    _call(libc.mount(b"none", b"/", None, ctypes.c_ulong(_MS_REC | _MS_PRIVATE), None))
    flags = ctypes.c_ulong(_MS_NOSUID | _MS_NODEV)
    _call(libc.mount(b"shm", SHM, b"tmpfs", flags, b"mode=1777"))


def _call(code: int) -> None:
    if code:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def may_take() -> bool:
    """Whether :func:`take_shared_memory` would do, tried in a child."""
    child = os.fork()
    if not child:
        code = 1
        with suppress(OSError):
            take_shared_memory()
            code = 0
        os._exit(code)
    return os.waitpid(child, 0)[1] == 0


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """What ``-n auto`` means."""
    return PROCESSES if may_take() else 0


def pytest_configure() -> None:
    if "PYTEST_XDIST_WORKER" in os.environ and not _done:
        take_shared_memory()
        _done.append(True)


_done: list[bool] = []
"""Whether it was taken: pytester runs pytest in the same process."""
