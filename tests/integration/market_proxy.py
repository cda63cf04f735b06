"""A TCP line that can be cut, stalled, half opened and mended while others use it."""

from __future__ import annotations

import selectors
import socket
import struct
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

CHUNK_NBYTES = 1 << 16
HELD_NBYTES = 1 << 20
"""What one direction of one connection holds back before its sender feels it."""


class Line:
    """One connection through the proxy: two sockets, and what waits for each of them."""

    def __init__(self, near: socket.socket, far: socket.socket) -> None:
        self.ends = {near: far, far: near}
        self.near = near
        self.far = far
        self.waiting = {near: bytearray(), far: bytearray()}
        self.ended: set[socket.socket] = set()
        self.stalled: set[socket.socket] = set()
        """Ends from which nothing is passed on."""


class Proxy:
    """Listens at :attr:`endpoint` and passes all on to another; a thread of its own.

    *Near* is whoever connects here, *far* the endpoint. What is asked for has happened when a
    method returns.

    :param host: the address that it listens at.
    :ivar target: the endpoint.
    :ivar deaf: whether connections that are made now are stalled from the beginning.
    """

    def __init__(self, endpoint: str, host: str = "127.0.0.1") -> None:
        self.target = endpoint
        far, _, port = endpoint.removeprefix("tcp://").rpartition(":")
        self._far = far, int(port)
        self._listener = socket.create_server((host, 0), backlog=512)
        self._here = self._listener.getsockname()
        self.endpoint = "tcp://{}:{}".format(*self._here)
        self.deaf = False
        self._lines: list[Line] = []
        self._accepted = 0
        self._asked: list[tuple[Callable[[], object], threading.Event]] = []
        self._bell, self._ring = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._bell, selectors.EVENT_READ)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._over = False
        self._thread = threading.Thread(target=self._run, name="proxy")
        self._thread.start()

    # --- what a test does ---------------------------------------------------------------

    def cut(self, *, reset: bool = True) -> int:
        """Close all connections, with RST or with FIN; new ones are made. How many there were."""
        cut: list[int] = []

        def act() -> None:
            cut.append(len(self._lines))
            for line in list(self._lines):
                self._close(line, reset=reset)

        self._do(act)
        return cut[0]

    def stall(self, *, near: bool = True, far: bool = True) -> None:
        """Pass nothing on that comes from these sides, on connections that there are now."""

        def act() -> None:
            for line in self._lines:
                line.stalled |= {line.near} if near else set()
                line.stalled |= {line.far} if far else set()

        self._do(act)

    def mend(self) -> None:
        """Pass on what was held back, and all that comes; listen again."""

        def act() -> None:
            for line in list(self._lines):
                line.stalled.clear()
                for end in line.ends:
                    self._push(line, end)
            if self._listener.fileno() < 0:
                self._listener = socket.create_server(self._here, backlog=512)
                self._selector.register(self._listener, selectors.EVENT_READ)

        self._do(act)

    def refuse(self) -> None:
        """Cut all, and take no connection until it is mended."""
        self._do(self._stop_listening)
        self.cut()

    @property
    def accepted(self) -> int:
        """Connections that were ever made."""
        return self._accepted

    @property
    def open(self) -> int:
        """Connections that there are."""
        return len(self._lines)

    def close(self) -> None:
        def act() -> None:
            self._over = True

        self._do(act)
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _do(self, act: Callable[[], object]) -> None:
        done = threading.Event()
        self._asked.append((act, done))
        self._ring.send(b"!")
        assert done.wait(10), "the proxy does not answer"

    # --- the thread ---------------------------------------------------------------------

    def _run(self) -> None:
        while not self._over:
            for key, mask in self._selector.select():
                if key.fileobj is self._bell:
                    self._bell.recv(100)
                elif key.fileobj is self._listener:
                    self._accept()
                elif key.data in self._lines:
                    end = key.fileobj
                    assert isinstance(end, socket.socket)
                    if mask & selectors.EVENT_READ:
                        self._pull(key.data, end)
                    if mask & selectors.EVENT_WRITE and key.data in self._lines:
                        self._push(key.data, end)
            while self._asked:
                act, done = self._asked.pop(0)
                act()
                done.set()
        for line in list(self._lines):
            self._close(line)
        self._stop_listening()
        self._selector.close()
        self._bell.close()
        self._ring.close()

    def _stop_listening(self) -> None:
        if self._listener.fileno() >= 0:
            self._selector.unregister(self._listener)
            self._listener.close()

    def _accept(self) -> None:
        near, _ = self._listener.accept()
        far = socket.socket()
        try:
            far.connect(self._far)
        except OSError:  # as whoever connects would find without us
            far.close()
            _reset(near)
            near.close()
            return
        self._accepted += 1
        line = Line(near, far)
        if self.deaf:
            line.stalled |= {near, far}
        self._lines.append(line)
        for end in line.ends:
            end.setblocking(False)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._selector.register(end, selectors.EVENT_READ, line)

    def _pull(self, line: Line, end: socket.socket) -> None:
        """Take what came from ``end``, and pass it on if nothing holds it back."""
        try:
            part = end.recv(CHUNK_NBYTES)
        except BlockingIOError:
            return
        except OSError:
            self._close(line)
            return
        if not part:
            line.ended.add(end)
        line.waiting[line.ends[end]] += part
        self._push(line, line.ends[end])

    def _push(self, line: Line, end: socket.socket) -> None:
        """Send to ``end`` what waits for it."""
        source = line.ends[end]
        waiting = line.waiting[end]
        if source not in line.stalled:
            try:
                while waiting:
                    del waiting[: end.send(waiting)]
            except BlockingIOError:
                pass
            except OSError:
                self._close(line)
                return
            if not waiting and source in line.ended:
                self._close(line)
                return
        self._watch(line)

    def _watch(self, line: Line) -> None:
        for end, other in line.ends.items():
            events = 0
            if end not in line.ended and len(line.waiting[other]) < HELD_NBYTES:
                events |= selectors.EVENT_READ
            if line.waiting[end] and other not in line.stalled:
                events |= selectors.EVENT_WRITE
            if end in self._selector.get_map():
                if events:
                    self._selector.modify(end, events, line)
                else:
                    self._selector.unregister(end)
            elif events:
                self._selector.register(end, events, line)

    def _close(self, line: Line, *, reset: bool = False) -> None:
        self._lines.remove(line)
        for end in line.ends:
            if end in self._selector.get_map():
                self._selector.unregister(end)
            if reset:
                _reset(end)
            end.close()


def _reset(end: socket.socket) -> None:
    """Have ``close`` send RST instead of FIN."""
    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
