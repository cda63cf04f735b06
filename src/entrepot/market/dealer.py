"""The DEALER socket under a connection: its options, its frames, and whether it still lives."""

from __future__ import annotations

import select
from collections.abc import Callable

import zmq
from zmq.utils.monitor import recv_monitor_message

from entrepot.errors import ConfigurationError
from entrepot.market.sockets import NOBLOCK, SNDMORE, check_endpoint, readable, sender

MAX_MESSAGE_NBYTES = 16 << 20
"""Largest message taken from the broker."""

HIGH_WATER = 1 << 17
"""Messages that ZeroMQ queues in one direction, at most."""

_FIRST = SNDMORE | NOBLOCK
EVENTS = int(zmq.EVENTS)
_FD = int(zmq.FD)
_MORE = int(zmq.RCVMORE)
_get: Callable[[zmq.Socket[bytes], int], int] = zmq.backend.Socket.get  # type: ignore[assignment]

_OPTIONS = (
    (zmq.LINGER, 0),
    (zmq.SNDTIMEO, 0),
    (zmq.SNDHWM, HIGH_WATER),
    (zmq.RCVHWM, HIGH_WATER),
    (zmq.MAXMSGSIZE, MAX_MESSAGE_NBYTES),
    (zmq.RECONNECT_IVL, 50),
    (zmq.RECONNECT_IVL_MAX, 1000),
    (zmq.TCP_KEEPALIVE, 1),
    (zmq.TCP_KEEPALIVE_IDLE, 30),
)


class Dealer:
    """One socket, connected or trying to. Nothing here ever waits.

    :param wake_fd: a descriptor that :attr:`poller` watches beside the socket.
    :ivar poller: wakes when something may have come, or ``wake_fd`` was written.
    :ivar events: ``events(EVENTS) & POLLIN`` is not 0 when a message has come. ZeroMQ's descriptor
        tells of changes only, so it may be slept on when that was 0, and nothing was sent since.
    :raises ConfigurationError: the endpoint cannot be one.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        endpoint: str,
        silence_s: float,
        wake_fd: int,
    ) -> None:
        check_endpoint(endpoint)
        self._socket = socket = context.socket(zmq.DEALER)
        for option, value in _OPTIONS:
            socket.setsockopt(option, value)
        # The host at the other end may vanish without a word.
        silence_ms = max(2, int(silence_s * 1000))
        socket.setsockopt(zmq.HEARTBEAT_IVL, silence_ms // 2)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, silence_ms)
        self._monitor = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        try:
            _connect(socket, endpoint)
        except ConfigurationError:
            self.close(0)
            raise
        self.poller = select.poll()
        self.poller.register(_get(socket, _FD), select.POLLIN)
        self.poller.register(wake_fd, select.POLLIN)
        self.monitor_fd = _get(self._monitor, _FD)
        self.events: Callable[[int], int] = super(zmq.Socket, socket).get  # type: ignore[assignment]
        self._news = readable(self._monitor)
        self._send = sender(socket)
        self._recv: Callable[[int], bytes] = super(zmq.Socket, socket).recv

    def send(self, command: bytes, fields: bytes) -> bool:
        """Queue one message; False when the peer has not read so many that there is no room."""
        send = self._send
        try:
            send(command, _FIRST)
        except zmq.Again:
            return False
        send(fields, NOBLOCK)
        return True

    def receive(self) -> tuple[bytes, bytes | None] | None:
        """One message, command and fields, or None when there is none. Never waits.

        Fields that are None mean a message of one frame.
        """
        recv = self._recv
        try:
            command = recv(NOBLOCK)
        except zmq.Again:
            return None
        try:
            # ZeroMQ delivers all frames of a message or none, so they are here.
            return command, recv(NOBLOCK)
        except zmq.Again:
            return command, None

    def skip(self) -> None:
        """Drop what is left of a message of more frames than two; none if there are no more."""
        while not self._socket.closed and _get(self._socket, _MORE):
            self._recv(NOBLOCK)

    def was_closed(self) -> bool:
        """Whether a connection was closed since this was last asked."""
        closed = False
        while self._news():
            recv_monitor_message(self._monitor, NOBLOCK)
            closed = True
        return closed

    def close(self, linger_ms: int) -> None:
        """Close it; messages may take ``linger_ms`` to leave, in the background."""
        self._socket.disable_monitor()
        self._monitor.close(0)
        self._socket.close(linger_ms)


def check_connectable(endpoint: str) -> None:
    """Whether a broker can be there at all. It need not be: nobody is waited for.

    :raises ConfigurationError: the endpoint cannot be one.
    """
    check_endpoint(endpoint)
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        for option, value in _OPTIONS:
            socket.setsockopt(option, value)
        _connect(socket, endpoint)


def _connect(socket: zmq.Socket[bytes], endpoint: str) -> None:
    socket.setsockopt(zmq.IPV6, 1 if "[" in endpoint else 0)
    try:
        socket.connect(endpoint)
    except zmq.ZMQError as error:
        raise ConfigurationError(
            f"{endpoint!r} is not an endpoint to connect to ({error}); give tcp://host:port "
            f"or ipc:///path"
        ) from error
