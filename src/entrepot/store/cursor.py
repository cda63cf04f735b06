"""What a reader has seen of a store, and what is new in a listing: pure, the same for all stores.

A listing gives each file a *tag*: the ETag of an object, or inode, time and size of a file. Another
tag is another record. The same tag is the same record, but for one thing: within the grain of a
file system's clock, a file can be replaced by one of the same inode, time and size. A file that
was read while its time could still recur is *fresh*; it is read again at the next look, and told
of if its nonce is another.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from entrepot.errors import ConfigurationError

Tag = Hashable
"""An ETag, or (inode, time of the last write in ns, size)."""

_NO_TAG = object()


class Listing(NamedTuple):
    """One folder of keys, as it was listed.

    :ivar files: the last part of each key in it that ends in ``.json``, with its tag.
    :ivar folders: the last part of each folder in it.
    :ivar fresh: files whose tag might come to stand for other bytes.
    :ivar strange: what else lies there and is not ours.
    """

    files: Mapping[str, Tag]
    folders: Collection[str] = ()
    fresh: frozenset[str] = frozenset()
    strange: Collection[str] = ()


NOTHING = Listing({})


class Seen(NamedTuple):
    """What is known of one folder: the tags that were read, and the nonces of fresh files."""

    files: Mapping[str, Tag]
    fresh: Mapping[str, str]


UNSEEN = Seen({}, {})


@dataclass(frozen=True)
class Cursor:
    """Up to where a reader has read. Immutable: an older one can be used again.

    :ivar store: the store's URL.
    :ivar prefix: what it was asked for.
    :ivar seen: what is known of each folder that is open.
    :ivar closed: folders of blocks that a segment closed, with the tag of the segment's record.
    """

    store: str
    prefix: str
    seen: Mapping[str, Seen] = field(default_factory=dict, repr=False)
    closed: Mapping[str, Tag] = field(default_factory=dict, repr=False)


def checked_cursor(cursor: Any, store: str, prefix: str) -> Cursor:
    """``cursor``, or the one that has seen nothing.

    :raises ConfigurationError: it was given out by another store, or for another prefix.
    """
    if cursor is None:
        return Cursor(store, prefix)
    if not isinstance(cursor, Cursor) or (cursor.store, cursor.prefix) != (store, prefix):
        raise ConfigurationError(
            f"{cursor!r:.200} is not a cursor of {prefix!r:.100} in {store}; give the one that "
            f"changes returned for it, or None for everything"
        )
    return cursor


def to_read(seen: Seen, listing: Listing) -> list[str]:
    """The files of a listing that have to be read: new, with another tag, or fresh before."""
    before = seen.files
    if not seen.fresh and before == listing.files:
        return []
    return [
        name
        for name, tag in listing.files.items()
        if before.get(name, _NO_TAG) != tag or name in seen.fresh
    ]


def is_new(seen: Seen, listing: Listing, name: str, nonce: str) -> bool:
    """Whether the record that was read from ``name`` is to be told of."""
    if seen.files.get(name, _NO_TAG) != listing.files[name]:
        return True
    return seen.fresh.get(name) != nonce


def after(seen: Seen, listing: Listing, nonces: Mapping[str, str]) -> Seen:
    """What is known once the files of :func:`to_read` were read.

    :param nonces: of those that were read, "" of what was no record. What vanished between the
        listing and the reading is not among them, and will be looked for again.
    """
    files = listing.files
    missed = [name for name in to_read(seen, listing) if name not in nonces]
    if missed:
        files = {name: tag for name, tag in files.items() if name not in set(missed)}
    fresh = {name: nonces[name] for name in listing.fresh if name in nonces}
    return Seen(files, fresh)
