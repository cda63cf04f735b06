"""The way between the supplier and the rest in the second half: two networks, or loopback."""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING

from entrepot.demo import namespaces
from entrepot.demo.processes import Part, Parts
from entrepot.demo.relay import Relay
from entrepot.errors import DemoFailed, MediumError
from entrepot.mediums.tcp import TCPMedium

if TYPE_CHECKING:
    from typing import Self

NEAR, FAR = "10.77.0.1", "10.77.0.2"
"""Addresses in networks that nobody else is in."""

NEAR_DEVICE, FAR_DEVICE = "near", "far"

PORTS_TRIED = 5

TIMEOUT_S = 1.0
"""Seconds after which both ends of the medium give a transfer up: the demonstration is short."""


def free_port() -> int:
    """A port of 127.0.0.1 that nobody has now, and somebody may have a moment later."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Way(ABC):
    """How this process, and the broker, are reached from where the supplier is.

    :ivar host: where to listen for it.
    :ivar what: what it runs over, in words.
    """

    host: str
    what: str

    @abstractmethod
    def to(self, port: int) -> str:
        """``host:port`` for the supplier, of what listens here at ``port`` of :attr:`host`."""

    @abstractmethod
    def medium(self, slot_nbytes: int, slots: int) -> TCPMedium:
        """A medium that the supplier reaches."""

    @abstractmethod
    def start(
        self, parts: Parts, title: str, *arguments: str, environment: Mapping[str, str]
    ) -> Part:
        """Start ``entrepot ARGUMENTS`` on the far side."""

    @abstractmethod
    def cut(self) -> None:
        """From now on nothing arrives, on either side, and nobody is told."""

    @abstractmethod
    def mend(self) -> None:
        """It is as before."""

    @abstractmethod
    def close(self) -> None:
        """Let go of all; any number of times."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class TwoNetworks(Way):
    """This process in a network namespace of its own, the supplier in another, a cable between.

    Neither has a name, a file, or anything else that could be left behind: they end with their
    processes.
    """

    host = NEAR
    what = "a cable between two network namespaces"

    def __init__(self) -> None:
        namespaces.ip("link", "set", "lo", "up")
        cable = ("type", "veth", "peer", "name", FAR_DEVICE)
        namespaces.ip("link", "add", NEAR_DEVICE, *cable)
        namespaces.ip("addr", "add", f"{NEAR}/24", "dev", NEAR_DEVICE)
        namespaces.ip("link", "set", NEAR_DEVICE, "up")

    def to(self, port: int) -> str:
        return f"{NEAR}:{port}"

    def medium(self, slot_nbytes: int, slots: int) -> TCPMedium:
        return TCPMedium.create(slot_nbytes, slots, host=NEAR, timeout_s=TIMEOUT_S)

    def start(
        self, parts: Parts, title: str, *arguments: str, environment: Mapping[str, str]
    ) -> Part:
        part = parts.start(
            title,
            *(FAR_DEVICE, f"{FAR}/24", *arguments),
            environment=environment,
            module="entrepot.demo.apart",
        )
        part.wait_for("apart")
        namespaces.ip("link", "set", FAR_DEVICE, "netns", str(part.pid))
        return part

    def cut(self) -> None:
        namespaces.ip("link", "set", NEAR_DEVICE, "down")

    def mend(self) -> None:
        namespaces.ip("link", "set", NEAR_DEVICE, "up")

    def close(self) -> None:
        """There is nothing: the kernel takes the namespace back with this process."""


class Loopback(Way):
    """All on this machine, through relays that can be cut.

    :param why: why it is not two networks.
    :param free_port: a port that nobody has now.
    """

    host = "127.0.0.1"

    def __init__(self, why: str, free_port: Callable[[], int] = free_port) -> None:
        self.what = f"loopback: {why}"
        self._free_port = free_port
        self._relays: list[Relay] = []

    def to(self, port: int) -> str:
        relay = Relay(port)
        self._relays.append(relay)
        return f"{self.host}:{relay.port}"

    def medium(self, slot_nbytes: int, slots: int) -> TCPMedium:
        # Whoever makes a medium names the relay's port, and the relay names the medium's.
        for _ in range(PORTS_TRIED):
            port = self._free_port()
            advertised = self.to(port)
            try:
                return TCPMedium.create(
                    slot_nbytes, slots, port=port, advertise=advertised, timeout_s=TIMEOUT_S
                )
            except MediumError as fault:  # somebody else has it by now
                self._relays.pop().close()
                last = fault
        raise last

    def start(
        self, parts: Parts, title: str, *arguments: str, environment: Mapping[str, str]
    ) -> Part:
        return parts.start(title, *arguments, environment=environment)

    def cut(self) -> None:
        for relay in self._relays:
            relay.cut()

    def mend(self) -> None:
        for relay in self._relays:
            relay.mend()

    def close(self) -> None:
        for relay in self._relays:
            relay.close()


def find() -> Way:
    """Two networks where that is possible, else loopback.

    Before any thread is started, for what this process then has of networks is for its threads too.
    """
    try:
        namespaces.check()
        with open("/proc/self/ns/net", "rb") as before:  # noqa: PTH123  # a namespace, not a file
            namespaces.leave()
            try:
                return TwoNetworks()
            except DemoFailed as fault:
                namespaces.enter(before.fileno())
                return Loopback(str(fault))
    except namespaces.NotHere as why:
        return Loopback(str(why))
