"""A supplier's end of a TCP medium: connections to one owner, shared by its orders."""

from __future__ import annotations

import errno
import os
import select
import socket
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import TypeVar

import xxhash

from entrepot.errors import (
    BadAddress,
    Closed,
    ConfigurationError,
    MediumDenied,
    MediumError,
    MediumGone,
    MediumTimeout,
)
from entrepot.mediums.base import COPY_CHUNK_NBYTES
from entrepot.mediums.tcp_wire import (
    ANSWER,
    CHECK,
    EAGER_NBYTES,
    ERRORS,
    GO,
    GRANTED,
    GREETING,
    MAGIC,
    OFFER,
    OK,
    READ,
    REQUEST,
    SENTENCE_NBYTES,
    WRITE,
    receive_exactly,
    send_all,
    tune,
)

IDLE_LINES = 4
"""Connections to one owner that are kept while they are not used."""

LOOK_S = 1.0
"""How long a connection that was just used is taken to be good."""

_DEAD = frozenset({errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN, errno.ESHUTDOWN, errno.EBADF})

Network = IPv4Network | IPv6Network
Result = TypeVar("Result")


class _Hangup(Exception):
    """The owner closed the connection."""


@dataclass(frozen=True)
class Terms:
    """How long an owner is waited for.

    :ivar place: how errors call it.
    :ivar timeout_s: seconds for each of its steps.
    :ivar slowest_nbytes_s: bytes a second that a transfer must make, after ``timeout_s``.
    :ivar clock: seconds, going up.
    """

    place: str
    timeout_s: float
    slowest_nbytes_s: int
    clock: Callable[[], float] = time.monotonic


class Lines:
    """Connections to the owner at one host and port. From any number of threads.

    :param idle_s: seconds that a connection is kept without being used.
    :param networks: where the owner may be; anywhere if empty.
    """

    def __init__(
        self,
        terms: Terms,
        host: str,
        port: int,
        *,
        idle_s: float,
        networks: tuple[Network, ...] = (),
    ) -> None:
        self.terms = terms
        self.closed = False
        self._host = host
        self._port = port
        self._idle_s = idle_s
        self._networks = networks
        self._lock = threading.Lock()
        self._idle: list[_Line] = []
        self._used_at = terms.clock()
        self._all: weakref.WeakSet[_Line] = weakref.WeakSet()
        weakref.finalize(self, _close_all, self._idle)
        _alive.add(self)

    # --- what a medium asks for ---------------------------------------------------------

    def check(self, token: bytes) -> tuple[int, int]:
        """Offset and length of what ``token`` allows.

        :raises MediumGone: the owner is not there, or knows no such token.
        """
        line = self._take()
        if line is not None:
            try:
                return self._used(line, lambda line: line.check(token))
            except _Hangup:
                pass
        line, granted = self._connected(token)
        self._give(line)
        return granted

    def write(
        self,
        token: bytes,
        lease: int,
        offset: int,
        limit: int,
        data: memoryview,
        running: xxhash.xxh3_64 | None,
    ) -> None:
        """Put ``data`` at ``offset``, and into ``running``."""

        def write(line: _Line) -> None:
            if running is not None:
                running.reset()
            line.write(token, lease, offset, limit, data, running)

        self._with_line(token, write)

    def read(self, token: bytes, offset: int, nbytes: int) -> bytearray:
        """``nbytes`` bytes from ``offset``."""
        return self._with_line(token, lambda line: line.read(token, offset, nbytes))

    def worth_keeping(self) -> bool:
        """Whether there is a connection, or was one a moment ago; closes those not used."""
        now = self.terms.clock()
        if now - self._used_at < LOOK_S:
            return True
        with self._lock:
            kept = []
            for line in self._idle:
                if now - line.used_at < self._idle_s and not line.was_closed():
                    kept.append(line)
                else:
                    line.close()
            self._idle[:] = kept
            return bool(kept)

    def close(self) -> None:
        """Close what is not in use now; the rest when it is given back."""
        with self._lock:
            self.closed = True
            _close_all(self._idle)

    # --- lines --------------------------------------------------------------------------

    def _with_line(self, token: bytes, use: Callable[[_Line], Result]) -> Result:
        """``use`` a connection; once more, on a new one, if one that was kept is dead."""
        line = self._take()
        if line is not None:
            try:
                return self._used(line, use)
            except _Hangup:
                pass
        line, _ = self._connected(token)
        try:
            return self._used(line, use)
        except _Hangup:
            raise self._hung_up() from None

    def _connected(self, token: bytes) -> tuple[_Line, tuple[int, int]]:
        """A new connection, and what ``token`` allows."""
        line = _connect(self.terms, self._host, self._port, self._networks)
        self._all.add(line)
        try:
            return line, self._asked(line, lambda line: line.check(token))
        except _Hangup:
            line.close()
            raise self._hung_up() from None
        except BaseException:
            line.close()
            raise

    def _hung_up(self) -> MediumGone:
        return MediumGone(
            f"{self.terms.place} closed the connection: its owner has ended, or has taken the "
            f"order's address back"
        )

    def _used(self, line: _Line, use: Callable[[_Line], Result]) -> Result:
        try:
            return self._asked(line, use)
        finally:
            self._give(line)

    def _asked(self, line: _Line, use: Callable[[_Line], Result]) -> Result:
        """What ``use`` gives.

        :raises _Hangup: the owner has closed the connection.
        """
        line.stained = True
        try:
            return use(line)
        except MediumError:
            raise
        except (BlockingIOError, TimeoutError):
            raise MediumTimeout(
                f"{self.terms.place} did nothing for {self.terms.timeout_s:g} s; is its machine, "
                f"or the network to it, down?"
            ) from None
        except OSError as error:
            if error.errno in _DEAD:
                raise _Hangup from error
            raise MediumError(f"the connection to {self.terms.place} failed: {error}") from error

    def _take(self) -> _Line | None:
        with self._lock:
            if self.closed:
                raise Closed(f"{self.terms.place} was closed on this side; attach again")
            return self._idle.pop() if self._idle else None

    def _give(self, line: _Line) -> None:
        """Keep it for another, unless something is left under way on it."""
        self._used_at = line.used_at = self.terms.clock()
        with self._lock:
            if not (line.stained or self.closed or len(self._idle) >= IDLE_LINES):
                self._idle.append(line)
                return
        line.close()

    def let_go_in_child(self) -> None:
        """A forked child must not speak on its parent's connections, nor keep them open."""
        self._lock = threading.Lock()
        _close_all(list(self._all))
        self._idle.clear()


class _Line:
    """One connection.

    :ivar stained: whether something is under way, so that what comes next is not an answer.
    """

    def __init__(self, terms: Terms, sock: socket.socket) -> None:
        self.stained = False
        self.used_at = terms.clock()
        self._terms = terms
        self._sock = sock
        self._head = memoryview(bytearray(ANSWER.size))

    def close(self) -> None:
        self._sock.close()

    def was_closed(self) -> bool:
        """Whether the other end closed it, or said something that nobody asked for."""
        look = select.poll()
        try:
            look.register(self._sock, select.POLLIN | select.POLLRDHUP)
            return bool(look.poll(0))
        except (OSError, ValueError):
            return True

    def greet(self) -> None:
        """Hear the greeting, before anything is said.

        :raises BadAddress: what is there is something else.
        """
        said = bytearray(len(GREETING))
        if not receive_exactly(self._sock, memoryview(said)) or said != GREETING:
            raise BadAddress(
                f"what answers at {self._terms.place} is not the owner of a TCP medium"
            )

    def check(self, token: bytes) -> tuple[int, int]:
        send_all(self._sock, REQUEST.pack(MAGIC, CHECK, token, 0, 0, 0, 0))
        answer = bytearray(self._answer(GRANTED.size))
        self._receive(memoryview(answer))
        self.stained = False
        offset, nbytes = GRANTED.unpack(answer)
        return offset, nbytes

    def write(
        self,
        token: bytes,
        lease: int,
        offset: int,
        limit: int,
        data: memoryview,
        running: xxhash.xxh3_64 | None,
    ) -> None:
        nbytes = len(data)
        if nbytes <= EAGER_NBYTES:
            head = REQUEST.pack(MAGIC, WRITE, token, lease, offset, limit, nbytes)
            send_all(self._sock, head, data)
            if running is not None:
                running.update(data)  # while it is on its way
        else:
            send_all(self._sock, REQUEST.pack(MAGIC, OFFER, token, lease, offset, limit, nbytes))
            self._answer(0, GO)
            until = self._until(nbytes)
            for start in range(0, nbytes, COPY_CHUNK_NBYTES):
                chunk = data[start : start + COPY_CHUNK_NBYTES]
                send_all(self._sock, chunk)
                if running is not None:
                    running.update(chunk)
                self._check_time(until)
        self._answer(0)
        self.stained = False

    def read(self, token: bytes, offset: int, nbytes: int) -> bytearray:
        send_all(self._sock, REQUEST.pack(MAGIC, READ, token, 0, offset, 0, nbytes))
        self._answer(nbytes)
        data = bytearray(nbytes)
        self._receive(memoryview(data))
        self.stained = False
        return data

    # --- answers ------------------------------------------------------------------------

    def _answer(self, nbytes: int, status: int = OK) -> int:
        """The header of an answer that is to have that status and ``nbytes`` bytes.

        :raises MediumError: it says no, and why.
        """
        self._receive(self._head)
        said, length = ANSWER.unpack(self._head)
        if said == status and length == nbytes:
            return nbytes
        kind = ERRORS.get(said)
        if kind is None or length > SENTENCE_NBYTES:
            raise MediumError(f"{self._terms.place} answered what is not an answer")
        sentence = bytearray(length)
        self._receive(memoryview(sentence))
        self.stained = False
        raise kind(f"{self._terms.place} refused: {sentence.decode('utf-8', 'replace')}")

    def _receive(self, target: memoryview) -> None:
        """Fill ``target``.

        :raises _Hangup: the connection ended before.
        :raises MediumTimeout: it took too long.
        """
        got = 0
        until = 0.0
        while got < len(target):
            more = self._sock.recv_into(target[got:], 0, socket.MSG_WAITALL)
            if not more:
                raise _Hangup
            got += more
            if got < len(target):
                until = until or self._until(len(target))
                self._check_time(until)

    def _until(self, nbytes: int) -> float:
        terms = self._terms
        return terms.clock() + terms.timeout_s + nbytes / terms.slowest_nbytes_s

    def _check_time(self, until: float) -> None:
        if self._terms.clock() >= until:
            raise MediumTimeout(
                f"{self._terms.place} takes less than {self._terms.slowest_nbytes_s} bytes a second"
            )


def _close_all(lines: list[_Line]) -> None:
    while lines:
        lines.pop().close()


# --- connecting -------------------------------------------------------------------------


def networks_of(text: str) -> tuple[Network, ...]:
    """``10.0.0.0/8,fd00::/8`` taken apart.

    :raises ConfigurationError: that is not what it is.
    """
    try:
        return tuple(ip_network(part.strip()) for part in text.split(",") if part.strip())
    except ValueError as error:
        raise ConfigurationError(
            f"tcp_networks is a list of networks such as 10.0.0.0/8, got {text!r}: {error}"
        ) from None


def _connect(terms: Terms, host: str, port: int, networks: tuple[Network, ...]) -> _Line:
    """A new connection, on which the owner has said its greeting."""
    place = terms.place
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise MediumError(
            f"{place}: the name {host} is not known here ({error}); have the client advertise "
            f"another, or its address"
        ) from None
    allowed = [each for each in found if _is_in(str(each[4][0]), networks)]
    if not allowed:
        raise MediumDenied(
            f"{place} is refused: {found[0][4][0]} is in none of the networks that this supplier "
            f"connects to, {', '.join(map(str, networks))}"
        )
    until = terms.clock() + terms.timeout_s
    failure: OSError | None = None
    for family, kind, protocol, _, address in allowed:
        left_s = until - terms.clock()
        if left_s <= 0:
            break
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(left_s)
            sock.connect(address)
            if sock.getsockname() == sock.getpeername():  # to a port of ours that nobody has
                raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
            tune(sock, terms.timeout_s)
            line = _Line(terms, sock)
            line.greet()
            return line
        except OSError as error:
            sock.close()
            failure = error
        except BaseException:
            sock.close()
            raise
    if isinstance(failure, ConnectionRefusedError):
        raise MediumGone(
            f"nothing listens at {place}: its owner has ended, or advertises a place that is not "
            f"its own here"
        ) from failure
    if failure is None or isinstance(failure, TimeoutError | BlockingIOError):
        raise MediumTimeout(
            f"{place} did not answer within {terms.timeout_s:g} s; is there a way from here?"
        ) from failure
    raise MediumError(f"{place} cannot be reached: {failure}") from failure


def _is_in(host: str, networks: tuple[Network, ...]) -> bool:
    if not networks:
        return True
    address = ip_address(host.partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return any((mapped or address) in network for network in networks)


_alive: weakref.WeakSet[Lines] = weakref.WeakSet()


def _let_go_in_child() -> None:
    with suppress(OSError):
        for lines in list(_alive):
            lines.let_go_in_child()


os.register_at_fork(after_in_child=_let_go_in_child)
