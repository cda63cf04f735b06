"""One supplier's connection at the owner of a TCP medium, and the thread that serves it."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import xxhash

from entrepot.errors import MediumError
from entrepot.mediums.tcp_grants import Grant, Refusal
from entrepot.mediums.tcp_wire import (
    ANSWER,
    ANSWER_GO,
    ANSWER_OK,
    BUSY,
    CHECK,
    EAGER_NBYTES,
    FENCED,
    MAGIC,
    MALFORMED,
    OFFER,
    OK,
    READ,
    REQUEST,
    ROW,
    ROW_NBYTES,
    ROW_WRITES,
    SENTENCE_NBYTES,
    WAITALL,
    WRITE,
    send_all,
    skip,
    tune,
)

if TYPE_CHECKING:
    from entrepot.mediums.tcp_owner import Owner

logger = logging.getLogger(__name__)

INLINE_NBYTES = 8192
"""Bytes of a product that are received with the request, and copied from there to the slot."""

GIVEN_NBYTES = 1 << 20
"""Bytes of an input that are sent between two looks at the clock."""

REFUSED_NBYTES = 1 << 20
"""Bytes of a product that nobody wants that are taken at once, to be thrown away."""

SUMMED_NBYTES = 4 << 20
"""Bytes of a product that are summed here, while they are in the cache and its supplier tells the
broker. Of a larger one they are not in the cache any more."""

LOOK_S = 0.1
"""How often a line that waits for an input looks whether it is to stop."""

STOP_S = 10.0
"""How long a line that was told to stop may take. It has nothing to wait for by then."""


class Line:
    """See the module. Its first request was good, and ``answer`` is what is said to that.

    :ivar busy: held from before a request takes a grant until after it has let go of it.
    :ivar hung_up: whether its thread is about to end.
    :ivar used_at: when it last did something, on the owner's clock.
    """

    def __init__(self, owner: Owner, sock: socket.socket, answer: bytes) -> None:
        self.sock = sock
        self.busy = threading.Lock()
        self.hung_up = False
        self.used_at = owner.clock()
        self._owner = owner
        self._answer = answer
        self._buffer = memoryview(bytearray(REQUEST.size + INLINE_NBYTES))
        self._begin = 0
        self._end = 0
        self.thread = threading.Thread(target=self._run, name=f"{owner.name} line", daemon=True)

    # --- from other threads -------------------------------------------------------------

    def hang_up(self) -> None:
        """Have its thread come to its end."""
        self.hung_up = True
        with suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)

    def wait_stopped(self) -> None:
        """After :meth:`hang_up`: on return its thread neither reads nor writes a slot.

        :raises MediumError: it does not come back from the kernel.
        """
        if not self.busy.acquire(timeout=STOP_S):
            raise MediumError(f"a connection to {self._owner.name} cannot be stopped")
        self.busy.release()

    # --- its thread ---------------------------------------------------------------------

    def _run(self) -> None:
        owner = self._owner
        try:
            tune(self.sock, owner.timeout_s)
            send_all(self.sock, self._answer)
            while self._wait() and self._request():
                self.used_at = owner.clock()
        except OSError:
            pass  # the other end went, or did not do its part in time
        except Exception:
            logger.exception("a connection failed", extra={"medium": owner.name})
        finally:
            owner.forget(self)

    def _wait(self) -> bool:
        """Have a whole request in the buffer; False when there will be none."""
        left = self._end - self._begin
        if left:
            self._buffer[:left] = self._buffer[self._begin : self._end]
        self._begin, self._end = 0, left
        if left >= REQUEST.size:
            return True
        until = self._owner.clock() + self._owner.idle_s
        while True:
            try:
                more = self.sock.recv_into(self._buffer[self._end :])
            except BlockingIOError:
                if self._end or self._owner.clock() >= until:
                    return False
                continue
            self._end += more
            if self._end >= REQUEST.size:
                return True
            if not more or self._owner.clock() >= until:
                return False

    def _request(self) -> bool:
        """Do what is asked; False when the connection is of no use any more."""
        magic, op, token, lease, offset, limit, nbytes = REQUEST.unpack_from(self._buffer)
        self._begin = REQUEST.size
        if magic != MAGIC:
            return self._refuse(Refusal(MALFORMED, "this is not a request"))
        if op == OFFER or (op == WRITE and nbytes <= EAGER_NBYTES):
            return self._write(op, token, lease, offset, limit, nbytes)
        if op == ROW:
            return self._row(limit, nbytes)
        if op == READ:
            return self._read(token, offset, nbytes)
        if op == CHECK:
            try:
                send_all(self.sock, self._owner.check(token))
            except Refusal as refusal:
                return self._refuse(refusal)
            return True
        return self._refuse(Refusal(MALFORMED, f"there is no request {op} of {nbytes} bytes"))

    def _refuse(self, refusal: Refusal) -> bool:
        send_all(self.sock, answer_of(refusal))
        return refusal.status != MALFORMED

    def _write(
        self, op: int, token: bytes, lease: int, offset: int, limit: int, nbytes: int
    ) -> bool:
        owner = self._owner
        with self.busy:
            try:
                with owner.lock:
                    grant, stopped = owner.grants.begin_write(
                        token, lease, offset, limit, nbytes, self
                    )
                    writes = grant.writes
                    target = grant.target(owner.memory, offset, nbytes)
            except Refusal as refusal:
                # What was sent with it has to be read, or the answer would not get through.
                if op == WRITE and not self._take_refused(nbytes):
                    return False
                return self._refuse(refusal)
            complete = False
            try:
                if stopped:
                    stop(stopped)
                if op == OFFER:
                    send_all(self.sock, ANSWER_GO)
                complete = self._take([target])
            finally:
                refusal_ = self._end_write(grant, complete)
        if not complete:
            return False
        if refusal_ is not None:
            return self._refuse(refusal_)
        send_all(self.sock, ANSWER_OK)
        if INLINE_NBYTES < nbytes <= SUMMED_NBYTES and offset == grant.offset:
            checksum = xxhash.xxh3_64_intdigest(target)
            with owner.lock:
                owner.grants.summed(grant, writes, nbytes, checksum)
        return True

    def _end_write(self, grant: Grant[Line], complete: bool) -> Refusal | None:
        try:
            with self._owner.lock:
                self._owner.grants.end_write(grant, self, complete)
        except Refusal as refusal:
            return refusal
        return None

    def _row(self, count: int, nbytes: int) -> bool:
        """Several writes, whose bytes come one after another; each is judged by itself."""
        if not 1 <= count <= ROW_WRITES or nbytes > ROW_NBYTES:
            return self._refuse(
                Refusal(MALFORMED, f"there is no row of {count} products and {nbytes} bytes")
            )
        if not self._have(count * REQUEST.size):
            return False
        end = self._begin + count * REQUEST.size
        writes = list(REQUEST.iter_unpack(self._buffer[self._begin : end]))
        self._begin = end
        if not _is_row(writes, nbytes):
            return self._refuse(Refusal(MALFORMED, "this is no row of writes"))
        owner = self._owner
        outcomes: list[Grant[Line] | Refusal] = []
        targets: list[memoryview] = []
        stopped: set[Line] = set()
        with self.busy:
            complete = False
            try:
                # All at once: a line only ever waits for lines that began before it.
                with owner.lock:
                    for _, _, token, lease, offset, limit, length in writes:
                        try:
                            grant, stops = owner.grants.begin_write(
                                token, lease, offset, limit, length, self
                            )
                        except Refusal as refusal:
                            outcomes.append(refusal)
                            targets.append(memoryview(bytearray(length)))
                        else:
                            outcomes.append(grant)
                            targets.append(grant.target(owner.memory, offset, length))
                            stopped.update(stops)
                if stopped:
                    stop(stopped)
                complete = self._take(targets)
            finally:
                with owner.lock:
                    for place, outcome in enumerate(outcomes):
                        if isinstance(outcome, Grant):
                            try:
                                owner.grants.end_write(outcome, self, complete)
                            except Refusal as refusal:
                                outcomes[place] = refusal
        if not complete:
            return False
        send_all(
            self.sock,
            b"".join(
                answer_of(outcome) if isinstance(outcome, Refusal) else ANSWER_OK
                for outcome in outcomes
            ),
        )
        return True

    # --- bytes --------------------------------------------------------------------------

    def _have(self, nbytes: int) -> bool:
        """Have that many bytes more in the buffer; False when that ended before, or was too slow.

        :raises BlockingIOError: nothing came for the time-out.
        """
        until = self._owner.clock() + self._owner.timeout_s
        while self._end - self._begin < nbytes:
            more = self.sock.recv_into(self._buffer[self._end :])
            if not more or self._owner.clock() >= until:
                return False
            self._end += more
        return True

    def _take(self, targets: list[memoryview]) -> bool:
        """Fill them with what comes next; False when that ended before, or was too slow.

        :raises BlockingIOError: nothing came for the time-out.
        """
        nbytes = sum(map(len, targets))
        while targets and self._begin < self._end:
            target = targets[0]
            got = min(len(target), self._end - self._begin)
            target[:got] = self._buffer[self._begin : self._begin + got]
            self._begin += got
            skip(targets, got)
        skip(targets, 0)
        if not targets:
            return True
        owner = self._owner
        until = owner.clock() + owner.timeout_s + nbytes / owner.slowest_nbytes_s
        while True:
            more = self.sock.recvmsg_into(targets, 0, WAITALL)[0]
            skip(targets, more)
            if not targets:
                return True
            if not more or owner.clock() >= until:
                return False

    def _take_refused(self, nbytes: int) -> bool:
        """Take that many bytes and throw them away; as :meth:`_take`."""
        nowhere = memoryview(bytearray(min(nbytes, REFUSED_NBYTES)))
        while nbytes:
            some = nowhere[:nbytes]
            if not self._take([some]):
                return False
            nbytes -= len(some)
        return True

    def _read(self, token: bytes, offset: int, nbytes: int) -> bool:
        owner = self._owner
        with self.busy:
            try:
                with owner.lock:
                    grant = owner.grants.begin_read(token, offset, nbytes, self)
                    if not grant.filled:
                        self._wait_filled(grant)
            except Refusal as refusal:
                return self._refuse(refusal)
            try:
                return self._give(ANSWER.pack(OK, nbytes), owner.memory[offset : offset + nbytes])
            finally:
                with owner.lock:
                    owner.grants.end_read(grant, self)

    def _wait_filled(self, grant: Grant[Line]) -> None:
        """Wait, with the owner's lock, until the input is there.

        :raises Refusal: it was taken back meanwhile, or does not come.
        """
        owner = self._owner
        until = owner.clock() + owner.timeout_s
        while not grant.filled:
            if self.hung_up or not owner.grants.is_granted(grant):
                raise Refusal(FENCED, "the order has ended before its input was written")
            if owner.clock() >= until:
                owner.grants.end_read(grant, self)
                raise Refusal(BUSY, f"the input was not written within {owner.timeout_s:g} s")
            owner.changed.wait(LOOK_S)

    def _give(self, head: bytes, data: memoryview) -> bool:
        """Send them; False when that was too slow."""
        owner = self._owner
        until = owner.clock() + owner.timeout_s + len(data) / owner.slowest_nbytes_s
        send_all(self.sock, head, data[:GIVEN_NBYTES])
        for start in range(GIVEN_NBYTES, len(data), GIVEN_NBYTES):
            if owner.clock() >= until:
                return False
            send_all(self.sock, data[start : start + GIVEN_NBYTES])
        return True


def _is_row(writes: list[tuple[Any, ...]], nbytes: int) -> bool:
    """Whether these are the headers of a row of ``nbytes`` bytes."""
    tokens = set()
    for magic, op, token, _, _, _, length in writes:
        if magic != MAGIC or op != WRITE:
            return False
        tokens.add(token)
        nbytes -= length
    return nbytes == 0 and len(tokens) == len(writes)


def stop(lines: Iterable[Line]) -> None:
    """On return none of them reads or writes a slot."""
    stopped = list(lines)
    for line in stopped:
        line.hang_up()
    for line in stopped:
        line.wait_stopped()


def answer_of(refusal: Refusal) -> bytes:
    """A refusal as it is sent."""
    sentence = str(refusal).encode()[:SENTENCE_NBYTES]
    return ANSWER.pack(refusal.status, len(sentence)) + sentence
