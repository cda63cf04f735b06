"""Linux network namespaces that have no name: each ends with the last process in it."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess

from entrepot.errors import DemoFailed

CLONE_NEWNET = 0x40000000

IP_S = 10.0
"""Time for one ``ip`` command, in seconds."""


class NotHere(Exception):
    """This machine, or this user, has no second network to offer; the message says why."""


def check() -> None:
    """Whether it is worth trying.

    :raises NotHere: it is not.
    """
    if not hasattr(ctypes, "CDLL") or not os.path.exists("/proc/self/ns/net"):  # noqa: PTH110
        raise NotHere("this system has no network namespaces")
    if os.geteuid() != 0:
        raise NotHere("network namespaces want root")
    if shutil.which("ip") is None:
        raise NotHere("network namespaces want `ip`, of the package iproute2")


def leave() -> None:
    """This thread, and those that it starts, are in a new network namespace from now on.

    :raises NotHere: the kernel does not allow it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET) != 0:
        raise NotHere(f"a network namespace is refused: {os.strerror(ctypes.get_errno())}")


def enter(descriptor: int) -> None:
    """Go to the namespace that ``descriptor`` is an open ``/proc/PID/ns/net`` of.

    :raises DemoFailed: the kernel does not allow it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, CLONE_NEWNET) != 0:
        raise DemoFailed(
            f"the network namespace from before is refused: {os.strerror(ctypes.get_errno())}"
        )


def ip(*arguments: str) -> None:
    """Run ``ip`` in the namespace of this thread.

    :raises DemoFailed: with what it said.
    """
    try:
        done = subprocess.run(
            ["ip", *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=IP_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as fault:
        raise DemoFailed(f"`ip {' '.join(arguments)}` did not run: {fault}") from fault
    if done.returncode != 0:
        said = " ".join(done.stderr.split())
        raise DemoFailed(f"`ip {' '.join(arguments)}` failed: {said}")
