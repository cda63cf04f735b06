"""``store.json``: that a folder is a store, of which format, and how claims are made in it."""

from __future__ import annotations

from contextlib import suppress

import msgspec

from entrepot.errors import StoreFormat, StoreUnreachable
from entrepot.store import layout
from entrepot.store.calls import NO_LINKS
from entrepot.store.files import Files
from entrepot.store.identity import new_nonce
from entrepot.store.record import FORMAT

LINK = "link"
EXCLUSIVE = "exclusive"


class Manifest(msgspec.Struct, frozen=True):
    """What ``store.json`` says.

    :ivar format: of records and layout.
    :ivar claims: ``link``, or ``exclusive`` where the file system has no hard links.
    """

    format: int
    claims: str


_decoder = msgspec.json.Decoder(Manifest)


def read_manifest(files: Files) -> Manifest | None:
    """The manifest; None where there is none, or where a crash left it torn.

    :raises StoreFormat: it is a later release's, or not ours.
    """
    try:
        data = files.read(layout.MANIFEST)
    except StoreUnreachable:
        return None
    if data is None or not data.strip(b"\0"):
        return None
    try:
        found = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise StoreFormat(
            f"{files.path(layout.MANIFEST)} is not what a store has there: {data[:80]!r}; choose "
            f"another folder, or remove that file if this is a store"
        ) from None
    if found.format != FORMAT:
        raise StoreFormat(
            f"{files.root} is a store of format {found.format}, and this release knows {FORMAT}; "
            f"install a later one"
        )
    return found


def make_manifest(files: Files) -> Manifest:
    """Make the folders, see whether there are hard links, and write the manifest.

    Any number may do so at once: all of them write the same.
    """
    for folder in (layout.BLOBS, layout.NAMES, layout.TMP):
        with suppress(FileExistsError):
            files.calls.mkdir(files.path(folder))
    manifest = Manifest(FORMAT, LINK if _has_links(files) else EXCLUSIVE)
    data = msgspec.json.encode(manifest) + b"\n"
    written = files.temporary(data, new_nonce())
    try:
        files.calls.rename(written, files.path(layout.MANIFEST))
    except BaseException:
        files.remove(written)
        raise
    files.sync_folder(files.path(layout.MANIFEST))
    return manifest


def _has_links(files: Files) -> bool:
    one = files.temporary(b"", new_nonce())
    other = f"{one}-link"
    try:
        files.calls.link(one, other)
    except OSError as error:
        if error.errno in NO_LINKS:
            return False
        raise
    finally:
        files.remove(one)
        files.remove(other)
    return True
