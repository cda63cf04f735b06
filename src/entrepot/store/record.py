"""A record: what a name points at, and what is said about it.

In a file or an object it is one line of JSON, with its keys always in the same order::

    {"name":"spam/trial/7/0","digest":"sha256:e3b0...","meta":{"state":"running"},
     "when":1796000000.25,"writer":"gpu-7-4711","nonce":"5f0c..."}

``format`` stands at its end when it is not 1. What is found under a name may have been left by a
crash, by another program, or by a later release; :func:`read_record` tells these apart, and
never raises: one bad file must not hide a thousand good ones.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NewType

import msgspec

from entrepot.errors import BadRecord

FORMAT = 1
"""The format of records and of the layout that this release writes; it reads none above."""

MAX_NAME_CHARS = 4096
MAX_RECORD_NBYTES = 256 * 1024
"""A record is read at every look at its study: what is larger than this belongs in a blob."""

Digest = NewType("Digest", str)
"""``sha256:`` and 64 hex digits in lower case: the name of some bytes."""

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_DIGESTS = re.compile(rb"sha256:[0-9a-f]{64}")
_NONCE = re.compile(r"[0-9a-zA-Z_-]{16,64}")


def digest_of(data: bytes | bytearray | memoryview) -> Digest:
    """The name of the bytes."""
    return Digest("sha256:" + hashlib.sha256(data).hexdigest())


EMPTY: Digest = digest_of(b"")
"""The blob of no bytes. Every store has it, so that a claim needs nothing put before it."""


def checked_digest(text: Any) -> Digest:
    """``text``, if it is a digest.

    :raises BadRecord: it is not.
    """
    if text == EMPTY:
        return Digest(text)
    if not isinstance(text, str) or not _DIGEST.fullmatch(text):
        raise BadRecord(
            f"{text!r:.100} is no digest, which reads sha256:<64 hex digits>; put gives one"
        )
    return Digest(text)


def digests_in(data: bytes) -> set[str]:
    """Every digest that stands anywhere in ``data``, whatever its format.

    What decides which blobs are needed looks for digests in this way, and so keeps those of a
    record that is torn, or of a format that this release does not know.
    """
    return {found.decode() for found in _DIGESTS.findall(data)}


class Record(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What a name points at.

    :ivar name: the name, as it was claimed or bound.
    :ivar digest: the blob.
    :ivar meta: what is said beside it, text to text.
    :ivar when: seconds since 1970 on the store's clock, as the writer knew it.
    :ivar writer: who wrote it, for people.
    :ivar nonce: 32 hex digits that no other write has; who knows them knows that it was theirs.
    :ivar format: 1.
    """

    name: str
    digest: str
    meta: dict[str, str]
    when: float
    writer: str
    nonce: str
    format: int = FORMAT


class Fault(StrEnum):
    """Why what stands under a name is no record that can be read."""

    TORN = "torn"
    """Empty, or the beginning of a record: its writer was killed, or the machine lost power."""
    FOREIGN = "foreign"
    """Another program's, or a record that belongs under another name."""
    FUTURE = "future"
    """Of a later format than this release knows."""


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Record)
_START = b'{"name":"'


class _Formatted(msgspec.Struct):
    name: str
    format: int


_formatted = msgspec.json.Decoder(_Formatted)


def pack_record(record: Record) -> bytes:
    """The record as it is written: a line of JSON.

    :raises BadRecord: a text in it cannot be written as UTF-8, or all of it is too large.
    """
    try:
        data = _encoder.encode(record) + b"\n"
    except (UnicodeEncodeError, ValueError, TypeError) as error:
        raise BadRecord(f"the record of {record.name!r:.100} cannot be written: {error}") from None
    if len(data) > MAX_RECORD_NBYTES:
        raise BadRecord(
            f"the record of {record.name!r:.100} has {len(data)} bytes, and a record at most "
            f"{MAX_RECORD_NBYTES}; put what is large as a blob, and its digest in the record"
        )
    return data


def read_record(data: bytes) -> Record | Fault:
    """The record, or what is wrong with it. Whether it is under its own key is not looked at."""
    try:
        record = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _fault(data)
    return record if record.format == FORMAT else _of_format(record.format)


def _of_format(format_: int) -> Fault:
    return Fault.FUTURE if format_ > FORMAT else Fault.FOREIGN


def _fault(data: bytes) -> Fault:
    try:
        return _of_format(_formatted.decode(data).format)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    # A write that a crash cut off leaves a beginning, and zeros for what was not yet on the disk.
    written = data.rstrip(b"\0")
    if not _START.startswith(written[: len(_START)]) or written.endswith(b"}\n"):
        return Fault.FOREIGN
    # A number that was cut off behind its point or sign is not truncated to a parser, but wrong.
    cut_off = _is_cut_off(written) or _is_cut_off(written + b"0")
    return Fault.TORN if cut_off else Fault.FOREIGN


def _is_cut_off(data: bytes) -> bool:
    """Whether this is the beginning of some JSON, and not the whole of it."""
    try:
        msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        return "truncated" in str(error)
    except (UnicodeDecodeError, RecursionError):
        return False
    return False


def bytes_in(data: bytes | bytearray | memoryview) -> memoryview:
    """A flat window on the bytes of a blob.

    :raises BadRecord: it has no buffer, or one that is not C-contiguous.
    """
    try:
        view = memoryview(data)
        return view.cast("B") if view.nbytes else memoryview(b"")
    except TypeError as error:
        raise BadRecord(
            f"a {type(data).__name__} is no blob ({error}); give bytes, or an array that is "
            f"C-contiguous"
        ) from None


def checked_name(name: Any) -> str:
    """``name``, if a record can have it: any text but the empty one, of 4,096 characters at most.

    :raises BadRecord: it cannot.
    """
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME_CHARS:
        raise BadRecord(f"a name is text of 1 to {MAX_NAME_CHARS} characters, got {name!r:.100}")
    if not name.isascii():
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise BadRecord(f"the name {name!r:.100} is not text: {error}") from None
    return name


def checked_prefix(prefix: Any) -> str:
    """``prefix``, if a name can begin with it; the empty one begins all.

    :raises BadRecord: it cannot.
    """
    return "" if prefix == "" else checked_name(prefix)


def checked_meta(meta: Mapping[str, str]) -> dict[str, str]:
    """A copy of ``meta``, if it is text to text.

    :raises BadRecord: it is not; numbers are not turned into text, since repr, str and a format
        would each do it differently.
    """
    if not isinstance(meta, Mapping):
        raise BadRecord(f"meta is a mapping of text to text, got {meta!r:.100}")
    copied = dict(meta)
    for key, value in copied.items():
        # Whether it can be written as UTF-8 shows when it is.
        if type(key) is not str or type(value) is not str:
            return _plain(copied)
    return copied


def _plain(meta: Mapping[Any, Any]) -> dict[str, str]:
    """The same, of plain text where there were words of an enumeration."""
    for key, value in meta.items():
        if not (isinstance(key, str) and isinstance(value, str)):
            raise BadRecord(
                f"meta is text to text, got {key!r:.100}: {value!r:.100}; write it as text first"
            )
    return {str.__str__(key): str.__str__(value) for key, value in meta.items()}


def checked_nonce(nonce: Any) -> str:
    """``nonce``, if it is 16 to 64 letters, digits, ``-`` and ``_``.

    :raises BadRecord: it is not.
    """
    if not isinstance(nonce, str) or not _NONCE.fullmatch(nonce):
        raise BadRecord(f"a nonce is 16 to 64 letters, digits, - and _, got {nonce!r:.100}")
    return nonce
