"""A cut with nothing around it: the ceiling for ``bench/cut.py``.

A forwarder without any logic carries 64 bytes there and back for each call, as a broker has to.
The tensors lie in shared memory that both ends have mapped, or go over a bare socket. Nothing is
checked, named, counted or summed; nobody may be late, come back, or come twice.

``python -m bench.cut_bare`` is the far end: a driven process.
"""

from __future__ import annotations

import mmap
import os
import socket
import tempfile
import threading

import torch
import zmq

from bench.cut_stage import ROWS, WIDTH, build
from bench.forwarders import LIMIT_MS, MESSAGE, READY
from tests.peer.lines import commands, serve

NBYTES = 4 * ROWS * WIDTH
"""Of one activation, or of one gradient."""


class Mapped:
    """Four tensors in memory that both ends have mapped: one for each that is moved."""

    def __init__(self, path: str) -> None:
        fd = os.open(path, os.O_RDWR)
        try:
            memory = mmap.mmap(fd, 4 * NBYTES)
        finally:
            os.close(fd)
        self._tensors = torch.frombuffer(memory, dtype=torch.float32).reshape(4, ROWS, WIDTH)

    def send(self, number: int, tensor: torch.Tensor) -> None:
        self._tensors[number].copy_(tensor)

    def receive(self, number: int, tensor: torch.Tensor) -> None:
        tensor.copy_(self._tensors[number])


class Streamed:
    """A socket, on which one tensor comes after the other."""

    def __init__(self, stream: socket.socket) -> None:
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream = stream

    def send(self, number: int, tensor: torch.Tensor) -> None:
        del number
        self._stream.sendall(_bytes_of(tensor))

    def receive(self, number: int, tensor: torch.Tensor) -> None:
        del number
        left = _bytes_of(tensor)
        while left:
            count = self._stream.recv_into(left)
            if not count:
                raise EOFError("the other end of a bare cut is gone")
            left = left[count:]


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    return tensor.numpy().data.cast("B")


class Near:
    """The near end of such a cut: :meth:`step` is what a step of a stage is.

    :param streamed: tensors go over a socket; through shared memory otherwise.
    """

    def __init__(self, frontend: str, streamed: bool) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._orders = self._context.socket(zmq.DEALER)
        self._orders.rcvtimeo = LIMIT_MS
        self._orders.connect(frontend)
        self._streamed = streamed
        self._output, self._gradient = (torch.empty(ROWS, WIDTH) for _ in range(2))
        if streamed:
            self._listener = socket.create_server(("127.0.0.1", 0))
            self.place = str(self._listener.getsockname()[1])
        else:
            self._file = tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="bare-cut-")  # noqa: SIM115
            self._file.truncate(4 * NBYTES)
            self.place = self._file.name

    def meet(self) -> None:
        """The far end was told of :attr:`place`."""
        self._way: Mapped | Streamed
        if self._streamed:
            self._way = Streamed(self._listener.accept()[0])
        else:
            self._way = Mapped(self.place)

    def step(self, x: torch.Tensor, gradient: torch.Tensor) -> None:
        """A forward and a backward there."""
        self._call(0, x.detach(), self._output)
        self._call(2, gradient, self._gradient)

    def _call(self, number: int, given: torch.Tensor, came: torch.Tensor) -> None:
        if self._streamed:  # its order goes ahead, and the bytes are read meanwhile
            self._orders.send(MESSAGE)
            self._way.send(number, given)
        else:
            self._way.send(number, given)
            self._orders.send(MESSAGE)
        self._orders.recv()
        self._way.receive(number + 1, came)

    def close(self) -> None:
        """Let go of all of it."""
        self._context.destroy(0)
        (self._listener if self._streamed else self._file).close()


class Driven:
    """The commands."""

    def serve(self, backend: str, place: str, streamed: bool) -> None:
        """Become the far end of the cut whose near end is at ``place``."""
        torch.set_num_threads(1)
        if streamed:
            way: Mapped | Streamed = Streamed(socket.create_connection(("127.0.0.1", int(place))))
        else:
            way = Mapped(place)
        threading.Thread(target=_serve, args=(backend, way), daemon=True).start()


def _serve(backend: str, way: Mapped | Streamed) -> None:
    orders = zmq.Context[zmq.Socket[bytes]]().socket(zmq.DEALER)
    orders.connect(backend)
    orders.send(READY)
    module, _ = build({})
    given = torch.empty(ROWS, WIDTH)
    while True:
        order = orders.recv_multipart()
        way.receive(0, given)
        x = given.detach().requires_grad_()
        output = module(x)
        _answer(orders, order, way, 1, output.detach())
        order = orders.recv_multipart()
        gradient = torch.empty(ROWS, WIDTH)
        way.receive(2, gradient)
        output.backward(gradient)
        assert x.grad is not None
        _answer(orders, order, way, 3, x.grad)


def _answer(
    orders: zmq.Socket[bytes],
    order: list[bytes],
    way: Mapped | Streamed,
    number: int,
    tensor: torch.Tensor,
) -> None:
    if isinstance(way, Streamed):
        orders.send_multipart(order)
        way.send(number, tensor)
    else:
        way.send(number, tensor)
        orders.send_multipart(order)


if __name__ == "__main__":
    serve(commands(Driven()))
