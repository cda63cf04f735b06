"""Writes to the owner of a TCP medium that are acknowledged later: small ones several in a row.

One connection at a time carries them. Their bytes are kept until the owner has said what became of
them, so that a connection that breaks costs nothing but time: what was not answered is written
again, one by one, each to its own end. Written twice is no harm: under one lease it is the same.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from itertools import chain

import xxhash

from entrepot.errors import EntrepotError, Fenced, MediumError, MediumTimeout, UsedAfterFork
from entrepot.mediums.receipt import Post, Receipt
from entrepot.mediums.tcp_connection import Connection, Hangup, no_answer, refused
from entrepot.mediums.tcp_supplier import Lines, close_all
from entrepot.mediums.tcp_wire import (
    ANSWER,
    ANSWER_OK,
    CHUNK_NBYTES,
    ERRORS,
    MAGIC,
    REQUEST,
    ROW,
    ROW_NBYTES,
    ROW_WRITES,
    SENTENCE_NBYTES,
    WRITE,
)

UNDER_WAY_NBYTES = 4 << 20
"""Bytes to one owner that may be under way, or one product: beyond that, who writes waits."""

UNDER_WAY_WRITES = 1024
"""Writes to one owner that may be under way."""

_NO_TOKEN = bytes(16)


class Write(Receipt):
    """A product on its way, and what it may be written with.

    :ivar checksum: xxh3 of its bytes.
    """

    __slots__ = ("checksum", "data", "lease", "limit", "offset", "token", "until")

    def __init__(
        self,
        post: Post,
        token: bytes,
        lease: int,
        offset: int,
        limit: int,
        data: bytes | memoryview,
    ) -> None:
        self.post = post
        self.done = False
        self.error = None
        self.token = token
        self.lease = lease
        self.offset = offset
        self.limit = limit
        self.data = data
        self.checksum = 0
        self.until = 0.0

    def end(self, error: Exception | None) -> None:
        """It is known what became of it; its bytes are not needed any more."""
        self.done = True
        self.error = error
        self.data = b""

    def head(self) -> bytes:
        """What is said before its bytes."""
        return REQUEST.pack(
            MAGIC, WRITE, self.token, self.lease, self.offset, self.limit, len(self.data)
        )


class TCPPost(Post):
    """See the module."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self._lock = threading.Lock()
        self._gathered: list[Write] = []
        self._gathered_nbytes = 0
        self._tokens: set[bytes] = set()
        self._used: list[Connection] = []  # what `_sent` went on; one, or none
        self._sent: deque[Write] = deque()  # in the order of their answers
        self._sent_nbytes = 0
        self._unsent: list[bytes | memoryview] = []  # of `_sent`, what the kernel has not taken yet
        self._said = b""
        self._again: deque[Write] = deque()  # to be written one by one
        lines.posts.add(self)
        weakref.finalize(self, close_all, self._used)

    @property
    def under_way(self) -> int:
        return len(self._gathered) + len(self._sent) + len(self._again)

    def put(
        self, token: bytes, lease: int, offset: int, limit: int, data: bytes | memoryview
    ) -> Write:
        """Have ``data``, which nobody may change any more, written at ``offset``.

        What is too large for a row leaves before this returns.
        """
        write = Write(self, token, lease, offset, limit, data)
        nbytes = len(data)
        if nbytes <= ROW_NBYTES:
            write.checksum = xxhash.xxh3_64_intdigest(data)
        with self._lock:
            if self._again:
                self._push()
            gathered = self._gathered
            if gathered and (
                self._gathered_nbytes + nbytes > ROW_NBYTES
                or len(gathered) == ROW_WRITES
                or token in self._tokens
            ):
                self._push()
            most = max(UNDER_WAY_NBYTES, nbytes)
            while self._sent_nbytes > most or len(self._sent) > UNDER_WAY_WRITES:
                self._hear()
            if nbytes > ROW_NBYTES:
                self._send_large(write)
            else:
                self._gathered.append(write)
                self._gathered_nbytes += nbytes
                self._tokens.add(token)
        return write

    def push(self) -> None:
        with self._lock:
            self._push()

    def look(self) -> None:
        if not self._lock.acquire(blocking=False):
            return
        try:
            if self._gathered and not (self._unsent or self._again):
                self._send_now()
            if self._sent:
                self._hear(wait=False)
        finally:
            self._lock.release()

    def wait(self) -> None:
        with self._lock:
            before = self.under_way
            self._push()
            while self.under_way == before and (self._sent or self._again):
                if self._again:
                    self._write_again()
                else:
                    self._hear()

    def fileno(self) -> int:
        used = self._used
        return used[0].fileno() if used else -1

    # --- out ----------------------------------------------------------------------------

    def _push(self) -> None:
        """Send what was gathered, all of it, after what is to be written again."""
        while self._again:
            self._write_again()
        writes = self._take_gathered()
        try:
            line = self._connected(writes)
            if line is not None:
                self._add_row(writes)
                self._flow(line)
        except BaseException:
            self._interrupt(writes)
            raise

    def _send_now(self) -> None:
        """Send what was gathered, if there is a connection, as far as it goes without waiting."""
        writes: list[Write] = []
        try:
            if not self._used:
                line = self._lines.take()
                if line is None:
                    return
                self._used.append(line)
            writes = self._take_gathered()
            self._add_row(writes)
            self._lines.asked(self._used[0], lambda line: line.send_now(self._unsent))
        except Hangup:
            self._hung_up()
        except EntrepotError as error:
            self._fail(error)
        except BaseException:
            self._interrupt(writes)
            raise

    def _take_gathered(self) -> list[Write]:
        writes, self._gathered = self._gathered, []
        self._gathered_nbytes = 0
        self._tokens.clear()
        return writes

    def _add_row(self, writes: list[Write]) -> None:
        """Line their bytes up behind what is to be sent."""
        if not writes:
            return
        nbytes = sum(len(write.data) for write in writes)
        head = b"".join([write.head() for write in writes])
        if len(writes) > 1:
            head = REQUEST.pack(MAGIC, ROW, _NO_TOKEN, 0, 0, len(writes), nbytes) + head
        self._note_sent(writes, nbytes)
        self._unsent += [head, *[write.data for write in writes]]

    def _note_sent(self, writes: list[Write], nbytes: int) -> None:
        self._sent.extend(writes)
        self._sent_nbytes += nbytes
        until = self._lines.terms.until(self._sent_nbytes)
        for write in writes:
            write.until = until

    def _send_large(self, write: Write) -> None:
        """Send one, and sum each chunk of it while it is in the cache."""
        running = xxhash.xxh3_64()
        data = memoryview(write.data)
        unsent = self._unsent
        try:
            line = self._connected([write])
            if line is not None:
                self._note_sent([write], len(data))
                unsent.append(write.head())
            for start in range(0, len(data), CHUNK_NBYTES):
                chunk = data[start : start + CHUNK_NBYTES]
                if line is not None and self._used and self._used[0] is line:
                    unsent.append(chunk)
                    self._flow(line)
                running.update(chunk)
        except BaseException:
            self._interrupt([write])
            raise
        write.checksum = running.intdigest()

    def _flow(self, line: Connection) -> None:
        """Send all that is to be sent."""
        if not self._unsent:
            return
        until = self._sent[-1].until
        try:
            self._lines.asked(line, lambda line: line.send(self._unsent, until))
        except Hangup:
            self._hung_up()
        except MediumError as error:
            self._fail(error)

    def _connected(self, writes: list[Write]) -> Connection | None:
        """A connection to send them on, without those that the owner does not want any more.

        None, and none of them left, when there is no connection to be had.
        """
        if self._used:
            return self._used[0]
        lines = self._lines
        while writes:
            try:
                line = lines.take() or lines.connected(writes[0].token)[0]
                self._used.append(line)
                return line
            except Fenced as fenced:
                writes.pop(0).end(fenced)
            except EntrepotError as error:
                for write in writes:
                    write.end(error)
                writes.clear()
        return None

    # --- in -----------------------------------------------------------------------------

    def _hear(self, *, wait: bool = True) -> None:
        """Take note of what the owner says; waiting, of something."""
        (line,) = self._used
        try:
            if self._unsent:
                if wait:
                    self._flow(line)
                else:
                    self._lines.asked(line, lambda line: line.send_now(self._unsent))
                if not self._sent:
                    return
            said = self._lines.asked(line, lambda line: line.hear(wait=wait))
            if said:
                self._note(said)
                if not self._sent:
                    self._give_back(line)
            elif self._lines.terms.clock() >= self._sent[0].until:
                raise self._lines.terms.nothing_came()
        except Hangup:
            self._hung_up()
        except MediumError as error:
            self._fail(error)
        except BaseException:
            # What was heard may be lost, and the next answer must not be taken for it.
            self._interrupt([])
            raise

    def _note(self, said: bytes) -> None:
        """Whole answers, each to the oldest write; what is left is a part of the next.

        :raises MediumError: it is no answer.
        """
        said = self._said + said
        sent = self._sent
        at = 0
        while sent and len(said) - at >= ANSWER.size:
            if said.startswith(ANSWER_OK, at):
                at += ANSWER.size
                self._end(None)
                continue
            status, nbytes = ANSWER.unpack_from(said, at)
            if status not in ERRORS or nbytes > SENTENCE_NBYTES:
                raise no_answer(self._lines.terms)
            if len(said) - at < ANSWER.size + nbytes:
                break
            at += ANSWER.size
            self._end(refused(self._lines.terms, status, said[at : at + nbytes]))
            at += nbytes
        self._said = said[at:]

    def _give_back(self, line: Connection) -> None:
        """Everything was answered.

        :raises MediumError: and more than that.
        """
        if self._said or self._unsent:
            raise no_answer(self._lines.terms)
        line.stained = False
        self._used.clear()
        self._lines.give(line)

    def _end(self, error: Exception | None) -> None:
        write = self._sent.popleft()
        self._sent_nbytes -= len(write.data)
        write.end(error)

    # --- what goes wrong ----------------------------------------------------------------

    def _hung_up(self) -> None:
        """The owner closed the connection: it ended, or did not want one of them any more.

        What it said before counts. The others are written again by themselves, so that each is told
        of its own.
        """
        while self._used and self._sent:
            (line,) = self._used
            try:
                said = self._lines.asked(line, lambda line: line.hear(wait=False))
                if not said:
                    break
                self._note(said)
            except (Hangup, MediumError):
                break
        self._again.extend(self._let_go())

    def _write_again(self) -> None:
        """The oldest of those that are written one by one.

        Where the owner has no time for one it has none for the others.
        """
        write = self._again.popleft()
        parts = (memoryview(write.data),)
        try:
            self._lines.write(write.token, write.lease, write.offset, write.limit, parts, None)
        except MediumTimeout as error:
            write.end(error)
            while self._again:
                self._again.popleft().end(error)
        except EntrepotError as error:
            write.end(error)
        except BaseException:
            write.end(self._interruption())
            raise
        else:
            write.end(None)

    def _fail(self, error: Exception) -> None:
        """Nothing that was sent can be told of."""
        for write in self._let_go():
            write.end(error)

    def _interrupt(self, writes: list[Write]) -> None:
        """An exception came from outside, and nobody knows how far the sending was."""
        error = self._interruption()
        self._fail(error)
        for write in writes:
            if not write.done:
                write.end(error)

    def _interruption(self) -> MediumError:
        return MediumError(f"writing to {self._lines.terms.place} was interrupted")

    def _let_go(self) -> list[Write]:
        """Close the connection; what was sent on it and not answered."""
        writes = list(self._sent)
        self._sent.clear()
        self._sent_nbytes = 0
        self._unsent.clear()
        self._said = b""
        close_all(self._used)
        return writes

    def let_go_in_child(self) -> None:
        """A forked child has none of its parent's connections, and must not end its writes."""
        self._lock = threading.Lock()
        error = UsedAfterFork(f"what was under way to {self._lines.terms.place} is the parent's")
        for write in chain(self._let_go(), self._take_gathered(), self._again):
            write.end(error)
        self._again.clear()
