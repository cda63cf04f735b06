"""Ports that nobody gets by chance, and that no two tests have at once, in whatever process.

A server that comes back to its port after a while finds it taken where the kernel has given it to
somebody's connection meanwhile; so these are of those that it gives to nobody who does not ask. And
a port that is free when one looks may be another test's by the time that it is used: so each is
reserved under a name that the kernel keeps, for this machine and as long as the process lives.
"""

from __future__ import annotations

import random
import socket

FIRST_PORT, LAST_PORT = 11_000, 19_999
"""Below those that Linux gives to connections."""


class NoPort(RuntimeError):
    """There are not so many free ports."""


class Ports:
    """So many ports, which are this process's until :meth:`close`.

    :ivar numbers: the ports.
    :raises NoPort: there are not so many.
    """

    def __init__(self, count: int) -> None:
        self.numbers: list[int] = []
        self._names: list[socket.socket] = []
        for port in random.sample(range(FIRST_PORT, LAST_PORT + 1), 1000):
            name = _reserved(port)
            if name is not None:
                self.numbers.append(port)
                self._names.append(name)
            if len(self.numbers) == count:
                return
        self.close()
        raise NoPort(f"there are no {count} free ports from {FIRST_PORT} to {LAST_PORT}")

    @property
    def endpoints(self) -> list[str]:
        """For brokers that come back to them."""
        return [f"tcp://127.0.0.1:{number}" for number in self.numbers]

    def close(self) -> None:
        """Let others have them."""
        for name in self._names:
            name.close()


def _reserved(port: int) -> socket.socket | None:
    """What keeps it reserved, or None where somebody has it."""
    name = socket.socket(socket.AF_UNIX)
    try:
        name.bind(f"\0entrepot-test-port-{port}")
        with socket.create_server(("127.0.0.1", port)):
            return name
    except OSError:
        name.close()
        return None
