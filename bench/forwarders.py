"""Two ceilings: brokers without any logic, in bare pyzmq, and their clients and suppliers.

The *gated* forwarder gives a supplier its next message only after it answered the last one, as a
supplier that holds one order at a time demands. The *open* one forwards whatever comes, to its
suppliers in turn. Both carry 64 bytes there and back, and neither reads them.

``python -m bench.forwarders`` is one driven process, which may become any of the three.
"""

from __future__ import annotations

import threading
import time
from collections import deque

import zmq

from tests.peer.lines import commands, serve

MESSAGE = b"m" * 64
READY = b""

LIMIT_MS = 10_000
"""Longer than any answer takes; a forwarder that lost a message must not hang the run."""


def bound(socket: zmq.Socket[bytes]) -> str:
    """Where ``socket`` was bound, with the port that it got."""
    endpoint = socket.getsockopt(zmq.LAST_ENDPOINT)
    assert isinstance(endpoint, bytes)
    return endpoint.decode()


class Driven:
    """The commands."""

    def __init__(self) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()

    # --- the forwarder ------------------------------------------------------------------

    def forward(self, gated: bool) -> tuple[str, str]:
        """Become a forwarder; returns where clients and where suppliers connect."""
        frontend, backend = self._context.socket(zmq.ROUTER), self._context.socket(zmq.ROUTER)
        for router in (frontend, backend):
            router.bind("tcp://127.0.0.1:*")
        loop = _gated if gated else _open
        threading.Thread(target=loop, args=(frontend, backend), daemon=True).start()
        return bound(frontend), bound(backend)

    # --- a supplier ---------------------------------------------------------------------

    def supply(self, backend: str) -> None:
        """Become a supplier: send back what comes."""
        socket = self._context.socket(zmq.DEALER)
        socket.connect(backend)
        socket.send(READY)

        def echo() -> None:
            while True:
                socket.send_multipart(socket.recv_multipart())

        threading.Thread(target=echo, daemon=True).start()

    # --- a client -----------------------------------------------------------------------

    def connect(self, frontend: str) -> None:
        """Become a client."""
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.rcvtimeo = LIMIT_MS
        self._socket.connect(frontend)

    def pump(self, seconds: float, window: int = 64) -> float:
        """Messages a second, there and back, with ``window`` of them under way."""
        socket, count = self._socket, 0
        for _ in range(window):
            socket.send(MESSAGE)
        started = time.monotonic()
        until = started + seconds
        while time.monotonic() < until:
            socket.recv()
            socket.send(MESSAGE)
            count += 1
        spent = time.monotonic() - started
        for _ in range(window):
            socket.recv()
        return count / spent

    def one_at_a_time(self, count: int) -> list[float]:
        """Seconds there and back, for each of ``count`` messages in turn."""
        socket, times = self._socket, []
        for _ in range(count):
            started = time.perf_counter()
            socket.send(MESSAGE)
            socket.recv()
            times.append(time.perf_counter() - started)
        return times


def _gated(frontend: zmq.Socket[bytes], backend: zmq.Socket[bytes]) -> None:
    poller = zmq.Poller()
    poller.register(frontend, zmq.POLLIN)
    poller.register(backend, zmq.POLLIN)
    ready: deque[bytes] = deque()
    waiting: deque[list[bytes]] = deque()
    while True:
        events = dict(poller.poll())
        if backend in events:
            try:
                while True:
                    supplier, *message = backend.recv_multipart(zmq.NOBLOCK)
                    ready.append(supplier)
                    if message != [READY]:
                        frontend.send_multipart(message)
            except zmq.Again:
                pass
        if frontend in events:
            try:
                while True:
                    waiting.append(frontend.recv_multipart(zmq.NOBLOCK))
            except zmq.Again:
                pass
        while waiting and ready:
            backend.send_multipart([ready.popleft(), *waiting.popleft()])


def _open(frontend: zmq.Socket[bytes], backend: zmq.Socket[bytes]) -> None:
    poller = zmq.Poller()
    poller.register(frontend, zmq.POLLIN)
    poller.register(backend, zmq.POLLIN)
    suppliers: deque[bytes] = deque()
    while True:
        events = dict(poller.poll())
        if backend in events:
            try:
                while True:
                    supplier, *message = backend.recv_multipart(zmq.NOBLOCK)
                    if message == [READY]:
                        suppliers.append(supplier)
                    else:
                        frontend.send_multipart(message)
            except zmq.Again:
                pass
        if frontend in events and suppliers:
            try:
                while True:
                    message = frontend.recv_multipart(zmq.NOBLOCK)
                    backend.send_multipart([suppliers[0], *message])
                    suppliers.rotate(-1)
            except zmq.Again:
                pass


if __name__ == "__main__":
    serve(commands(Driven()))
