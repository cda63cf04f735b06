"""One of the broker's two ROUTER sockets: connections, frames, and who is behind them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket as unix
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, cast

import zmq
from zmq.utils.monitor import recv_monitor_message

from entrepot.errors import ConfigurationError, EndpointInUse
from entrepot.market.outbox import Frames, Pending
from entrepot.market.sockets import (
    NOBLOCK,
    POLLIN,
    SNDMORE,
    check_endpoint,
    readable,
    receiver,
    sender,
)
from entrepot.settings import BrokerSettings

_FIRST = SNDMORE | NOBLOCK
_SRCFD = int(zmq.SRCFD)

_ZMTP_BEAT_MS = 1_000
_ZMTP_TIMEOUT_MS = 5_000
"""How long a host may be silent before its connections are closed. A busy process answers these
pings whatever it does, since ZeroMQ's own thread does it."""


class Peer:
    """A connection that said HELLO, or spoke version 1."""

    __slots__ = ("fd", "gone", "handlers", "pending", "rid", "session", "v1_id", "version")

    def __init__(
        self,
        rid: bytes,
        fd: int,
        session: bytes,
        version: int,
        pending: Pending,
        handlers: Handlers,
        v1_id: int = 0,
    ) -> None:
        self.rid = rid
        self.fd = fd
        self.session = session
        self.version = version
        self.pending = pending
        self.handlers = handlers
        self.v1_id = v1_id
        self.gone = False


class Message:
    """A message as it came: ``rid`` is the routing id of its connection."""

    __slots__ = ("_first", "body", "command", "frames", "rid")

    def __init__(self, first: zmq.Frame, command: bytes, body: bytes, frames: int) -> None:
        self._first = first
        self.rid = first.bytes
        self.command = command
        self.body = body
        self.frames = frames

    @property
    def fd(self) -> int:
        """The connection's descriptor, or -1 when ZeroMQ does not say, as for an ancient peer."""
        try:
            return self._first.get(_SRCFD)
        except zmq.ZMQError:
            return -1


Handlers = Mapping[bytes, Callable[[Peer, bytes], None]]
"""What to do with the fields of each command."""

Receive = Callable[["Port", zmq.Frame, list[bytes], int], None]
"""Called with the frame of the routing id, the first two frames, and how many there were."""


class Port:
    """See the module. ``side`` is one byte that tells its sessions from the other port's."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], side: bytes) -> None:
        self.side = side
        self.peers: dict[bytes, Peer] = {}
        self.by_session: dict[bytes, Peer] = {}
        self.blocked: dict[Peer, None] = {}
        self.dropped_replies = 0
        self.quiet = False
        """Nothing was readable when last looked, and nothing was sent since: a send may swallow
        what its descriptor would have told."""
        self.woken = False
        self._by_fd: dict[int, Peer] = {}
        self.closing: list[Peer] = []
        self._ipc_lock: IO[bytes] | None = None
        self._context = context

    # --- life ---------------------------------------------------------------------------

    def bind(self, endpoint: str, settings: BrokerSettings) -> str:
        """Binds, and returns the endpoint as bound. Raises EndpointInUse, ConfigurationError."""
        check_endpoint(endpoint)
        self.socket = self._context.socket(zmq.ROUTER)
        options = {
            zmq.LINGER: 0,
            zmq.ROUTER_MANDATORY: 1,
            zmq.MAXMSGSIZE: settings.max_message_nbytes,
            zmq.HEARTBEAT_IVL: _ZMTP_BEAT_MS,
            zmq.HEARTBEAT_TIMEOUT: _ZMTP_TIMEOUT_MS,
            zmq.HANDSHAKE_IVL: 10_000,
            zmq.BACKLOG: 1_024,
            zmq.IPV6: 1 if "[" in endpoint else 0,
        }
        for option, value in options.items():
            self.socket.setsockopt(option, value)
        if endpoint.startswith("ipc://") and not endpoint.startswith("ipc://@"):
            self._lock_path(endpoint)
        try:
            self.socket.bind(endpoint)
        except zmq.ZMQError as fault:
            if fault.errno == zmq.EADDRINUSE:
                raise EndpointInUse(
                    f"{endpoint} is in use by another process; stop that one or choose another"
                ) from fault
            raise ConfigurationError(
                f"cannot listen at {endpoint!r}: {fault}; use tcp://ADDRESS:PORT or ipc://PATH"
            ) from fault
        self.endpoint = self.socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self.monitor = self.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._receive = receiver(self.socket)
        self._send = sender(self.socket)
        self.readable = readable(self.socket)
        return self.endpoint

    def _lock_path(self, endpoint: str) -> None:
        """ZeroMQ takes a living broker's socket file over without a word; a lock does not."""
        path = Path(endpoint.removeprefix("ipc://"))
        in_use = EndpointInUse(
            f"{endpoint} is in use by another process; stop that one or choose another path"
        )
        lock = path.with_name(path.name + ".lock")
        try:
            while True:
                held = lock.open("ab")
                self._ipc_lock = held
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Its last holder may have removed the file between the two calls.
                if lock.exists() and os.fstat(held.fileno()).st_ino == lock.stat().st_ino:
                    break
                held.close()
        except BlockingIOError as fault:
            held.close()
            self._ipc_lock = None
            raise in_use from fault
        except OSError as fault:
            raise ConfigurationError(
                f"cannot listen at {endpoint!r}: {fault}; the folder must exist and be writable"
            ) from fault
        # Somebody who knows nothing of the lock may be there too.
        with unix.socket(unix.AF_UNIX) as probe:
            probe.settimeout(1)
            try:
                probe.connect(str(path))
            except OSError:
                return
        raise in_use

    def close(self) -> None:
        if hasattr(self, "monitor"):
            self.socket.disable_monitor()
            self.monitor.close(0)
        if hasattr(self, "socket"):
            self.socket.close(0)
        if self._ipc_lock is not None:
            lock = Path(self._ipc_lock.name)
            if hasattr(self, "endpoint"):  # ZeroMQ leaves its file
                with contextlib.suppress(OSError):
                    lock.with_name(lock.name.removesuffix(".lock")).unlink()
            with contextlib.suppress(OSError):
                lock.unlink()
            self._ipc_lock.close()

    # --- in -----------------------------------------------------------------------------

    def drain(self, handle: Receive, most: int) -> bool:
        """Hands over what has arrived, at most ``most`` messages; True if nothing is left.

        The first message after a sleep comes alone, for what follows from it is to leave at once:
        asking the socket for more costs as much as reading a message. For the same reason the
        descriptor that ended the sleep is believed, which is wrong once in hundreds of messages.
        """
        if self.woken:
            self.woken = False
            try:
                self._hand_over(handle)
            except zmq.Again:
                pass
            return False
        for _ in range(most):
            if not self.readable():
                self.quiet = True
                return True
            self._hand_over(handle)
        return False

    def _hand_over(self, handle: Receive) -> None:
        receive = self._receive
        first = frame = receive(NOBLOCK, False)
        parts: list[bytes] = []
        count = 0
        while frame.more:
            frame = receive(NOBLOCK, False)
            count += 1
            if count <= 2:
                parts.append(frame.bytes)
        handle(self, first, parts, count)

    def wake(self) -> None:
        """The socket's descriptor said that something happened."""
        self.woken = True
        self.quiet = False

    def drain_monitor(self) -> None:
        """Takes note of closed connections."""
        while cast(int, self.monitor.getsockopt(zmq.EVENTS)) & POLLIN:
            event = recv_monitor_message(self.monitor, zmq.NOBLOCK)
            peer = self._by_fd.pop(event["value"], None)
            if peer is not None:
                self._close(peer)

    def take_closed(self) -> list[Peer]:
        """Peers whose connection closed; asked for once all that they sent has been read."""
        closed, self.closing = self.closing, []
        return [peer for peer in closed if self.peers.get(peer.rid) is peer]

    def _close(self, peer: Peer) -> None:
        if not peer.gone:
            peer.gone = True
            self.closing.append(peer)

    # --- peers --------------------------------------------------------------------------

    def add(self, peer: Peer) -> None:
        """The peer has its session now, and whoever had it before has not."""
        old = self.by_session.get(peer.session)
        if old is not None:
            self.forget(old)
        # A descriptor is used again at once: earlier news about this number comes first.
        self.drain_monitor()
        self.peers[peer.rid] = peer
        self.by_session[peer.session] = peer
        if peer.fd >= 0:
            self._by_fd[peer.fd] = peer

    def forget(self, peer: Peer) -> None:
        """Nothing more is sent to the peer, and what it says is a stranger's."""
        peer.gone = True
        if self.peers.get(peer.rid) is peer:
            del self.peers[peer.rid]
        if self.by_session.get(peer.session) is peer:
            del self.by_session[peer.session]
        if self._by_fd.get(peer.fd) is peer:
            del self._by_fd[peer.fd]
        self.blocked.pop(peer, None)

    # --- out ----------------------------------------------------------------------------

    def send(self, peer: Peer, frames: Frames) -> None:
        """Sends, or keeps for later what the connection will not take now. Raises Full."""
        if peer.gone:
            return
        if peer.pending or not self._try(peer, frames):
            peer.pending.add(frames)
            self.blocked[peer] = None

    def _try(self, peer: Peer, frames: Frames) -> bool:
        send = self._send
        self.quiet = False
        try:
            send(peer.rid, _FIRST)
        except zmq.Again:
            return False
        except zmq.ZMQError as fault:
            if fault.errno != zmq.EHOSTUNREACH:
                raise
            self._close(peer)
            return True
        for frame in frames[:-1]:
            send(frame, SNDMORE)
        send(frames[-1], 0)
        return True

    def send_stranger(self, rid: bytes, frames: Frames) -> None:
        """Sends to a connection that is nobody's yet. What it does not take is not kept."""
        try:
            self._send(rid, _FIRST)
        except zmq.ZMQError:
            self.dropped_replies += 1
        else:
            for frame in frames[:-1]:
                self._send(frame, SNDMORE)
            self._send(frames[-1], 0)
            self.quiet = False

    def flush_blocked(self) -> None:
        for peer in list(self.blocked):
            while peer.pending and not peer.gone:
                if not self._try(peer, peer.pending.first()):
                    break
                peer.pending.sent()
            else:
                del self.blocked[peer]
