"""Where things lie in a store: names to keys and back, the same in a folder and in a bucket.

A key is a path below the store, with ``/`` between its parts, all of it ASCII::

    store.json
    blobs/<two hex digits>/<64 hex digits>
    names/<study>/trial/<block of 1,000, six digits>/<n>.<attempt>.json
    names/<any other name>.json
    tmp/...                                             a folder only

The name ``spam/trial/12345/0`` is ``names/spam/trial/000012/12345.0.json``, so that a folder has at
most a few thousand files and what is old need not be listed to find what is new. In every other
name each ``/`` is a folder, and what a file system or S3 might object to is percent-encoded:

- any byte of UTF-8 but ``A-Z a-z 0-9 _ - .``, and a dot in front: no ``..``, no hidden files;
- an empty part is ``%``; the dot of ``.json`` at the end of a folder's name is ``%2E``, so
  that ``a`` and ``a.json/b`` can both be there;
- six or more digits after ``trial`` begin with ``%3``: such folders are the blocks' alone.

File systems allow 255 bytes a part, and S3 1,024 a key. Where a part has more than 120, or all
of them together more than 480, that part and what follows it become ``%%`` and the SHA-256 of the
whole name. Such a key does not say its name, but the record does.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from urllib.parse import unquote_to_bytes

NAMES = "names"
BLOBS = "blobs"
TMP = "tmp"
MANIFEST = "store.json"

TRIAL = "trial"
SEGMENT = "segment"
SUFFIX = ".json"

BLOCK_TRIALS = 1000
"""Trials of a block: a folder of records, and what one segment holds."""

MAX_PART_BYTES = 120
MAX_PARTS_BYTES = 480

_TRIAL_KEY = re.compile(r"(?:0|[1-9][0-9]{0,14})\.(?:0|[1-9][0-9]{0,14})")
_BLOCK = re.compile(r"[0-9]{6,}")
_SAFE = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*")
_SAFE_BYTES = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.")
_HASHED = re.compile(r"%%[0-9a-f]{64}")
_HEX = re.compile(r"[0-9a-f]{64}")


# --- blobs ------------------------------------------------------------------------------


def blob_key(digest: str) -> str:
    """The key of a blob; ``digest`` has been checked."""
    hex_ = digest[-64:]
    return f"{BLOBS}/{hex_[:2]}/{hex_}"


def digest_at(key: str) -> str | None:
    """The digest of the blob at ``key``, or None where no blob of ours would be."""
    parts = key.split("/")
    if len(parts) != 3 or parts[0] != BLOBS or not _HEX.fullmatch(parts[2]):
        return None
    return f"sha256:{parts[2]}" if parts[2].startswith(parts[1]) and len(parts[1]) == 2 else None


BLOB_FOLDERS = tuple(f"{BLOBS}/{first:02x}" for first in range(256))


# --- names ------------------------------------------------------------------------------


def key_of(name: str) -> str:
    """The key of the record of ``name``; the name has been checked. Two names have two keys."""
    study, is_trial, rest = name.rpartition("/trial/")
    number, _, attempt = rest.partition("/")
    if is_trial and study and _is_number(number) and _is_number(attempt):
        folder = _folder_of_parts(study)
        if len(folder) < MAX_PARTS_BYTES - 60 and "%%" not in folder:
            block = block_of(int(number))
            return f"{NAMES}/{folder}/{TRIAL}/{block:06d}/{number}.{attempt}{SUFFIX}"
        return _hashed(name, f"{study}/{TRIAL}")
    above, slash, leaf = name.rpartition("/")
    folder = _folder_of_parts(above) + "/" if slash else ""
    encoded = _encoded(leaf)
    if slash and above.rpartition("/")[2] == TRIAL:
        encoded = _not_a_block(encoded)
    if (
        "%%" in folder
        or len(encoded) > MAX_PART_BYTES
        or len(folder) + len(encoded) > MAX_PARTS_BYTES
    ):
        return _hashed(name, above if slash else "")
    return f"{NAMES}/{folder}{encoded}{SUFFIX}"


def name_of(key: str) -> str | None:
    """The name whose record is at ``key``.

    None where none of ours would be, and for a key that does not say its name
    (:func:`is_hashed`).
    """
    parts = key.split("/")
    if len(parts) < 2 or parts[0] != NAMES or not key.endswith(SUFFIX):
        return None
    parts[-1] = parts[-1][: -len(SUFFIX)]
    try:
        if (
            len(parts) >= 5
            and parts[-3] == TRIAL
            and _BLOCK.fullmatch(parts[-2])
            and _TRIAL_KEY.fullmatch(parts[-1])
        ):
            number, _, attempt = parts[-1].partition(".")
            name = "/".join([*map(_decoded, parts[1:-2]), number, attempt])
        else:
            name = "/".join(map(_decoded, parts[1:]))
    except ValueError:
        return None
    return name if name and key_of(name) == key else None


def is_hashed(key: str) -> bool:
    """Whether ``key`` is one that only its record gives a name to."""
    return _HASHED.fullmatch(key.rpartition("/")[2].removesuffix(SUFFIX)) is not None


def is_at(name: str, key: str) -> bool:
    """Whether the record of ``name`` belongs at ``key``."""
    return key_of(name) == key


def folder_of(prefix: str) -> str:
    """The folder below which every record lies whose name begins with ``prefix``.

    Others may lie there as well; see :func:`is_whole`.
    """
    above, slash, _ = prefix.rpartition("/")
    if not slash:
        return NAMES
    parts = above.split("/")
    for place in range(1, len(parts) - 1):
        # A trial's own number is no folder: it is in its file's name.
        if parts[place] == TRIAL and parts[place + 1].isdecimal():
            above = "/".join(parts[: place + 1])
            break
    folder = _folder_of_parts(above)
    return f"{NAMES}/{folder.partition('%%')[0].rstrip('/')}".rstrip("/")


def is_whole(prefix: str) -> bool:
    """Whether every name below ``folder_of(prefix)``, but for hashed ones, begins with it."""
    if not prefix:
        return True
    return prefix.endswith("/") and folder_of(prefix) == f"{NAMES}/{_folder_of_parts(prefix[:-1])}"


def _is_number(text: str) -> bool:
    """Whether this is how a number below 10**15 is written, in one way only."""
    if not (text.isdecimal() and text.isascii()):
        return False
    return text == "0" or (text[0] != "0" and len(text) <= 15)


def _hashed(name: str, above: str) -> str:
    folder = _folder_of_parts(above).partition("%%")[0].rstrip("/") if above else ""
    hashed = "%%" + hashlib.sha256(name.encode()).hexdigest() + SUFFIX
    return f"{NAMES}/{folder}/{hashed}" if folder else f"{NAMES}/{hashed}"


@lru_cache(maxsize=4096)
def _folder_of_parts(above: str) -> str:
    """The folders of a name's parts but the last; ``%%`` at its end: not all of them fit."""
    encoded: list[str] = []
    nbytes = 0
    before = ""
    for part in above.split("/"):
        folder = _encoded(part)
        if folder[-5:].lower() == SUFFIX:
            folder = f"{folder[:-5]}%2E{folder[-4:]}"
        if before == TRIAL:
            folder = _not_a_block(folder)
        nbytes += len(folder) + 1
        if len(folder) > MAX_PART_BYTES or nbytes > MAX_PARTS_BYTES:
            return "/".join([*encoded, "%%"])
        encoded.append(folder)
        before = part
    return "/".join(encoded)


def _not_a_block(encoded: str) -> str:
    return f"%3{encoded}" if _BLOCK.fullmatch(encoded) else encoded


def _encoded(part: str) -> str:
    if _SAFE.fullmatch(part):
        return part
    if not part:
        return "%"
    said = "".join(chr(byte) if byte in _SAFE_BYTES else f"%{byte:02X}" for byte in part.encode())
    return f"%2E{said[1:]}" if said[0] == "." else said


def _decoded(part: str) -> str:
    """:raises ValueError: these bytes are not UTF-8."""
    return "" if part == "%" else unquote_to_bytes(part).decode()


# --- blocks and segments ----------------------------------------------------------------


def block_of(number: int) -> int:
    """The block that a trial is in."""
    return number // BLOCK_TRIALS


def segment_name(study: str, block: int) -> str:
    """The name of the record that closes a block."""
    return f"{study}/{SEGMENT}/{block:06d}"


def block_at(folder: str) -> int | None:
    """The number of the block whose folder this is, such as ``names/spam/trial/000012``."""
    above, _, last = folder.rpartition("/")
    if not above.endswith(f"/{TRIAL}") or not _BLOCK.fullmatch(last):
        return None
    number = int(last)
    return number if f"{number:06d}" == last else None
