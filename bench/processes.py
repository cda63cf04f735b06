"""Processes of one measurement: started together, ended by their ids whatever happens."""

from __future__ import annotations

import contextlib
import socket
import sys
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.peer.host import Host
from tests.peer.process import LineProcess

FORWARDER = "bench.forwarders"
LOAD = "bench.loads"
OURS = "tests.peer.ours"
IMPORTED = ["zmq", "entrepot.market.broker", "entrepot.market.client", "entrepot.market.supplier"]


class Processes:
    """A context in which processes are started: ours, or in the peer's environment."""

    def __init__(self, peer_python: Path | None = None) -> None:
        self._stack = ExitStack()
        self._host = self._stack.enter_context(
            Host("softs", python=peer_python) if peer_python else Host(*IMPORTED)
        )

    def start(self, module: str) -> LineProcess:
        return self._stack.enter_context(self._host.start(module))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def cpu_s(pid: int) -> float:
    """Seconds that a process spent on a core so far, over all its threads, to the nanosecond."""
    spent_ns = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        # A thread that ends between two looks takes its time with it.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            spent_ns += int((task / "schedstat").read_text().split()[0])
    return spent_ns / 1e9


def two_ends() -> tuple[str, str]:
    """Two endpoints that are free now, for who cannot say which port it got."""
    with socket.socket() as one, socket.socket() as other:
        for end in (one, other):
            end.bind(("127.0.0.1", 0))
        ports = [end.getsockname()[1] for end in (one, other)]
    return f"tcp://127.0.0.1:{ports[0]}", f"tcp://127.0.0.1:{ports[1]}"
