"""A TCP line to a port of this machine that can be cut: where there is no network to pull apart."""

from __future__ import annotations

import selectors
import socket
import threading
from contextlib import suppress

CHUNK_NBYTES = 1 << 16
"""Bytes taken from one side before they are sent to the other."""

LOOK_S = 0.1
"""How often it is looked whether it is over."""

CONNECT_S = 1.0


class Relay:
    """Passes on what comes, in a thread of its own. Cut, it passes nothing on and tells nobody.

    :param port: where to, on 127.0.0.1.
    :ivar port: where from.
    """

    def __init__(self, port: int) -> None:
        self._target = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._unsent: dict[socket.socket, bytes] = {}
        self._other: dict[socket.socket, socket.socket] = {}
        self._lock = threading.Lock()
        self._flowing = threading.Event()
        self._flowing.set()
        self._over = False
        self._thread = threading.Thread(target=self._run, name="relay")
        self._thread.start()

    def cut(self) -> None:
        """From now on nothing arrives, on either side."""
        with self._lock:
            self._flowing.clear()

    def mend(self) -> None:
        """What was sent meanwhile arrives, and all that follows."""
        self._flowing.set()

    def close(self) -> None:
        """Close all connections; any number of times."""
        self._over = True
        self._flowing.set()
        self._thread.join()

    # --- the thread ---------------------------------------------------------------------

    def _run(self) -> None:
        while not self._over:
            self._flowing.wait()
            ready = self._selector.select(LOOK_S)
            with self._lock:
                if not self._flowing.is_set():
                    continue  # it was cut while this slept
                for key, mask in ready:
                    end = key.fileobj
                    assert isinstance(end, socket.socket)
                    if end is self._listener:
                        self._accept()
                    elif end in self._other:
                        self._pass_on(end, mask)
        while self._other:
            self._close(next(iter(self._other)))
        self._selector.close()
        self._listener.close()

    def _accept(self) -> None:
        near, _ = self._listener.accept()
        try:
            far = socket.create_connection(self._target, CONNECT_S)
        except OSError:  # nobody listens there yet, or any more
            near.close()
            return
        for end, other in ((near, far), (far, near)):
            end.setblocking(False)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._other[end] = other
            self._unsent[end] = b""
        for end in (near, far):
            self._watch(end)

    def _pass_on(self, end: socket.socket, mask: int) -> None:
        """To ``end`` what could not be sent to it before; to the other side what came from it."""
        other = self._other[end]
        try:
            if mask & selectors.EVENT_WRITE:
                self._send(end, self._unsent[end])
            if mask & selectors.EVENT_READ:
                chunk = end.recv(CHUNK_NBYTES)
                if not chunk:
                    self._close(end)
                    return
                self._send(other, chunk)
        except BlockingIOError:
            pass
        except OSError:
            self._close(end)

    def _send(self, end: socket.socket, data: bytes) -> None:
        """What the kernel does not take now is sent when it does; until then no more is read."""
        sent = 0
        with suppress(BlockingIOError):
            sent = end.send(data)
        self._unsent[end] = data[sent:]
        for each in (end, self._other[end]):
            self._watch(each)

    def _watch(self, end: socket.socket) -> None:
        events = 0
        if not self._unsent[self._other[end]]:
            events |= selectors.EVENT_READ
        if self._unsent[end]:
            events |= selectors.EVENT_WRITE
        if end not in self._selector.get_map():
            if events:
                self._selector.register(end, events)
        elif events:
            self._selector.modify(end, events)
        else:
            self._selector.unregister(end)

    def _close(self, end: socket.socket) -> None:
        for each in (end, self._other[end]):
            if each in self._selector.get_map():
                self._selector.unregister(each)
            self._other.pop(each)
            self._unsent.pop(each)
            each.close()
