"""What the suppliers of the tests serve; it runs in their containers."""

from __future__ import annotations

import ctypes
import time


def make(name: str) -> bytes:
    time.sleep(0.002)
    return name.encode()


def fail(name: str) -> bytes:
    raise ValueError(f"{name} cannot be made here")


def hang(name: str) -> bytes:
    """Nothing else of its process runs meanwhile, as under an extension that keeps the lock."""
    ctypes.PyDLL(None).sleep(15)
    return name.encode()


def never(name: str) -> bytes:
    """As long as its supplier lives, somebody has this order."""
    while True:
        time.sleep(3600)
