"""How the two ends of a TCP medium talk: a supplier asks, the owner of the slots answers.

The owner speaks first: :data:`GREETING`, 16 bytes. Who connects sends nothing before it has read
them, so that an address that leads to some other service does no more there than connect.

A request is a header of 56 bytes, little-endian::

    magic 4s | op u8 | 3 bytes of 0 | token 16s | lease u64 | offset u64 | limit u64 | nbytes u64

======  =====================================================================================
CHECK   Is the token good? The first request of a connection, and the only one that a stranger
        gets an answer to. Answered with OK and the 16 bytes ``offset u64 | nbytes u64`` of what
        was granted.
WRITE   ``nbytes`` bytes follow at once, at most :data:`EAGER_NBYTES`: put them at ``offset``.
OFFER   The same, for any length: the bytes follow once the owner has said GO.
READ    ``nbytes`` bytes from ``offset``.
ROW     As many WRITEs as ``limit`` says, in one: first their headers, then the bytes of all of
        them, ``nbytes`` in all and at most :data:`ROW_NBYTES`. No two have the same token.
        Each is judged by itself, and answered as a WRITE is, in their order.
======  =====================================================================================

``limit`` is how many bytes the slot at ``offset`` has, as the order says, or :data:`REST`.

Requests are answered in the order in which they came, and the next may be sent before the last is
answered. An answer is a header of 16 bytes, and then ``nbytes`` bytes: a sentence in UTF-8, or
what was read::

    status u8 | 7 bytes of 0 | nbytes u64

The token is all that proves a right, and it is not encrypted: for networks that are trusted.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from struct import Struct

from entrepot.errors import (
    BadAddress,
    Fenced,
    MediumError,
    MediumGone,
    ProductTooLarge,
    SlotOutOfRange,
)

GREETING = b"entrepot slots 1"

MAGIC = b"slot"
REQUEST = Struct("<4sB3x16sQQQQ")
ANSWER = Struct("<B7xQ")
GRANTED = Struct("<QQ")

CHECK = 1
WRITE = 2
OFFER = 3
READ = 4
ROW = 5

OK = 0
GO = 1
FENCED = 2
OUT_OF_RANGE = 3
TOO_LARGE = 4
GONE = 5
BUSY = 6
MALFORMED = 7

REST = 2**64 - 1
"""As a limit: what is left of the slot that the offset lies in."""

CHUNK_NBYTES = 1 << 20
"""Bytes sent and hashed at a time. With 256 KiB products of 16 MiB take a fifth longer."""

EAGER_NBYTES = 32 << 20
"""Bytes of a product that are sent without asking first, and thrown away where it is refused."""

ROW_NBYTES = 1 << 20
"""Bytes of the products of one ROW together."""

ROW_WRITES = 64
"""WRITEs in one ROW, at most."""

SENTENCE_NBYTES = 1024
"""The longest sentence of an answer."""

ERRORS: dict[int, type[MediumError]] = {
    FENCED: Fenced,
    OUT_OF_RANGE: SlotOutOfRange,
    TOO_LARGE: ProductTooLarge,
    GONE: MediumGone,
    BUSY: MediumError,
    MALFORMED: BadAddress,
}
"""What a supplier raises for a status, with the owner's sentence."""

ANSWER_OK = ANSWER.pack(OK, 0)
ANSWER_GO = ANSWER.pack(GO, 0)

PARTS = 1000
"""Buffers that the kernel takes in one call."""

# As numbers: or-ing the names that socket has for them takes microseconds.
DONTWAIT = int(socket.MSG_DONTWAIT)
NOSIGNAL = int(socket.MSG_NOSIGNAL)
WAITALL = int(socket.MSG_WAITALL)

TIMEVAL = Struct("@ll")


def tune(sock: socket.socket, timeout_s: float) -> None:
    """A connected socket as both ends use it: blocking, each call bounded by the kernel.

    Small messages leave at once. An end that vanished is noticed after ``timeout_s`` while
    something is under way, and soon after that while nothing is.
    """
    sock.setblocking(True)
    seconds = int(timeout_s)
    timeval = TIMEVAL.pack(seconds, int((timeout_s - seconds) * 1e6))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, max(1, int(timeout_s * 1000)))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, seconds))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(1, seconds // 3))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)


def receive_exactly(sock: socket.socket, target: memoryview) -> bool:
    """Fill ``target``, as a blocking socket does; False when the other end closed before.

    :raises BlockingIOError: nothing came for as long as the socket waits.
    """
    got = 0
    while got < len(target):
        more = sock.recv_into(target[got:], 0, WAITALL)
        if not more:
            return False
        got += more
    return True


def send_all(sock: socket.socket, *parts: memoryview | bytes) -> None:
    """Send them one after another, in one call where the kernel takes it all.

    :raises BlockingIOError: nothing was taken for as long as the socket waits.
    """
    if len(parts) == 1:
        sent = sock.send(parts[0], NOSIGNAL)
    else:
        sent = sock.sendmsg(parts, (), NOSIGNAL)
    if sent == sum(map(len, parts)):
        return
    left = list(parts)
    skip(left, sent)
    while left:
        send_some(sock, left)


def send_some(sock: socket.socket, parts: list[bytes | memoryview], flags: int = 0) -> None:
    """Send what the kernel takes in one call, and take it away from ``parts``.

    :raises BlockingIOError: nothing was taken for as long as the socket waits.
    """
    some = parts if len(parts) <= PARTS else parts[:PARTS]
    skip(parts, sock.sendmsg(some, (), flags | NOSIGNAL))


def in_chunks(parts: Sequence[memoryview], nbytes: int) -> Iterator[list[memoryview]]:
    """What lies in ``parts`` one after the other, in lists of at most ``nbytes`` bytes."""
    chunk: list[memoryview] = []
    room = nbytes
    for part in parts:
        start = 0
        while start < len(part):
            if not room or len(chunk) == PARTS:
                yield chunk
                chunk, room = [], nbytes
            some = part[start : start + room]
            chunk.append(some)
            start += len(some)
            room -= len(some)
    if chunk:
        yield chunk


def skip(parts: list[memoryview] | list[bytes | memoryview], nbytes: int) -> None:
    """Take the first ``nbytes`` bytes away, and with them the parts that have none left."""
    whole = 0
    for part in parts:
        if len(part) > nbytes:
            break
        nbytes -= len(part)
        whole += 1
    del parts[:whole]
    if nbytes:
        parts[0] = memoryview(parts[0])[nbytes:]
