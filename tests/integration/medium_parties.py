"""A supplier as a process, which can be stopped in the middle of what it does.

    python -m tests.integration.medium_parties ENDPOINT NAME NOTES VALUE

It makes products of ``nbytes:number`` full of its own byte value. One called ``held:nbytes`` it
makes only after ``NOTES/go`` is there, having said so with ``NOTES/NAME-holds``. Where there is a
``NOTES/NAME-breaks``, it does likewise in the middle of writing what it returned.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

from entrepot import Supplier
from entrepot.market.work import Work
from tests.integration.party_breakpoint import Breakpoint

GIVE_UP_S = 60.0


PART_NBYTES = 1 << 20


def content(product_id: str, value: int, given: bytes = b"") -> bytes:
    """What the supplier of that value makes of that order."""
    head, nbytes = _shape(product_id, given)
    return head.ljust(nbytes, bytes([value]))


def _shape(product_id: str, given: bytes) -> tuple[bytes, int]:
    """What a product begins with, and its length; the rest is the supplier's value."""
    kind, _, number = product_id.partition(":")
    nbytes = int(number if kind == "held" else kind)
    return (f"{product_id} ".encode() + given)[:nbytes], nbytes


class Go(threading.Event):
    """Is set once ``NOTES/go`` is there; says that somebody waits for it."""

    def __init__(self, notes: Path, name: str) -> None:
        super().__init__()
        self._go = notes / "go"
        self._holds = notes / f"{name}-holds"

    def wait(self, timeout: float | None = GIVE_UP_S) -> bool:
        self._holds.touch()
        deadline = time.monotonic() + (timeout or 0)
        while not self._go.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        return True


def serve(endpoint: str, name: str, notes: Path, value: int) -> None:
    """Until the broker, or a signal, ends it; then say what it made."""

    go = Go(notes, name)
    breakpoint = Breakpoint(go)

    def make(product_id: str) -> bytes:
        if (notes / f"{name}-breaks").exists():
            breakpoint.arm("within")
        return content(product_id, value)

    def fill(work: Work, out: memoryview) -> int:
        head, nbytes = _shape(work.product_id, bytes(work.input or b""))
        out[: len(head)] = head
        for start in range(len(head), nbytes, PART_NBYTES):  # there may be a gibibyte of it
            part = out[start : min(start + PART_NBYTES, nbytes)]
            part[:] = bytes([value]) * len(part)
        return nbytes

    def hold(product_id: str) -> bytes:
        made = content(product_id, value)
        go.wait()
        return made

    supplier = Supplier(
        endpoint, {r"held:\d+": hold, r"\d+:1\d*": make, r"\d+:2\d*": fill}, name=name
    )
    with supplier:
        supplier.start()
        supplier.wait_registered(GIVE_UP_S)
        print("ready", flush=True)
        sys.stdin.readline()
        supplier.stop()
    print(supplier.served, supplier.failed, flush=True)


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))
