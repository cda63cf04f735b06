"""A supplier's end of one connection to the owner of a TCP medium, and how it is made."""

from __future__ import annotations

import errno
import select
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

import xxhash

from entrepot.errors import (
    BadAddress,
    ConfigurationError,
    MediumDenied,
    MediumError,
    MediumGone,
    MediumTimeout,
)
from entrepot.mediums.tcp_wire import (
    ANSWER,
    CHECK,
    CHUNK_NBYTES,
    DONTWAIT,
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
    WAITALL,
    WRITE,
    in_chunks,
    receive_exactly,
    send_all,
    send_some,
    tune,
)

HEARD_NBYTES = 16 << 10
"""Bytes of answers that are taken at once."""

WHOLE_NBYTES = 2 << 20
"""Bytes of a product that is given to the kernel at once, and summed while the owner takes it. In
pieces each would wait for the sum of the one before."""

DEAD = frozenset({errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN, errno.ESHUTDOWN, errno.EBADF})

Network = IPv4Network | IPv6Network


class Hangup(Exception):
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

    def until(self, nbytes: int) -> float:
        """When, on the clock, a transfer that begins now must be over."""
        return self.clock() + self.timeout_s + nbytes / self.slowest_nbytes_s

    def nothing_came(self) -> MediumTimeout:
        """The owner did nothing for the time-out."""
        return MediumTimeout(
            f"{self.place} did nothing for {self.timeout_s:g} s; is its machine, or the network "
            f"to it, down?"
        )


class Connection:
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
        parts: Sequence[memoryview],
        running: xxhash.xxh3_64 | None,
    ) -> None:
        nbytes = sum(map(len, parts))
        op = WRITE if nbytes <= EAGER_NBYTES else OFFER
        head = REQUEST.pack(MAGIC, op, token, lease, offset, limit, nbytes)
        until = self._until(nbytes)
        if nbytes <= CHUNK_NBYTES:
            send_all(self._sock, head, *parts)
            if running is not None:
                for part in parts:
                    running.update(part)
        else:
            # First, so that the owner is awake when the bytes come, and takes them straight from
            # the kernel to where they go.
            send_all(self._sock, head)
            if op == OFFER:
                self._answer(0, GO)
            at_once = WHOLE_NBYTES if nbytes <= WHOLE_NBYTES else CHUNK_NBYTES
            for chunk in in_chunks(parts, at_once):
                send_all(self._sock, *chunk)
                if running is not None:
                    for part in chunk:
                        running.update(part)  # while it is in the cache
                self._check_time(until)
        self._answer(0)
        self.stained = False

    def read(self, token: bytes, offset: int, target: memoryview) -> None:
        nbytes = len(target)
        send_all(self._sock, REQUEST.pack(MAGIC, READ, token, 0, offset, 0, nbytes))
        self._answer(nbytes)
        self._receive(target)
        self.stained = False

    # --- what is answered later ---------------------------------------------------------

    def send(self, parts: list[bytes | memoryview], until: float) -> None:
        """Say all of that, and leave ``parts`` empty. :meth:`hear` has the answers, later.

        :param until: when, on the clock, the owner must have taken it.
        :raises BlockingIOError: it took nothing for the time-out.
        :raises MediumTimeout: it took less than it must.
        """
        send_some(self._sock, parts)
        while parts:
            self._check_time(until)
            send_some(self._sock, parts)

    def send_now(self, parts: list[bytes | memoryview]) -> None:
        """Say what can be said without waiting, and leave the rest in ``parts``."""
        with suppress(BlockingIOError):
            send_some(self._sock, parts, DONTWAIT)

    def fileno(self) -> int:
        return self._sock.fileno()

    def hear(self, *, wait: bool) -> bytes:
        """Some of what the owner says, b"" if nothing is there; a part of an answer, or several.

        :param wait: wait for it, for the time-out.
        :raises Hangup: the owner closed the connection.
        """
        try:
            said = self._sock.recv(HEARD_NBYTES, 0 if wait else DONTWAIT)
        except BlockingIOError:
            return b""
        if not said:
            raise Hangup
        return said

    # --- answers ------------------------------------------------------------------------

    def _answer(self, nbytes: int, status: int = OK) -> int:
        """The header of an answer that is to have that status and ``nbytes`` bytes.

        :raises MediumError: it says no, and why.
        """
        self._receive(self._head)
        said, length = ANSWER.unpack(self._head)
        if said == status and length == nbytes:
            return nbytes
        if said not in ERRORS or length > SENTENCE_NBYTES:
            raise no_answer(self._terms)
        sentence = bytearray(length)
        self._receive(memoryview(sentence))
        self.stained = False
        raise refused(self._terms, said, bytes(sentence))

    def _receive(self, target: memoryview) -> None:
        """Fill ``target``.

        :raises Hangup: the connection ended before.
        :raises MediumTimeout: it took too long.
        """
        got = 0
        until = 0.0
        while got < len(target):
            more = self._sock.recv_into(target[got:], 0, WAITALL)
            if not more:
                raise Hangup
            got += more
            if got < len(target):
                until = until or self._until(len(target))
                self._check_time(until)

    def _until(self, nbytes: int) -> float:
        return self._terms.until(nbytes)

    def _check_time(self, until: float) -> None:
        if self._terms.clock() >= until:
            raise MediumTimeout(
                f"{self._terms.place} takes less than {self._terms.slowest_nbytes_s} bytes a second"
            )


def refused(terms: Terms, status: int, sentence: bytes) -> MediumError:
    """What an answer of one of :data:`ERRORS` means."""
    return ERRORS[status](f"{terms.place} refused: {sentence.decode('utf-8', 'replace')}")


def no_answer(terms: Terms) -> MediumError:
    """The owner said something else."""
    return MediumError(f"{terms.place} answered what is not an answer")


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


def connect(terms: Terms, host: str, port: int, networks: tuple[Network, ...]) -> Connection:
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
            line = Connection(terms, sock)
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
