"""One supplier's connection at the owner of a TCP medium, and the thread that serves it."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from entrepot.errors import MediumError
from entrepot.mediums.tcp_grants import Grant, Refusal
from entrepot.mediums.tcp_wire import (
    ANSWER,
    ANSWER_GO,
    ANSWER_OK,
    CHECK,
    EAGER_NBYTES,
    MAGIC,
    MALFORMED,
    OFFER,
    OK,
    READ,
    REQUEST,
    SENTENCE_NBYTES,
    WRITE,
    send_all,
    tune,
)

if TYPE_CHECKING:
    from entrepot.mediums.tcp_owner import Owner

logger = logging.getLogger(__name__)

INLINE_NBYTES = 8192
"""Bytes of a product that are received with the request, and copied from there to the slot."""

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
            except Refusal as refusal:
                # What was sent with it has to be read, or the answer would not get through.
                if op == WRITE and not self._take(memoryview(bytearray(nbytes))):
                    return False
                return self._refuse(refusal)
            complete = False
            try:
                if stopped:
                    stop(stopped)
                if op == OFFER:
                    send_all(self.sock, ANSWER_GO)
                complete = self._take(owner.memory[offset : offset + nbytes])
            finally:
                refusal_ = self._end_write(grant, complete)
        if not complete:
            return False
        if refusal_ is not None:
            return self._refuse(refusal_)
        send_all(self.sock, ANSWER_OK)
        return True

    def _end_write(self, grant: Grant[Line], complete: bool) -> Refusal | None:
        try:
            with self._owner.lock:
                self._owner.grants.end_write(grant, self, complete)
        except Refusal as refusal:
            return refusal
        return None

    def _take(self, target: memoryview) -> bool:
        """Fill ``target`` with what comes next; False when that ended before, or was too slow.

        :raises BlockingIOError: nothing came for the time-out.
        """
        nbytes = len(target)
        got = min(nbytes, self._end - self._begin)
        if got:
            target[:got] = self._buffer[self._begin : self._begin + got]
            self._begin += got
        if got == nbytes:
            return True
        owner = self._owner
        until = owner.clock() + owner.timeout_s + nbytes / owner.slowest_nbytes_s
        while True:
            more = self.sock.recv_into(target[got:], 0, socket.MSG_WAITALL)
            got += more
            if got == nbytes:
                return True
            if not more or owner.clock() >= until:
                return False

    def _read(self, token: bytes, offset: int, nbytes: int) -> bool:
        owner = self._owner
        with self.busy:
            try:
                with owner.lock:
                    grant = owner.grants.begin_read(token, offset, nbytes, self)
            except Refusal as refusal:
                return self._refuse(refusal)
            try:
                return self._give(ANSWER.pack(OK, nbytes), owner.memory[offset : offset + nbytes])
            finally:
                with owner.lock:
                    owner.grants.end_read(grant, self)

    def _give(self, head: bytes, data: memoryview) -> bool:
        """Send them; False when that was too slow."""
        owner = self._owner
        until = owner.clock() + owner.timeout_s + len(data) / owner.slowest_nbytes_s
        send_all(self.sock, head, data[:EAGER_NBYTES])
        for start in range(EAGER_NBYTES, len(data), EAGER_NBYTES):
            if owner.clock() >= until:
                return False
            send_all(self.sock, data[start : start + EAGER_NBYTES])
        return True


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
