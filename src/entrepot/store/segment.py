"""A segment: all records of a finished block of trials in one blob, so that one read gets 1,000.

A record named ``<study>/segment/<block>``, which somebody claims, points at it. From then on the
segment is what the block holds, and the block's own files are not looked at again; they stay,
since a number must not become free. A segment that is missing or damaged closes nothing: the files
then speak as before.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from entrepot.errors import BadRecord
from entrepot.store.layout import (
    BLOCK_TRIALS,
    NAMES,
    SEGMENT,
    SUFFIX,
    TRIAL,
    block_at,
    is_hashed,
    key_of,
    segment_name,
)
from entrepot.store.record import FORMAT, Record, digest_of


class _Packed(msgspec.Struct, frozen=True):
    format: int
    study: str
    block: int
    records: list[Record]


_packed = msgspec.json.Decoder(_Packed)
_encoder = msgspec.json.Encoder()


class Segment:
    """A closed block.

    :ivar study: whose block it is.
    :ivar block: its number: trials ``1000 * block`` to ``1000 * block + 999``.
    :ivar meta: what was said beside it when it was claimed.
    :ivar data: JSON, ``{"format": 1, "study": ..., "block": ..., "records": [...]}``, with the
        records as in their files. Who has thousands to load decodes it into types of his own.
    """

    __slots__ = ("block", "data", "meta", "study")

    def __init__(self, study: str, block: int, meta: dict[str, str], data: bytes) -> None:
        self.study = study
        self.block = block
        self.meta = meta
        self.data = data

    def records(self) -> list[Record]:
        """Every record of the block, sorted by name; decoded anew at each call."""
        return _packed.decode(self.data).records

    def __repr__(self) -> str:
        return f"Segment({self.study!r}, {self.block}, {len(self.data)} bytes)"


def pack_segment(study: str, block: int, records: Sequence[Record]) -> bytes:
    """The blob that closes the block.

    The same records give the same bytes, in whatever order they come.

    :raises BadRecord: one of them is not of this block, or the study's name is too long for blocks.
    """
    folder = block_folder(study, block)
    for record in records:
        if key_of(record.name).rpartition("/")[0] != folder:
            raise BadRecord(
                f"{record.name!r:.100} is not in block {block} of {study!r:.100}: a segment has "
                f"records named {study}/trial/<n>/<attempt>, n from {block * BLOCK_TRIALS} on, "
                f"{BLOCK_TRIALS} of them"
            )
    ordered = sorted(records, key=lambda record: record.name)
    return _encoder.encode(_Packed(FORMAT, study, block, ordered)) + b"\n"


def read_segment(record: Record, data: bytes) -> Segment | None:
    """The segment that ``record`` points at, or None if these bytes are not its."""
    study, _, number = record.name.rpartition(f"/{SEGMENT}/")
    # What follows is as long as thousands of records, and is decoded only when it is wanted.
    if not number.isdecimal() or not data.startswith(_start(study, int(number))):
        return None
    if record.name != segment_name(study, int(number)) or digest_of(data) != record.digest:
        return None
    return Segment(study, int(number), record.meta, data)


def _start(study: str, block: int) -> bytes:
    return _encoder.encode(_Packed(FORMAT, study, block, []))[:-2]


def block_folder(study: str, block: int) -> str:
    """The folder of a block's records.

    :raises BadRecord: the study's name is so long that its trials have no blocks.
    """
    some = key_of(f"{study}/{TRIAL}/{max(block, 0) * BLOCK_TRIALS}/0")
    if block < 0 or is_hashed(some):
        raise BadRecord(f"{study!r:.100} has no block {block}: its name is too long, or below 0")
    return some.rpartition("/")[0]


def segments_beside(folder: str) -> str | None:
    """Where the segments are of the study whose trials, or block, ``folder`` is; else None."""
    if block_at(folder) is not None:
        folder = folder.rpartition("/")[0]
    above, _, last = folder.rpartition("/")
    return f"{above}/{SEGMENT}" if last == TRIAL and above.startswith(f"{NAMES}/") else None


def segment_of(folder: str) -> str | None:
    """The key of the record that closes the block whose folder this is; else None."""
    beside = segments_beside(folder)
    if beside is None or block_at(folder) is None:
        return None
    return f"{beside}/{folder.rpartition('/')[2]}{SUFFIX}"
