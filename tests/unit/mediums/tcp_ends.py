"""The two ends of a TCP medium played badly: suppliers and owners made of bare sockets."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from entrepot.mediums import TCPMedium
from entrepot.mediums.tcp_wire import (
    ANSWER,
    CHECK,
    GRANTED,
    GREETING,
    MAGIC,
    OFFER,
    OK,
    READ,
    REQUEST,
    REST,
    ROW,
    WRITE,
)
from entrepot.settings import SupplierSettings

LIMIT_S = 20.0
"""How long anything that must happen may take."""


def until(condition: Callable[[], Any], limit_s: float = LIMIT_S) -> None:
    """Wait until ``condition()`` is true."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come to be in time"
        time.sleep(0.001)


def place(medium: TCPMedium) -> tuple[str, int]:
    """Where a medium listens."""
    host, _, port = medium.address.removeprefix("tcp:").rpartition(":")
    return host.strip("[]"), int(port)


def token_of(address: str) -> bytes:
    return bytes.fromhex(address[-32:])


def lines_of(medium: TCPMedium) -> int:
    """How many suppliers are connected to it."""
    return len(medium._owner_end._lines)


def row_of(
    writes: Sequence[tuple[str, int, bytes]],
    *,
    lease: int = 1,
    count: int | None = None,
    nbytes: int | None = None,
    op: int = WRITE,
) -> bytes:
    """A ROW as it is sent; ``count``, ``nbytes`` and ``op`` for one that is none."""
    data = b"".join(each for _, _, each in writes)
    heads = [
        REQUEST.pack(MAGIC, op, token_of(address), lease, offset, REST, len(each))
        for address, offset, each in writes
    ]
    count = len(writes) if count is None else count
    nbytes = len(data) if nbytes is None else nbytes
    return REQUEST.pack(MAGIC, ROW, bytes(16), 0, 0, count, nbytes) + b"".join(heads) + data


def tcp(slot_nbytes: int = 64, slots: int = 2, **options: Any) -> TCPMedium:
    return TCPMedium.create(slot_nbytes, slots, **options)


class Clock:
    """The time of a medium's owner, which goes on when the test says so: until then nobody who
    connects or writes is too slow, however busy the machine is.
    """

    def __init__(self, medium: TCPMedium) -> None:
        self._stands_at = time.monotonic()
        self._goes_since: float | None = None
        medium._owner_end.clock = self

    def go(self) -> None:
        """As any clock, from now on."""
        self._goes_since = time.monotonic()

    def __call__(self) -> float:
        since = self._goes_since
        return self._stands_at + (0.0 if since is None else time.monotonic() - since)


def slot(medium: TCPMedium, number: int = 0) -> str:
    """The address of an order for that slot."""
    return medium.grant(medium.offset(number), medium.slot_nbytes)


def short(**settings: Any) -> SupplierSettings:
    """A supplier that waits for half a second."""
    return SupplierSettings(**{"tcp_timeout_s": 0.5, **settings})


def run(script: str, *, end_input: bool = True) -> str:
    """What a Python of its own prints; it must end well and be silent on stderr."""
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-c", script],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        said = "" if end_input else process.stdout.readline()
        out, error = process.communicate(timeout=60)
    assert (process.returncode, error) == (0, "")
    return said + out


class RawSupplier:
    """A connection on which anything can be said."""

    def __init__(self, medium: TCPMedium) -> None:
        self.sock = socket.create_connection(place(medium), LIMIT_S)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def greeted(self) -> RawSupplier:
        assert self.receive(len(GREETING)) == GREETING
        return self

    def line(self, address: str) -> RawSupplier:
        """Say what a line says first."""
        self.greeted()
        self.ask(CHECK, address)
        status, body = self.answer()
        assert (status, len(body)) == (OK, GRANTED.size)
        return self

    def ask(
        self,
        op: int,
        address: str,
        *,
        lease: int = 1,
        offset: int = 0,
        limit: int = REST,
        nbytes: int = 0,
    ) -> None:
        token = token_of(address)
        self.sock.sendall(REQUEST.pack(MAGIC, op, token, lease, offset, limit, nbytes))

    def offer(self, address: str, nbytes: int, *, lease: int = 1, offset: int = 0) -> None:
        """Be told to go on with ``nbytes`` bytes."""
        self.ask(OFFER, address, lease=lease, offset=offset, nbytes=nbytes)
        status, body = self.answer()
        assert (status, body) == (1, b"")

    def write(self, address: str, data: bytes, *, lease: int = 1, offset: int = 0) -> None:
        self.ask(WRITE, address, lease=lease, offset=offset, nbytes=len(data))
        self.sock.sendall(data)

    def row(self, writes: Sequence[tuple[str, int, bytes]], *, lease: int = 1) -> None:
        """Addresses, offsets and bytes, in one."""
        self.sock.sendall(row_of(writes, lease=lease))

    def read(self, address: str, offset: int, nbytes: int) -> None:
        self.ask(READ, address, offset=offset, nbytes=nbytes)

    def answer(self) -> tuple[int, bytes]:
        """Status, and what follows."""
        status, nbytes = ANSWER.unpack(self.receive(ANSWER.size))
        return status, self.receive(nbytes)

    def receive(self, nbytes: int) -> bytes:
        said = b""
        while len(said) < nbytes:
            more = self.sock.recv(nbytes - len(said))
            assert more, f"the owner hung up after {said!r}"
            said += more
        return said

    def push(self, data: bytes) -> None:
        """Send, whether or not anybody takes it."""
        with suppress(OSError):
            self.sock.sendall(data)

    def wait_hung_up(self) -> bytes:
        """What the owner still said before it hung up."""
        said = b""
        while True:
            try:
                more = self.sock.recv(65536)
            except ConnectionResetError:
                return said
            if not more:
                return said
            said += more

    def close(self) -> None:
        self.sock.close()

    def __enter__(self) -> RawSupplier:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def raw_owner(serve: Callable[[socket.socket], None]) -> Iterator[str]:
    """The address of an order whose owner does ``serve`` with each connection."""
    listener = socket.create_server(("127.0.0.1", 0))
    open_now: list[socket.socket] = []

    def accept() -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            open_now.append(sock)
            sock.settimeout(LIMIT_S)
            with suppress(OSError):
                serve(sock)

    accepting = threading.Thread(target=accept)
    accepting.start()
    try:
        yield f"tcp:127.0.0.1:{listener.getsockname()[1]}/{'0' * 32}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        for sock in open_now:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        accepting.join()
        listener.close()
        for sock in open_now:
            sock.close()


def say_hello(sock: socket.socket, nbytes: int = 64) -> None:
    """Greet, and answer CHECK as the owner of a slot of ``nbytes`` at 0."""
    sock.sendall(GREETING)
    sock.recv(REQUEST.size, socket.MSG_WAITALL)
    sock.sendall(ANSWER.pack(OK, GRANTED.size) + GRANTED.pack(0, nbytes))


class PlayedOwner:
    """An owner that takes all that comes, and answers it when the test says so.

    :ivar heard: each write that came: the number of its order, its lease, and its bytes.
    :ivar rows: of how many writes each request was.
    :ivar connections: how many were made.
    """

    def __init__(self) -> None:
        self.heard: list[tuple[int, int, bytes]] = []
        self.rows: list[int] = []
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._socks: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def address(self, number: int) -> str:
        """That of order ``number``."""
        return f"tcp:127.0.0.1:{self._listener.getsockname()[1]}/{number:032x}"

    def say(self, answers: bytes) -> None:
        """On the newest connection."""
        self._socks[-1].sendall(answers)

    def cut(self) -> None:
        """Close the newest connection."""
        self._socks[-1].shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(sock,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, sock: socket.socket) -> None:
        sock.sendall(GREETING)
        with sock, suppress(OSError):
            _read(sock, REQUEST.size)
            self._socks.append(sock)
            self.connections += 1
            sock.sendall(ANSWER.pack(OK, GRANTED.size) + GRANTED.pack(0, 1 << 40))
            while True:
                heads = [_read(sock, REQUEST.size)]
                _, op, _, _, _, count, _ = REQUEST.unpack(heads[0])
                if op == ROW:
                    heads = [_read(sock, REQUEST.size) for _ in range(count)]
                self.rows.append(len(heads))
                for head in heads:
                    _, _, token, lease, _, _, nbytes = REQUEST.unpack(head)
                    data = _read(sock, nbytes)
                    self.heard.append((int.from_bytes(token, "big"), lease, data))

    def __enter__(self) -> PlayedOwner:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for sock in self._socks:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()


def _read(sock: socket.socket, nbytes: int) -> bytes:
    data = sock.recv(nbytes, socket.MSG_WAITALL) if nbytes else b""
    if len(data) < nbytes:
        raise ConnectionResetError
    return data
