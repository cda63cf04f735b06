"""``python -m entrepot.demo.apart PARENT DEVICE ADDRESS ARGS...``: a command in its own network.

As :mod:`entrepot.cli.child`, in a network namespace that this process makes and that ends with it.
All that is in there is ``DEVICE``, once the parent has put it there; it gets ``ADDRESS``.
"""

from __future__ import annotations

import socket
import sys
import time

from entrepot.cli import child
from entrepot.demo import namespaces
from entrepot.errors import DemoFailed

DEVICE_S = 10.0
"""Time for the parent to bring the device, in seconds."""

LOOK_S = 0.005


def run() -> None:
    """Leave the parent's network, and go on as a child does."""
    child.end_with_parent(int(sys.argv[1]))
    device, address = sys.argv[2:4]
    del sys.argv[2:4]
    try:
        namespaces.leave()
    except namespaces.NotHere as why:
        sys.exit(str(why))
    print('{"event": "apart"}', flush=True)
    deadline = time.monotonic() + DEVICE_S
    while device not in (name for _, name in socket.if_nameindex()):
        if time.monotonic() >= deadline:
            raise DemoFailed(f"no network device {device!r} came within {DEVICE_S:g} s")
        time.sleep(LOOK_S)
    namespaces.ip("addr", "add", address, "dev", device)
    namespaces.ip("link", "set", device, "up")
    child.run()


if __name__ == "__main__":
    run()
