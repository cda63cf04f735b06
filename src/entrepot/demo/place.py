"""Where the demonstration's parts meet: one endpoint, one folder, and a page that shows both."""

from __future__ import annotations

import importlib.util
import secrets
import socket
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from entrepot.demo.consumer import Watcher
from entrepot.demo.processes import Part, Parts
from entrepot.errors import DemoFailed

PREFIX = "entrepot-demo-"
"""Begins the name of a temporary folder. A demonstration that is killed leaves it."""

PAGE_PORT = 8080
PAGE_NEEDS = ("fastapi", "jinja2", "prometheus_client", "uvicorn")

SOCKET_PATH_NBYTES = 100
"""A path of a Unix socket may have 107 bytes, and its lock's name is longer than its own."""

FREE = "tcp://127.0.0.1:0"

_SIDECAR = {
    "ENTREPOT_SIDECAR__MARKET_EVERY_S": "0.25",
    "ENTREPOT_SIDECAR__STORE_EVERY_S": "0.5",
    "ENTREPOT_SIDECAR__STALE_S": "1.5",
}
"""What happens here is over in seconds."""


@dataclass(frozen=True)
class Place:
    """What the parts are told.

    :ivar home: a folder, which is removed at the end.
    :ivar frontend: where each broker listens to clients, one after the other: whoever watches one
        of them goes on with the next.
    """

    home: Path
    frontend: str

    @property
    def store(self) -> str:
        """The folder of both studies."""
        return str(self.home / "store")


@contextmanager
def made() -> Iterator[Place]:
    """A place of this demonstration's own."""
    with tempfile.TemporaryDirectory(prefix=PREFIX) as name:
        home = Path(name)
        path = str(home / "clients")
        if len(path.encode()) > SOCKET_PATH_NBYTES:
            path = f"@{PREFIX}{secrets.token_hex(8)}"  # has no file; ends with its process
        yield Place(home, f"ipc://{path}")


def start_broker(
    parts: Parts,
    place: Place,
    watch: Watcher,
    backend: str = FREE,
    environment: Mapping[str, str] | None = None,
) -> tuple[Part, str]:
    """A broker for the clients of this place, and where suppliers find it.

    :param backend: where it listens to suppliers.
    """
    broker = parts.start(
        "broker",
        *("broker", "--frontend", place.frontend, "--backend", backend, "--json"),
        environment=environment,
    )
    where: dict[str, Any] = broker.wait_for("listening")
    found: str = where["backend"]
    watch.part("broker", broker.pid, f"suppliers at {found}")
    return broker, found


@dataclass(frozen=True)
class Page:
    """The sidecar, which shows broker and studies as they change.

    :ivar url: where it is.
    :ivar why_none: why there is none, in words; its process is None then.
    """

    url: str
    why_none: str = ""
    part: Part | None = None


def start_page(parts: Parts, place: Place, port: int) -> Page:
    """The page of this place.

    :param port: of 127.0.0.1; if somebody has it, any other.
    """
    lacks = [name for name in PAGE_NEEDS if importlib.util.find_spec(name) is None]
    if lacks:
        return Page("", f"no {', '.join(lacks)} here: pip install 'entrepot[sidecar]' brings it")
    from entrepot.store import Store

    with Store(place.store):  # so that it is there to be looked at
        pass
    wanted = ["sidecar", "--frontend", place.frontend, "--store", place.store, "--json"]
    for each in (port, 0) if _free(port) else (0,):
        sidecar = parts.start("page", *wanted, "--port", str(each), environment=_SIDECAR)
        try:
            url: str = sidecar.wait_for("listening")["url"]
        except DemoFailed:
            if sidecar.running or not each:
                raise
            sidecar.killed = True  # somebody was quicker; it is not to blame for what follows
        else:
            return Page(url, part=sidecar)
    raise AssertionError("the last port is any that is free")


def _free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
