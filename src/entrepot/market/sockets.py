"""pyzmq on the hot path: the same calls, without what they do for callers who need more.

``Socket.send`` is a Python method that looks at five options before it calls the compiled one; here
the compiled one is called. Constants are plain integers, since pyzmq's are enums that are made anew
in every ``|`` and ``&``. Together that is 20 microseconds an order in the broker.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import zmq

from entrepot.arguments import shown
from entrepot.errors import ConfigurationError

NOBLOCK = int(zmq.NOBLOCK)
SNDMORE = int(zmq.SNDMORE)
POLLIN = int(zmq.POLLIN)
_EVENTS = int(zmq.EVENTS)

Send = Callable[[bytes, int], object]
Receive = Callable[[int, bool], Any]


def check_endpoint(endpoint: str) -> None:
    """ZeroMQ takes port 80000 for 14464, and lets nobody else into ``inproc://``.

    :raises ConfigurationError: no ``tcp://`` or ``ipc://``, or a port beyond 65,535.
    """
    if not endpoint.startswith(("tcp://", "ipc://")):
        raise ConfigurationError(
            f"{shown(endpoint)} is no endpoint: write tcp://ADDRESS:PORT or ipc://PATH"
        )
    port = endpoint.rpartition(":")[2]
    if endpoint.startswith("tcp://") and port.isdecimal() and int(port) > 65_535:
        raise ConfigurationError(f"{endpoint!r} has no port: ports end at 65535")


def sender(socket: zmq.Socket[bytes]) -> Send:
    """``send(frame, flags)`` of the socket."""
    return cast(Send, super(zmq.Socket, socket).send)


def receiver(socket: zmq.Socket[bytes]) -> Receive:
    """``receive(flags, False)`` of the socket: a Frame, with ``bytes`` and ``more``."""
    return cast(Receive, super(zmq.Socket, socket).recv)


def readable(socket: zmq.Socket[bytes]) -> Callable[[], int]:
    """A function that is not 0 when a message can be received without waiting."""
    get = super(zmq.Socket, socket).get

    def check() -> int:
        return cast(int, get(_EVENTS)) & POLLIN

    return check
