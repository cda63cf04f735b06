"""A broker that says what a test wants said, also what a real one never would."""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, NamedTuple, Self

import msgspec
import zmq

from entrepot.market import protocol

LIMIT_S = 20.0
"""How long an expected message may take on a busy machine."""

LIMITS = protocol.Limits(4 << 20, 4096, 256, 65_536, 1024)


class Heard(NamedTuple):
    """A message: who sent it, and what it said."""

    peer: bytes
    command: bytes
    fields: dict[str, Any]


class FakeBroker:
    """One ROUTER, driven by the test's own thread; it does nothing by itself, not even beat.

    :ivar peer: the connection that said HELLO last; the one that is spoken to.
    :ivar beats: the HEARTBEATs that were passed over.
    """

    def __init__(self, endpoint: str = "tcp://127.0.0.1:*") -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.linger = 0
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._socket.bind(endpoint)
        self.endpoint = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self.instance = os.urandom(8)
        self.peer = b""
        self.push = 0
        self.beats: list[dict[str, Any]] = []

    def receive(self, timeout_s: float = LIMIT_S, *, beats: bool = False) -> Heard:
        """The next message; HEARTBEATs only with ``beats``.

        :raises TimeoutError: there was none.
        """
        while True:
            if not self._socket.poll(int(timeout_s * 1000)):
                raise TimeoutError(f"nothing came in {timeout_s:g} s")
            peer, command, fields = self._socket.recv_multipart()
            heard = Heard(peer, command, msgspec.msgpack.decode(fields))
            if command != protocol.HEARTBEAT or beats:
                return heard
            self.beats.append(heard.fields)

    def expect(self, command: bytes, timeout_s: float = LIMIT_S) -> dict[str, Any]:
        """The fields of the next message, which is this command."""
        heard = self.receive(timeout_s)
        assert heard.command == command, heard
        return heard.fields

    def pass_over(self, command: bytes) -> dict[str, Any]:
        """The fields of the next message of this command; others are dropped."""
        while True:
            heard = self.receive()
            if heard.command == command:
                return heard.fields

    def greet(
        self,
        *,
        resumed: bool = False,
        missing: tuple[str, ...] = (),
        beat_s: float = 30.0,
        version: int = 2,
    ) -> dict[str, Any]:
        """Wait for HELLO, answer it, and return its fields."""
        heard = self.receive()
        assert heard.command == protocol.HELLO, heard
        self.peer = heard.peer
        if not resumed:
            self.push = 0
        hello = protocol.HelloReply(
            protocol=version,
            instance=self.instance,
            resumed=resumed,
            missing=list(missing),
            beat_s=beat_s,
            suspect_s=5.0,
            dead_s=30.0,
            limits=LIMITS,
        )
        self.say(protocol.REPLY, protocol.Reply(seq=heard.fields["seq"], hello=hello))
        return heard.fields

    def refuse(self, code: str, error: str = "no", **fields: Any) -> None:
        """A REPLY that says no."""
        self.say(protocol.REPLY, protocol.Reply(code=code, error=error, **fields))

    def say(self, command: bytes, fields: Any = None) -> None:
        self.frames(command, msgspec.msgpack.encode({} if fields is None else fields))

    def frames(self, *frames: bytes) -> None:
        self._socket.send_multipart([self.peer, *frames])

    def next_push(self) -> int:
        self.push += 1
        return self.push

    def fulfil(
        self, order_id: str, *, lease: int = 1, nbytes: int = 0, checksum: int = 0, push: int = 0
    ) -> None:
        delivery = protocol.Delivery(order_id, lease, nbytes, checksum)
        self.say(protocol.FULFILLED, protocol.Fulfilled(push or self.next_push(), [delivery]))

    def close(self) -> None:
        self._socket.close(0)
        self._context.term()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Apart:
    """Runs calls that wait, in threads, while the test's own thread plays the broker."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(16)

    def __call__(self, call: Any, *args: Any, **options: Any) -> Future[Any]:
        return self._pool.submit(call, *args, **options)

    def close(self) -> None:
        self._pool.shutdown()


def fork_under(lock: threading.Lock) -> int:
    """Fork as if another thread had ``lock`` just then: that thread is not in the child."""
    lock.acquire()
    child = os.fork()
    if child != 0:
        lock.release()
    return child
