"""Whether a service is well, by its exit code; for HEALTHCHECK, without a shell.

healthy.py broker              the broker answers
healthy.py supplier            and a supplier of this container is registered, and heard of
healthy.py http URL            the URL answers with a status below 500
healthy.py connected ENDPOINT  this container has a connection to that port; nothing is sent
healthy.py started ENDPOINT    it has, or there is nobody at that endpoint to have one to
healthy.py running             its first process is not stopped; nobody else is asked
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

SECONDS = 4.0


def main(subject: str, *rest: str) -> None:
    if subject == "http":
        answers(rest[0])
    elif subject == "broker":
        stats()
    elif subject == "supplier":
        registered()
    elif subject == "connected":
        connected(rest[0])
    elif subject == "started":
        started(rest[0])
    elif subject == "running":
        running()
    else:
        sys.exit(
            f"healthy: say broker, supplier, http, connected, started or running, not {subject!r}"
        )


def answers(url: str) -> None:
    try:
        with urlopen(url, timeout=SECONDS):
            return
    except HTTPError as fault:
        if fault.code >= 500:
            sys.exit(f"{url} answered {fault.code}")
    except (URLError, OSError) as fault:
        sys.exit(f"{url} does not answer: {fault}")


def stats() -> dict[str, object]:
    """What the broker says, which is at the endpoint of clients."""
    from entrepot.errors import EntrepotError
    from entrepot.market.client import Client
    from entrepot.mediums.shm import ShmMedium

    endpoint = os.environ.get("ENTREPOT_CLIENT__ENDPOINT", "tcp://127.0.0.1:5555")
    try:
        with Client(
            endpoint, ShmMedium.create(1, 1), name="healthcheck", timeout_s=SECONDS
        ) as client:
            return client.stats(SECONDS)
    except EntrepotError as fault:
        sys.exit(str(fault))


def registered() -> None:
    # A supplier without a name of its own is called by its host and its process.
    mine = f"{socket.gethostname()}:"
    suppliers = stats()["suppliers"]
    assert isinstance(suppliers, dict)
    heard = [one for one in suppliers["list"] if one["name"].startswith(mine)]
    if all(one["state"] == "suspect" for one in heard):
        sys.exit("the broker hears of no supplier of this container")


def connected(endpoint: str, tables: tuple[str, ...] = ("/proc/net/tcp", "/proc/net/tcp6")) -> None:
    # A supplier may reach no port of the broker but its own, so that the broker cannot be asked.
    port = f":{int(endpoint.rpartition(':')[2]):04X}"
    for table in map(Path, tables):
        lines = table.read_text().splitlines()[1:] if table.exists() else []
        for _, _, remote, state, *_ in map(str.split, lines):
            if remote.endswith(port) and state == "01":  # established
                return
    sys.exit(f"there is no connection to {endpoint}")


def started(endpoint: str) -> None:
    # A broker that is gone is no reason to start anew whoever waits for it.
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=SECONDS).close()
    except OSError:
        return
    connected(endpoint)


def running(process: str = "/proc/1") -> None:
    # Pid, (name), state: a name may have spaces and brackets.
    state = Path(process, "stat").read_text().rpartition(")")[2].split()[0]
    if state in "TtZX":
        sys.exit(f"the first process does not run: its state is {state}")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("healthy: say what to look at")
    main(*sys.argv[1:])
