"""Two machines, as network namespaces, and the way between them: cut, slowed, or one-way.

A packet that is dropped here is dropped as on a dead cable: nobody is told, and no socket closes.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.integration.needs import lacking, namespace
from tests.integration.party_base import enter

NEAR, FAR = "10.77.0.1", "10.77.0.2"
WAY = "way"
"""What each machine calls its end."""

NOBODY = "02:00:00:00:00:99"
"""Whom a machine takes the other for when what it sends is to be lost."""


class Host:
    """A network of its own, for as long as the process lives that keeps it.

    :ivar address: where the other finds it.
    :ivar network: its file.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self._keeper = subprocess.Popen(
            [*namespace("net"), "sh", "-c", "echo there; exec cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._keeper.stdout is not None
        assert self._keeper.stdout.readline() == b"there\n"
        self.network = f"/proc/{self._keeper.pid}/ns/net"

    def run(self, line: str) -> None:
        """Run a command there."""
        command = ["nsenter", f"--net={self.network}", *line.split()]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{line}: {done.stderr.strip()}")

    @contextmanager
    def entered(self) -> Iterator[None]:
        """This thread, and each that it starts, is on that machine."""
        with Path("/proc/thread-self/ns/net").open("rb") as home:
            enter(self.network)
            try:
                yield
            finally:
                enter(f"/proc/self/fd/{home.fileno()}")

    def close(self) -> None:
        with self._keeper:  # closes the pipes, upon which it ends
            pass


class Hosts:
    """A near and a far machine. What is sent to oneself never takes the way between them."""

    def __init__(self) -> None:
        self._silent: list[Host] = []
        with ExitStack() as stack:
            self.near = self._made(stack, NEAR)
            self.far = self._made(stack, FAR)
            self.near.run(f"ip link add {WAY} type veth peer name yaw")
            far = self.far.network.split("/")[2]
            self.near.run(f"ip link set yaw netns {far} name {WAY}")
            for host in self.both:
                host.run("ip link set lo up")
                host.run(f"ip addr add {host.address}/24 dev {WAY}")
                host.run(f"ip link set {WAY} up")
            self._stack = stack.pop_all()

    def _made(self, stack: ExitStack, address: str) -> Host:
        host = Host(address)
        stack.callback(host.close)
        return host

    @property
    def both(self) -> tuple[Host, Host]:
        return self.near, self.far

    def _other(self, host: Host) -> Host:
        return self.far if host is self.near else self.near

    # --- the way ------------------------------------------------------------------------

    def cut(self) -> None:
        """From now on no packet arrives on either side."""
        self.silence(self.near)
        self.silence(self.far)

    def silence(self, host: Host) -> None:
        """From now on what this machine sends arrives nowhere; it still hears the other."""
        other = self._other(host).address
        host.run(f"ip neigh replace {other} lladdr {NOBODY} dev {WAY} nud permanent")
        self._silent.append(host)

    def mend(self) -> None:
        while self._silent:
            host = self._silent.pop()
            host.run(f"ip neigh del {self._other(host).address} dev {WAY}")

    def unplug(self) -> None:
        """The far machine knows that its link is down, and has no way to anybody."""
        self.far.run(f"ip link set {WAY} down")

    def plug(self) -> None:
        self.far.run(f"ip link set {WAY} up")

    def slow(self, rate: str) -> None:
        """Both directions make at most ``rate``, such as ``20mbit``, with a queue of a tenth of
        a second before packets are dropped."""
        for host in self.both:
            try:
                host.run(
                    f"tc qdisc replace dev {WAY} root tbf rate {rate} burst 64kb latency 100ms"
                )
            except (RuntimeError, FileNotFoundError) as error:
                lacking(f"no link can be slowed here: {error}")

    # --- the end ------------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()
