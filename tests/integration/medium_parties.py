"""A supplier as a process, which can be stopped in the middle of what it does.

    python -m tests.integration.medium_parties ENDPOINT NAME NOTES VALUE

It makes products of ``nbytes:number`` full of its own byte value. One called ``held:nbytes`` it
makes only after ``NOTES/go`` is there, having said so with ``NOTES/NAME-holds``.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from entrepot import Supplier
from entrepot.market.work import Work

GIVE_UP_S = 60.0


def content(product_id: str, value: int, given: bytes = b"") -> bytes:
    """What the supplier of that value makes of that order."""
    kind, _, number = product_id.partition(":")
    nbytes = int(number if kind == "held" else kind)
    head = f"{product_id} ".encode() + given
    return (head + bytes([value]) * nbytes)[:nbytes]


def serve(endpoint: str, name: str, notes: Path, value: int) -> None:
    """Until the broker, or a signal, ends it; then say what it made."""

    def make(product_id: str) -> bytes:
        return content(product_id, value)

    def fill(work: Work, out: memoryview) -> int:
        made = content(work.product_id, value, bytes(work.input or b""))
        out[: len(made)] = made
        return len(made)

    def hold(product_id: str) -> bytes:
        made = content(product_id, value)
        (notes / f"{name}-holds").touch()
        deadline = time.monotonic() + GIVE_UP_S
        while not (notes / "go").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
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
