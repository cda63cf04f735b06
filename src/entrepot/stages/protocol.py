"""Requests to a stage and their replies, as bytes of a slot; self-describing, and never code.

::

    entrepot stage\\x01\\n  <u32: nbytes of the header>  <u32: 0>  <u64: XXH3>  <header>  <values>

The header is MessagePack; each value begins at a multiple of 64 bytes from the start. The checksum
is over all that follows it: the market verifies products, and nobody but the stage its input. A
reply is a product, so its checksum is 0 and not looked at. That of a request is written last, and
is 0 while the rest is being written: in memory that both sides see, its order may be there first.

Names of products are ``stage/<name>/<verb>``, of few verbs, whatever the steps.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from struct import Struct as Layout
from typing import Annotated, Any, Generic, TypeVar

import msgspec
import xxhash
from msgspec import Meta, Struct

from entrepot.errors import (
    BadStageMessage,
    ConfigurationError,
    EntrepotError,
    NoCheckpoint,
    NoGradient,
    OutOfStep,
    ProductTooLarge,
    StageError,
    StageFailed,
    StageFull,
    StageLost,
    StageMismatch,
    StageRequestLate,
)
from entrepot.errors.root import sentence_of
from entrepot.market.inputs import Input
from entrepot.mediums.base import Medium
from entrepot.mediums.buffers import checksum_of_copy, copy_summed
from entrepot.stages.values import VALUES, Item, Value, aligned, pack, unpack

PROTOCOL = 1
"""The version of replies and checkpoints: the byte before the magic's end."""

REQUESTS = 2
"""That of requests. In version 1 all of a request was there before its order was."""

HEADER_NBYTES = 1 << 20
"""Longest header."""

FORWARD = "forward"
BACKWARD = "backward"
STEP = "step"
DESCRIBE = "describe"
CHECKPOINT = "checkpoint"
RESTORE = "restore"
END = "end"

STATELESS = (FORWARD, DESCRIBE)
VERBS = (FORWARD, BACKWARD, STEP, DESCRIBE, CHECKPOINT, RESTORE, END)

ONE, TUPLE, DICT = "one", "tuple", "dict"
"""What a function returned, and so what its caller is given."""

_MAGIC = b"entrepot stage"
_PREFIX = Layout("<14sB1sIIQ")
_CHECKSUM = Layout("<Q")
_CHECKSUM_AT = _PREFIX.size - _CHECKSUM.size
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_ZEROS = bytes(64)

Count = Annotated[int, Meta(ge=0, le=2**62)]
Token = Annotated[str, Meta(max_length=64)]
Short = Annotated[str, Meta(max_length=512)]


class Request(Struct, omit_defaults=True, kw_only=True):
    """What is asked of a stage.

    :ivar wants: the stage's version that is asked for; empty for any.
    :ivar config: what the run's module is built from, as canonical JSON.
    :ivar begin: the nonce of who uses the run; another begins it anew.
    :ivar instance: the server that has the run's weights; empty before it has said so.
    :ivar step: how many steps were applied.
    :ivar call: the number of this call; 0 for one that leaves nothing behind.
    :ivar after: the call before it that was answered.
    :ivar of: the forward whose gradient this is; for a restore, the step that is wanted.
    :ivar train: the module's mode.
    :ivar keep: a backward may come.
    :ivar zero: gradients are zeroed before.
    :ivar names: the values whose gradient is wanted.
    """

    stage: Short
    verb: Token
    wants: Short = ""
    run: Short = ""
    config: Annotated[str, Meta(max_length=1 << 16)] = ""
    begin: Token = ""
    instance: Token = ""
    step: Count = 0
    call: Count = 0
    after: Count = 0
    of: Count | None = None
    train: bool = False
    keep: bool = False
    zero: bool = False
    names: list[str] = []
    items: list[Item] = []


class Reply(Struct, omit_defaults=True, kw_only=True):
    """What came of it.

    :ivar code: ``ok``, or the code of an error, whose sentence is ``error``.
    :ivar host: who answers.
    :ivar names: the values through which gradients flow.
    :ivar form: what to make of the values: one of them, a tuple, or a dict.
    """

    code: Token = "ok"
    error: str = ""
    host: str = ""
    instance: Token = ""
    step: Count = 0
    form: Token = ONE
    names: list[str] = []
    info: dict[str, str | int] = {}
    items: list[Item] = []


Header = TypeVar("Header", bound=Struct)


class Message(Input):
    """A header and values, as buffers that lie one after the other: what an order's input may be.

    :param sums: whether its checksum is still to be made; as late as can be, while it is written.
    """

    __slots__ = ("_sums",)

    def __init__(self, parts: list[Any], *, sums: bool = False) -> None:
        super().__init__(parts)
        self._sums = sums

    @property
    def parts(self) -> list[Any]:
        """The buffers; what a supplier's function may return."""
        if self._sums:
            running = xxhash.xxh3_64()
            for number, part in enumerate(self._parts):
                running.update(part if number else memoryview(part)[_PREFIX.size :])
            _CHECKSUM.pack_into(self._parts[0], _CHECKSUM_AT, _checksum(running))
            self._sums = False
        return list(self._parts)

    def announce(self, medium: Medium, offset: int) -> bool:
        if not (self._sums and medium.in_memory and medium.shared):
            return False
        front = memoryview(self._parts[0])[: _PREFIX.size]  # the checksum in it is 0
        medium.view(offset, len(front), writable=True)[:] = front
        return True

    def write(self, medium: Medium, offset: int) -> None:
        if medium.in_memory:
            self.write_into(medium.view(offset, self.nbytes, writable=True))
        else:
            self._parts = self.parts
            super().write(medium, offset)

    def write_into(self, out: memoryview) -> None:
        """Write it into so many bytes of memory, and sum each chunk while it is in the cache."""
        start = 0
        for part in self._parts:
            end = start + len(part)
            if not self._sums:
                out[start:end] = part
            elif not start:
                out[:end] = part
                running = xxhash.xxh3_64(out[_PREFIX.size : end])
            else:
                copy_summed(out[start:end], memoryview(part), running)
            start = end
        if self._sums:
            _CHECKSUM.pack_into(out, _CHECKSUM_AT, _checksum(running))

    def tobytes(self) -> bytes:
        return b"".join(self.parts)


class Codec(Generic[Header]):
    """One kind of message, to bytes and back.

    :param summed: whether its checksum is made and verified.
    :param version: what is written; what is of an earlier one is read as well.
    :param most: values of one message.
    :param header_nbytes: the longest header.
    """

    def __init__(
        self,
        kind: type[Header],
        *,
        summed: bool,
        version: int = PROTOCOL,
        most: int = VALUES,
        header_nbytes: int = HEADER_NBYTES,
    ) -> None:
        self._summed = summed
        self._version = version
        self._most = most
        self._header_nbytes = header_nbytes
        self._write = msgspec.msgpack.Encoder().encode
        self._read = msgspec.msgpack.Decoder(kind).decode

    def encode(self, header: Header, values: Mapping[str, object] | None = None) -> Message:
        """The message of them. Values are not copied where they are contiguous.

        :raises BadStageMessage: a value is none that can be sent.
        """
        items, buffers = pack(values or {}, self._most)
        header.items = items  # type: ignore[attr-defined]  # every header has them
        said = self._write(header)
        if len(said) > self._header_nbytes:
            raise BadStageMessage(
                f"a header has {len(said)} bytes; {self._header_nbytes} are allowed"
            )
        front = bytearray(aligned(_PREFIX.size + len(said)))
        front[_PREFIX.size : _PREFIX.size + len(said)] = said
        parts: list[Any] = [front]
        for number, buffer in enumerate(buffers, 1):
            parts.append(buffer)
            if number < len(buffers) and buffer.nbytes % 64:
                parts.append(_ZEROS[: -buffer.nbytes % 64])
        _PREFIX.pack_into(front, 0, _MAGIC, self._version, b"\n", len(said), 0, 0)
        return Message(parts, sums=self._summed)

    def decode_copy(self, data: memoryview, memory: memoryview) -> tuple[Header, dict[str, Value]]:
        """:meth:`decode` of a copy of ``data`` in ``memory``, of the same length."""
        memory[: _PREFIX.size] = data[: _PREFIX.size]
        checksum = checksum_of_copy(memory[_PREFIX.size :], data[_PREFIX.size :])
        return self.decode(memory, checksum or 1)

    def decode(
        self, data: memoryview, is_summed: int | None = None
    ) -> tuple[Header, dict[str, Value]]:
        """The header and the values, whose arrays are windows on ``data``.

        :param is_summed: its checksum, if that was just made.
        :raises BadStageMessage: it is no such message, or not all of one.
        :raises StageMismatch: it is one of another version.
        """
        if len(data) < _PREFIX.size:
            raise BadStageMessage(f"{len(data)} bytes are no message of a stage")
        magic, version, newline, nbytes, _, checksum = _PREFIX.unpack_from(data)
        if magic != _MAGIC or newline != b"\n":
            raise BadStageMessage("this is no message of a stage: it does not begin as one")
        if not 1 <= version <= self._version:
            raise StageMismatch(
                f"the other side speaks version {version} of the stages' protocol, and this one "
                f"{self._version}; install the same release on both"
            )
        start = aligned(_PREFIX.size + nbytes)
        if nbytes > self._header_nbytes or start > len(data):
            raise BadStageMessage(f"a header of {nbytes} bytes in a message of {len(data)}")
        if self._summed and checksum != (
            is_summed or _checksum(xxhash.xxh3_64(data[_PREFIX.size :]))
        ):
            raise BadStageMessage(
                "the message is not what was sent: its checksum is another; was its slot used for "
                "something else meanwhile?"
            )
        try:
            header = self._read(data[_PREFIX.size : _PREFIX.size + nbytes])
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise BadStageMessage(f"the header cannot be read: {error}") from None
        items: list[Item] = header.items  # type: ignore[attr-defined]
        return header, unpack(items, data, start, self._most)


REQUEST = Codec(Request, summed=True, version=REQUESTS)
REPLY = Codec(Reply, summed=False)


def _checksum(running: xxhash.xxh3_64) -> int:
    """As it stands in a prefix: of everything behind that, and never 0."""
    return running.intdigest() or 1


def is_written(data: memoryview) -> bool:
    """False for a request that :meth:`Message.announce` announced and that is not all there yet."""
    if len(data) < _PREFIX.size:
        return True
    magic, version, newline, _, _, checksum = _PREFIX.unpack_from(data)
    return checksum != 0 or (magic, version, newline) != (_MAGIC, REQUESTS, b"\n")


def checked_name(name: object) -> str:
    """A stage's name: what can stand in a product id, a pattern and a path as it is.

    :raises ConfigurationError: it is none.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"a stage's name has letters, digits, '_', '-' and '.', at most 128, got {name!r:.80}"
        )
    return name


def product_of(stage: str, verb: str) -> str:
    """The product that an order for it names."""
    return f"stage/{stage}/{verb}"


# --- errors -----------------------------------------------------------------------------

ERROR_CHARS = 4000
"""Longest sentence of an error in a reply; longer ones are cut."""

_KINDS: dict[str, type[StageError]] = {
    kind.code: kind
    for kind in (
        BadStageMessage,
        NoCheckpoint,
        NoGradient,
        OutOfStep,
        StageFailed,
        StageFull,
        StageLost,
        StageMismatch,
        StageRequestLate,
    )
}


def said_of(error: Exception) -> tuple[str, str]:
    """The code and the sentence under which an error travels in a reply."""
    text = sentence_of(error)
    if isinstance(error, StageError | ProductTooLarge):
        return error.code, text[:ERROR_CHARS]
    kind = type(error).__name__
    prefix = "" if isinstance(error, EntrepotError) else f"{kind}: "
    return StageFailed.code, prefix + text[:ERROR_CHARS]


def error_of(reply: Reply, stage: str) -> StageError | ProductTooLarge:
    """The error that a reply tells of."""
    if reply.code == ProductTooLarge.code:
        return ProductTooLarge(reply.error)
    return _KINDS.get(reply.code, StageError)(reply.error, stage, reply.host)
