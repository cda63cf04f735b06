"""Version-2 clients and suppliers that are only sockets, to load a broker with many of them.

They move no data: a supplier answers WORK with DONE at once, and a client replaces each order
that is fulfilled by one for another product, so that the number that waits stays the same.

``python -m bench.loads`` is one driven process.
"""

from __future__ import annotations

import os
import threading
import time
from itertools import count
from typing import Any

import msgspec
import zmq

from bench.processes import cpu_s
from entrepot.market import protocol as p
from tests.peer.lines import commands, serve

ORDERS_IN_A_MESSAGE = 100
PRODUCTS = 30_000
"""Product ids that are ordered in turn; more than ever wait, so that those that do differ."""

OWN_EVERY = 10
"""One in this many orders is for a product of one supplier alone."""

LIMIT_MS = 30_000

read_fulfilled = p.reader(p.Fulfilled)
read_reply = p.reader(p.Reply)
read_work = p.reader(p.Work)
read_beat = p.reader(p.BrokerHeartbeat)


def _hello(socket: zmq.Socket[bytes], hello: msgspec.Struct) -> None:
    socket.send_multipart([p.HELLO, p.encode(hello)])
    command, fields = socket.recv_multipart()
    reply = read_reply(fields)
    assert command == p.REPLY, command
    assert reply.code == "ok", reply


class Driven:
    """The commands."""

    def __init__(self) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._ids = count()

    def _dealer(self, endpoint: str) -> zmq.Socket[bytes]:
        socket = self._context.socket(zmq.DEALER)
        socket.rcvtimeo = LIMIT_MS
        socket.connect(endpoint)
        return socket

    # --- suppliers ----------------------------------------------------------------------

    def supply(self, backend: str, numbers: list[int]) -> None:
        """Become a supplier for each number: of all jobs, and of its own products."""
        sockets = []
        for number in numbers:
            socket = self._dealer(backend)
            patterns = [rf"own-{number}-.*", r"job-\d+"]
            hello = p.SupplierHello(
                seq=1,
                protocol=2,
                session=os.urandom(16),
                name=f"load-{number}",
                product_ids=patterns,
            )
            _hello(socket, hello)
            sockets.append(socket)
        for socket in sockets:
            socket.send_multipart([p.READY, p.EMPTY])
        threading.Thread(target=self._answer, args=(sockets,), daemon=True).start()

    def _answer(self, sockets: list[zmq.Socket[bytes]]) -> None:
        poller = zmq.Poller()
        for socket in sockets:
            poller.register(socket, zmq.POLLIN)
        while True:
            for socket, _ in poller.poll():
                command, fields = socket.recv_multipart()
                if command == p.WORK:
                    results = [
                        p.Result(order_id=item.order_id, lease=item.lease, nbytes=64, checksum=1)
                        for item in read_work(fields).orders
                    ]
                    socket.send_multipart([p.DONE, p.encode(p.Done(results=results))])
                elif command == p.HEARTBEAT:
                    socket.send_multipart([p.HEARTBEAT, p.EMPTY])

    # --- a client -----------------------------------------------------------------------

    def connect(self, frontend: str) -> None:
        """Become a client."""
        self._socket = self._dealer(frontend)
        _hello(self._socket, p.ClientHello(seq=1, protocol=2, session=os.urandom(16)))
        self._push = 0

    def saturate(
        self, waiting: int, suppliers: int, warm: int, seconds: float, broker: int
    ) -> tuple[float, float]:
        """Orders a second while ``waiting`` of them are always open, counted after ``warm``.

        Also the seconds on a core that each cost the process ``broker``.
        """
        made = 0
        while made < waiting:
            made += self._place(min(ORDERS_IN_A_MESSAGE, waiting - made), suppliers)
        while warm > 0:
            served = self._take()
            self._place(served, suppliers)
            warm -= served
        total, started, before = 0, time.monotonic(), cpu_s(broker)
        while time.monotonic() < started + seconds:
            served = self._take()
            self._place(served, suppliers)
            total += served
        spent, busy = time.monotonic() - started, cpu_s(broker) - before
        self._discard()
        return total / spent, busy / total

    def _place(self, many: int, suppliers: int) -> int:
        if not many:
            return 0
        orders = []
        for number in (next(self._ids) for _ in range(many)):
            product = number % PRODUCTS
            every, common = divmod(number, OWN_EVERY)
            orders.append(
                p.Order(
                    order_id=f"o-{number}",
                    product_id=f"job-{product}" if common else f"own-{every % suppliers}-{product}",
                    address="nowhere",
                    offset=0,
                    nbytes=64,
                )
            )
        self._socket.send_multipart([p.ORDERS, p.encode(p.Orders(orders=orders))])
        return many

    def _take(self) -> int:
        """Take one message; how many orders it fulfils."""
        command, fields = self._socket.recv_multipart()
        if command == p.FULFILLED:
            message = read_fulfilled(fields)
            self._push = message.push
            if self._push % 1024 == 0:
                self._beat()
            return len(message.orders)
        if command == p.HEARTBEAT:
            self._beat()
            return 0
        raise AssertionError(f"{command!r}: {msgspec.msgpack.decode(fields)}")

    def _beat(self) -> None:
        beat: Any = p.ClientHeartbeat(last_push=self._push)
        self._socket.send_multipart([p.HEARTBEAT, p.encode(beat)])

    def _discard(self) -> None:
        """Have no order any more."""
        self._socket.send_multipart([p.DISCARD, p.encode(p.Discard(seq=2))])
        held: int | None = None
        early = 0
        while held is None or early < held:
            command, fields = self._socket.recv_multipart()
            if command == p.REPLY:
                reply = read_reply(fields)
                assert reply.code == "ok", reply
                held, early = len(reply.held), 0
            elif command == p.FULFILLED:
                message = read_fulfilled(fields)
                self._push = message.push
                early += len(message.orders)
        self._beat()


if __name__ == "__main__":
    serve(commands(Driven()))
