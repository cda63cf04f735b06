"""Brokers, suppliers and clients as processes of their own, to be stopped, killed and cut off.

Nothing here waits for a time: a test waits until something is so. When a market ends, each party
that still lives must end in order and leave nothing behind, no descriptor, thread, segment or file,
and none may have met an error that it did not expect.
"""

from __future__ import annotations

import itertools
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from entrepot.mediums import filesystem, shm
from tests.integration.market_hosts import Host, Hosts
from tests.integration.market_products import Made
from tests.integration.market_proxy import Proxy
from tests.peer import raw
from tests.peer.process import CHECKOUT, LineProcess, ProcessFailed
from tests.peer.waiting import LIMIT_S, until, until_stopped
from tests.ports import Ports

START_S = 60.0
"""How long the library may take to load on a busy machine."""


# --- processes --------------------------------------------------------------------------


class Child:
    """A process that the nursery forked: what of ``subprocess.Popen`` a LineProcess needs."""

    def __init__(
        self, pid: int, descriptor: int, stdin: IO[bytes], stdout: IO[bytes], nursery: Nursery
    ) -> None:
        self.pid = pid
        self.stdin = stdin
        self.stdout = stdout
        self.returncode: int | None = None
        self._descriptor = descriptor
        self._nursery = nursery

    def poll(self) -> int | None:
        if self.returncode is None and self._ended(0):
            os.close(self._descriptor)
            self.returncode = self._nursery.reap(self.pid)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None and not self._ended(timeout):
            raise subprocess.TimeoutExpired(f"party {self.pid}", timeout or 0)
        code = self.poll()
        assert code is not None
        return code

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            signal.pidfd_send_signal(self._descriptor, number)

    def _ended(self, timeout_s: float | None) -> bool:
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        return bool(poll.poll(None if timeout_s is None else timeout_s * 1000))


class Nursery:
    """The process that forks parties, near end."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(START_S)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.integration.market_parties", str(theirs.fileno())],
                cwd=CHECKOUT,
                env=os.environ | {"PYTHONPATH": str(CHECKOUT / "src")},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )

    def start(self, kind: str, **options: Any) -> Party:
        """A party of that kind, which is told its options and has not answered yet."""
        stdin, stdin_end = os.pipe()
        stdout_end, stdout = os.pipe()
        ends = os.fdopen(stdin_end, "wb"), os.fdopen(stdout_end, "rb")
        stderr = tempfile.TemporaryFile()  # noqa: SIM115  the party closes it
        try:
            socket.send_fds(self._socket, [b"start"], [stdin, stdout, stderr.fileno()])
            said, (descriptor,), _, _ = socket.recv_fds(self._socket, 100, 1)
        except (OSError, ValueError) as fault:
            for end in (*ends, stderr):
                end.close()
            raise ProcessFailed(f"the nursery started no {kind}: {fault}") from fault
        finally:
            os.close(stdin)
            os.close(stdout)
        party = Party(kind, Child(int(said), descriptor, *ends, self), stderr)
        party.begin(kind, **options)
        return party

    def reap(self, pid: int) -> int:
        """How a process ended that has; nobody has its number before that."""
        self._socket.send(str(pid).encode())
        return int(self._socket.recv(100))

    @property
    def idle(self) -> bool:
        """Whether every process that it started has ended and was reaped."""
        return not Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text()

    def close(self) -> None:
        self._socket.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Party(LineProcess):
    """One process, driven by its methods' names; see :mod:`tests.integration.market_parties`."""

    def __init__(self, kind: str, child: Child, stderr: IO[bytes]) -> None:
        super().__init__(kind, process=child, stderr=stderr)
        self._child = child
        self._errors = stderr

    def stop(self) -> None:
        """SIGSTOP; returns when all of its threads stand still."""
        self.signal(signal.SIGSTOP)
        until_stopped(self.pid)

    def resume(self) -> None:
        """SIGCONT."""
        self.signal(signal.SIGCONT)

    def terminate(self) -> None:
        """SIGTERM; does not wait."""
        self.signal(signal.SIGTERM)

    def ended(self, limit_s: float = LIMIT_S) -> int:
        """Its exit code, once it has ended by itself."""
        try:
            return self._child.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGUSR1)  # it says where its threads are
            until(lambda: "most recent call first" in self.said())
            raise AssertionError(
                f"{self.name} {self.pid} has not ended {limit_s:g} s later\n{self.said()}"
            ) from None

    def hang_up(self) -> None:
        """End its stdin, upon which it ends in order."""
        self._child.stdin.close()

    def said(self) -> str:
        """The end of what it wrote on stderr."""
        self._errors.seek(0)
        text = self._errors.read().decode(errors="replace").strip()
        self._errors.seek(0, os.SEEK_END)
        return text[-6000:]


# --- a market ---------------------------------------------------------------------------


class Market:
    """A broker's endpoints, and whoever a test adds.

    :param transport: ``tcp``, or ``ipc``.
    :param medium: ``shm``, ``file`` or ``tcp``: what clients have products in.
    :param hosts: machines to be on: the near one, for who is not put on the other by ``host``.
    :param settings: the broker's.
    :ivar parties: all that were started, also those that are no more.
    """

    def __init__(
        self,
        nursery: Nursery,
        transport: str = "tcp",
        medium: str = "shm",
        hosts: Hosts | None = None,
        **settings: Any,
    ) -> None:
        self.settings = settings
        self.medium = medium
        self.parties: list[Party] = []
        self._nursery = nursery
        self._here = None if hosts is None else hosts.near
        self._stack = ExitStack()
        self._killed: set[str] = set()
        # A socket's path may have 107 characters, and pytest's folders have names of tests.
        self.folder = tempfile.mkdtemp(prefix="entrepot-")
        self._stack.callback(shutil.rmtree, self.folder)
        if transport == "ipc":
            self.frontend, self.backend = f"ipc://{self.folder}/f", f"ipc://{self.folder}/b"
        else:
            address = "127.0.0.1" if hosts is None else hosts.near.address
            self.frontend, self.backend = (f"tcp://{address}:{port}" for port in self.ports(2))

    # --- parties ------------------------------------------------------------------------

    def start_broker(self, **changed: Any) -> Party:
        """On the same endpoints each time."""
        options = self.settings | changed
        self.broker = self._add("broker", frontend=self.frontend, backend=self.backend, **options)
        self.broker.finish(timeout_s=START_S)
        return self.broker

    def supplier(self, *patterns: str, wait: bool = True, **options: Any) -> Party:
        """One that the broker knows, or, without ``wait``, one that was started."""
        party = self.begin_supplier(*patterns, **options)
        party.finish(timeout_s=START_S)
        if wait:
            party.ask("registered")
        return party

    def client(self, **options: Any) -> Party:
        party = self.begin_client(**options)
        party.finish(timeout_s=START_S)
        return party

    def begin_supplier(self, *patterns: str, **options: Any) -> Party:
        """One that has not said yet whether it was started; ``finish`` waits for that."""
        known = {"backend": self.backend, "patterns": patterns or (".*",), "file_root": self.folder}
        return self._add("supplier", **known | options)

    def begin_client(self, **options: Any) -> Party:
        """Likewise."""
        options = {"frontend": self.frontend, "medium": self.medium} | options
        host = options.get("host", self._here)
        if options["medium"] == "file":
            options = {"medium_options": {"root": self.folder}} | options
        elif options["medium"] == "tcp" and host is not None:
            options = {"medium_options": {"host": host.address}} | options
        return self._add("client", **options)

    def proxy(self, endpoint: str, host: Host | None = None) -> Proxy:
        """A line to that endpoint which can be cut, and begins on a machine if one is given."""
        if host is None:
            return self._stack.enter_context(Proxy(endpoint))
        with host.entered():
            return self._stack.enter_context(Proxy(endpoint, host.address))

    def ports(self, count: int) -> list[int]:
        """Ports that are this market's until it ends: a broker comes back to its own."""
        ports = Ports(count)
        self._stack.callback(ports.close)
        return ports.numbers

    def file_of(self, client: Party) -> Path:
        """The file that the client's products are in, if its medium has one."""
        _, _, name = client.ask("medium").partition(":")
        return Path("/dev/shm" if self.medium == "shm" else self.folder, name)

    def sweep(self) -> None:
        """What another client does on its way, when it makes its own medium."""
        shm.sweep()
        filesystem.sweep(self.folder)

    def kill(self, party: Party) -> None:
        """SIGKILL. A client's file then stays until another client sweeps it."""
        party.kill()
        self._killed.add(party.name)

    def bury(self, party: Party) -> None:
        """Kill it, and keep nothing of it, so that thousands may be started.

        :raises AssertionError: it had met an error.
        """
        self.kill(party)
        said = party.said()
        party.close()
        self.parties.remove(party)
        assert not _of_its_own(said), f"{party.name} {party.pid} had met an error\n{said}"

    def _add(self, kind: str, host: Host | None = None, **options: Any) -> Party:
        host = host or self._here
        if host is not None:
            options["network"] = host.network
        party = self._nursery.start(kind, **options)
        self.parties.append(party)
        return party

    # --- what the broker says -----------------------------------------------------------

    def stats(self) -> dict[str, Any]:
        """As a client sees them that comes and goes."""
        with ExitStack() as stack:
            if self._here is not None:
                stack.enter_context(self._here.entered())
            return raw.stats(self.frontend)

    def until(
        self, holds: Callable[[dict[str, Any]], object], limit_s: float = LIMIT_S
    ) -> dict[str, Any]:
        """The first STATS for which something holds."""
        return until(self.stats, holds, limit_s)

    def session_of(self, name: str) -> str | None:
        """The beginning of the session of a supplier that the broker knows, or None."""
        suppliers = self.stats()["suppliers"]["list"]
        return next((one["session"] for one in suppliers if one["name"] == name), None)

    # --- the end ------------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._stack:
            try:
                if fault is None:
                    self._end_in_order()
            except BaseException as late:
                fault = late
                raise
            finally:
                for party in self.parties:
                    said = party.said()
                    if fault is not None and said:
                        fault.add_note(f"--- {party.name} {party.pid} said:\n{said}")
                    party.kill()
                    party.close()
                self.sweep()

    def _end_in_order(self) -> None:
        ending = [party for party in self.parties if party.alive]
        for party in ending:
            party.resume()
            party.hang_up()
        for party in ending:
            code = party.ended()
            assert code == 0, f"{party.name} {party.pid} ended with {code}"
        for party in self.parties:
            assert not _of_its_own(party.said()), f"{party.name} {party.pid} met an error"
        assert self._nursery.idle, "a process is left"
        if not self._killed:
            assert not os.listdir(self.folder), "a file is left"  # noqa: PTH208  not walked


def _of_its_own(said: str) -> list[str]:
    """Tracebacks, less those of what it was given to call: these stand below an order's failure."""
    lines = ["", *said.splitlines()]
    return [
        line
        for before, line in itertools.pairwise(lines)
        if line.startswith("Traceback") and not re.match(r"order .* failed: ", before)
    ]


def names(prefix: str, count: int) -> list[str]:
    """Product ids that differ from those of another prefix."""
    return [f"{prefix}/{number}" for number in range(count)]


def served_by(*clients: Party) -> list[Made]:
    """Every product that these clients served so far."""
    return [Made(*made) for client in clients for made in client.ask("served")]


def acquainted(client: Party, *suppliers: str) -> list[str]:
    """Has each of these, which alone makes what its name begins, serve the client: it has attached
    to its medium then. Returns what was ordered."""
    ordered = [f"{supplier}:{client.ask('medium')}" for supplier in suppliers]
    client.ask("order", products=ordered)
    client.ask("take", products=ordered)
    return ordered


def held_by(*parties: Party) -> list[dict[str, int]]:
    """What each holds of descriptors, threads and segments."""
    return [party.ask("resources") for party in parties]


def until_held(before: list[dict[str, int]], *parties: Party) -> None:
    """Wait until each holds no more than it held before."""

    def more() -> list[str]:
        return [
            f"{party.name} {party.pid} holds {now}, and held {then}"
            for party, now, then in zip(parties, held_by(*parties), before, strict=True)
            if any(now[what] > then[what] for what in then)
        ]

    until(more, lambda left: not left)


def until_progress(count: int, *clients: Party) -> None:
    """Wait until each client has served so many products."""
    for client in clients:
        until_more(partial(client.ask, "progress"), count - 1)


def until_more(count: Callable[[], int], than: int) -> int:
    """Wait until a count is above another."""
    return until(count, lambda now: now > than, 60.0)


__all__ = [
    "Host",
    "Hosts",
    "Made",
    "Market",
    "Nursery",
    "Party",
    "ProcessFailed",
    "Proxy",
    "acquainted",
    "held_by",
    "names",
    "served_by",
    "until",
    "until_held",
    "until_more",
    "until_progress",
]
