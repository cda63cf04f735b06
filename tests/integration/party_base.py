"""What every party has: a bell to wait for, a count of what it holds, and a network to be in."""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path

CLONE_NEWNET = 0x40000000


class Bell:
    """What ``threading.Event`` is, for signal handlers too: its ``set`` may not interrupt its
    ``wait``, since both take one lock."""

    def __init__(self) -> None:
        self.rung = False

    def ring(self, *_: object) -> None:
        self.rung = True

    def wait(self) -> None:
        while not self.rung:
            time.sleep(0.01)


def resources() -> dict[str, int]:
    """What this process holds."""
    mapped = Path("/proc/self/maps").read_text().splitlines()
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),  # noqa: PTH208  it is counted, not walked
        "threads": len(os.listdir("/proc/self/task")),  # noqa: PTH208
        "segments": len({line.split()[5] for line in mapped if "/dev/shm/entrepot-" in line}),
    }


def enter(network: str) -> None:
    """Have this thread, and those that it starts from now on, be in a network namespace.

    :param network: its file, such as ``/proc/1/ns/net``.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(network, os.O_RDONLY)
    try:
        if libc.setns(descriptor, CLONE_NEWNET):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), network)
    finally:
        os.close(descriptor)
