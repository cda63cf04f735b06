"""Peers that are only a socket: they say exactly what a test wants said, right or wrong."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Self

import msgspec
import zmq

from tests.peer.waiting import until

LIMIT_S = 20.0
"""How long an expected message may take on a busy machine."""


class Raw:
    """A DEALER with a context of its own.

    :ivar passed: messages that came while another was waited for, oldest first.
    """

    def __init__(self, endpoint: str) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.socket = self._context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.connect(endpoint)
        self.passed: list[tuple[bytes, Any]] = []
        self._seq = 0

    def send(self, command: bytes, fields: object = None) -> None:
        """``fields`` is encoded, bytes go as they are, None is an empty map."""
        if not isinstance(fields, bytes):
            fields = msgspec.msgpack.encode({} if fields is None else fields)
        self.socket.send_multipart([command, fields])

    def frames(self, *frames: bytes) -> None:
        self.socket.send_multipart(list(frames))

    def receive(self, timeout_s: float = LIMIT_S) -> tuple[bytes, Any]:
        """The next message: its command, which is empty for a version-1 answer, and its fields.

        :raises TimeoutError: nothing came.
        """
        if not self.socket.poll(int(timeout_s * 1000)):
            raise TimeoutError(f"nothing came within {timeout_s:g} s; before: {self.passed}")
        *command, fields = self.socket.recv_multipart()
        return (command[0] if command else b""), msgspec.msgpack.decode(fields)

    def wait_for(self, command: bytes, holds: Callable[[Any], bool] = lambda fields: True) -> Any:
        """The fields of the first message of this command for which ``holds``."""
        for at, (seen, fields) in enumerate(self.passed):
            if seen == command and holds(fields):
                del self.passed[at]
                return fields
        while True:
            seen, fields = self.receive()
            if seen == command and holds(fields):
                return fields
            self.passed.append((seen, fields))

    def close(self) -> None:
        self.socket.close()
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


class RawV1(Raw):
    """Speaks version 1: an answer has no command, and belongs to the oldest request."""

    def ask(self, command: bytes, fields: object = None) -> dict[str, Any]:
        self.send(command, fields)
        answer: dict[str, Any] = self.wait_for(b"")
        return answer

    def order(self, order_id: str, product_id: str, **fields: object) -> dict[str, Any]:
        place = {"address": "nowhere", "offset": 0}
        return self.ask(b"ORDER", {"order_id": order_id, "product_id": product_id} | place | fields)


class RawV2(Raw):
    """Speaks version 2. It beats only when told to."""

    def __init__(self, endpoint: str, *, session: bytes | None = None) -> None:
        super().__init__(endpoint)
        self.session = session or os.urandom(16)

    def ask(self, command: bytes, **fields: object) -> dict[str, Any]:
        self._seq += 1
        seq = self._seq
        self.send(command, {"seq": seq} | fields)
        answer: dict[str, Any] = self.wait_for(b"REPLY", lambda said: said.get("seq", 0) == seq)
        return answer

    def hello(self, **fields: object) -> dict[str, Any]:
        return self.ask(b"HELLO", **({"protocol": 2, "session": self.session} | fields))

    def settled(self) -> list[tuple[bytes, Any]]:
        """What the broker said before it answers now, and was not waited for, less its beats.

        Messages keep their order on a connection, so that what is not here was not sent. Asked
        twice, since work gathers while the broker reads, and leaves after an answer that it gives
        meanwhile.
        """
        for _ in range(2):
            answer = self.ask(b"NO SUCH COMMAND")
            assert answer["code"] == "unknown_command", answer
        return [said for said in self.passed if said[0] != b"HEARTBEAT"]


class RawClient(RawV2):
    """A version-2 client without a medium."""

    def order(self, order_id: str, product_id: str, **fields: object) -> None:
        self.orders([{"order_id": order_id, "product_id": product_id} | fields])

    def orders(self, orders: Iterable[dict[str, object]]) -> None:
        place = {"address": "nowhere", "offset": 0, "nbytes": 64}
        self._seq += 1
        self.send(b"ORDERS", {"orders": [place | order for order in orders], "seq": self._seq})

    def fulfilled(self, order_id: str) -> dict[str, Any]:
        """What its FULFILLED says of ``order_id``."""
        message = self.wait_for(
            b"FULFILLED", lambda said: order_id in [each["order_id"] for each in said["orders"]]
        )
        found: dict[str, Any] = next(
            each for each in message["orders"] if each["order_id"] == order_id
        )
        return found


class RawSupplier(RawV2):
    """A version-2 supplier that writes nothing."""

    def __init__(self, endpoint: str, *, session: bytes | None = None) -> None:
        super().__init__(endpoint, session=session)
        self._given: deque[dict[str, Any]] = deque()

    def ready(self, *patterns: str, **fields: object) -> Self:
        """HELLO and READY."""
        answer = self.hello(product_ids=list(patterns), **fields)
        assert answer.get("code", "ok") == "ok", answer
        self.send(b"READY")
        return self

    def work(self) -> dict[str, Any]:
        """The next order that it is given."""
        if not self._given:
            self._given.extend(self.wait_for(b"WORK")["orders"])
        return self._given.popleft()

    def done(self, work: dict[str, Any], **fields: object) -> None:
        result = {"order_id": work["order_id"], "lease": work["lease"]} | fields
        self.send(b"DONE", {"results": [result]})


def stats(frontend: str) -> dict[str, Any]:
    """STATS, as a version-2 client sees them that comes and goes."""
    with RawClient(frontend) as watcher:
        while True:
            watcher.hello()
            answer = watcher.ask(b"STATS")
            if answer.get("code") != "hello_first":  # it stood still, and was given up meanwhile
                break
        figures: dict[str, Any] = answer["stats"]
        watcher.send(b"GOODBYE")
        return figures


def canary(frontend: str, backend: str) -> None:
    """Return when a supplier that came now and says nothing more has been given up for silence."""

    def known() -> list[str]:
        return [one["session"] for one in stats(frontend)["suppliers"]["list"]]

    with RawSupplier(backend) as silent:
        silent.ready("canary")
        session = silent.session.hex()[:8]
        until(known, lambda sessions: session not in sessions)
