"""What every store is: blobs that are named by their bytes, and records that names point at.

A store is all that the machines of a study have in common. There is no server, no lock and no
lease: :meth:`Store.claim` points a name at some bytes only if nobody has, and that one method is
the whole of the coordination.

A store of your own that has keys and bytes is best made from
:class:`~entrepot.store.keyed.KeyedStore`, which needs a few plain primitives; the suite that proves
it is ``entrepot.testing.StoreContract``.
"""

from __future__ import annotations

from abc import ABC, ABCMeta, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from entrepot.store.record import EMPTY, Digest, Fault, Record

if TYPE_CHECKING:
    import os
    from typing import Self

    from entrepot.store.cursor import Cursor
    from entrepot.store.segment import Segment

GRACE_S = 24 * 3600.0
"""Age, in seconds, below which :meth:`Store.gc` takes no blob, unless it is told otherwise."""

S = TypeVar("S", bound="Store")
F = TypeVar("F", bound=Callable[..., Any])

if TYPE_CHECKING:
    # Type checkers would refuse Store("/mnt/shared"): to them the class would be abstract.
    def required(method: F) -> F: ...
else:
    required = abstractmethod


@dataclass(frozen=True)
class Changes:
    """What :meth:`Store.changes` found.

    :ivar records: records that are new or were written again, in no order; one that was told of
        before may be among them once more, none is left out.
    :ivar closed: blocks that a segment has closed since. What was told of a block before is void:
        its segment says all that ever counts.
    :ivar cursor: to be given to the next call.
    """

    records: list[Record]
    closed: list[Segment]
    cursor: Cursor


@dataclass(frozen=True)
class Swept:
    """What :meth:`Store.gc` removed, or would remove.

    :ivar digests: the blobs.
    :ivar nbytes: their bytes together.
    :ivar kept: blobs that are needed, or too young.
    """

    digests: list[Digest]
    nbytes: int
    kept: int


@dataclass
class Skipped:
    """Files and objects that are where records are and could not be read, by key.

    At most ``most`` are remembered; ``more`` counts the others.
    """

    faults: dict[str, Fault] = field(default_factory=dict)
    more: int = 0
    most: int = 10_000

    def note(self, key: str, fault: Fault) -> bool:
        """Whether this is new."""
        if self.faults.get(key) is fault:
            return False
        if key not in self.faults and len(self.faults) >= self.most:
            self.more += 1
            return False
        self.faults[key] = fault
        return True

    def clear(self, key: str) -> None:
        """It can be read now, or is no longer there."""
        self.faults.pop(key, None)

    def count(self, fault: Fault) -> int:
        return list(self.faults.values()).count(fault)


class _StoreType(ABCMeta):
    """So that ``Store("/mnt/shared")`` is a store in that folder."""

    def __call__(cls: type[S], *args: Any, **options: Any) -> S:  # type: ignore[misc]
        made: type[Any] = cls
        if cls is Store:
            from entrepot.store.folder import FolderStore

            made = FolderStore
        return ABCMeta.__call__(made, *args, **options)  # type: ignore[no-any-return]


class Store(ABC, metaclass=_StoreType):
    """A folder or a bucket, with the same layout and the same JSON.

    ``Store("/mnt/shared/studies")`` is a folder, :meth:`on_bucket` a bucket, and :meth:`open` takes
    the URL of either. A store can be used by many threads, and in forked children.

    Every method may raise, besides what it says itself: ``StoreUnreachable`` (the folder is not
    there, the endpoint does not answer), ``StoreDenied`` (permissions, credentials), ``StoreFull``,
    ``StoreReadOnly``, ``Closed``, and ``BadRecord`` for a name, digest or meta that cannot be.

    :ivar url: what :meth:`open` takes to get the same store; without credentials.
    :ivar read_only: nothing is written, and what would write raises ``StoreReadOnly``.
    :ivar skipped: what could not be read when it was last looked at.
    """

    url: str
    read_only: bool
    skipped: Skipped

    if TYPE_CHECKING:

        def __init__(
            self,
            path: str | os.PathLike[str],
            *,
            read_only: bool = False,
            durable: bool = True,
            torn_grace_s: float = 60.0,
            writer: str | None = None,
        ) -> None:
            """See :class:`entrepot.store.folder.FolderStore`."""

    # --- opening ------------------------------------------------------------------------

    @staticmethod
    def open(
        url: str | os.PathLike[str], *, read_only: bool = False, durable: bool | None = None
    ) -> Store:
        """The store at a path or URL: ``/mnt/shared``, ``file:///mnt/shared``,
        ``s3://bucket/prefix?endpoint=http://host:9000``, ``gs://bucket``, ``az://container``.

        :param read_only: write nothing, neither now nor later.
        :param durable: False leaves out the fsyncs of a folder; a bucket knows no such thing.
        :raises ConfigurationError: it is none of these.
        """
        from entrepot.store.opening import open_store

        return open_store(url, read_only=read_only, durable=durable)

    @staticmethod
    def on_bucket(endpoint: str, bucket: str, prefix: str = "", **options: Any) -> Store:
        """The store in an S3 bucket, below ``prefix``.

        Credentials are taken from the usual environment. See
        :class:`entrepot.store.bucket.BucketStore` for the options.

        :raises ConditionalPutIgnored: the endpoint writes although it was told not to: every
            machine would win every claim.
        :raises MissingExtra: obstore is not installed.
        """
        from entrepot.store.opening import on_bucket

        return on_bucket(endpoint, bucket, prefix, **options)

    def close(self) -> None:
        """Let go of connections. Any number of times; what is used afterwards raises ``Closed``."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    # --- blobs --------------------------------------------------------------------------

    @required
    def put(self, data: bytes | bytearray | memoryview) -> Digest:
        """Write the bytes, once, and return their name.

        When it returns they are all there and, unless ``durable=False``, outlive a power cut. A put
        that finds its blob makes it young again, so that gc does not take it.
        """
        raise NotImplementedError

    @required
    def get(self, digest: str) -> bytes:
        """The bytes.

        :raises MissingBlob: they are not in this store.
        :raises CorruptBlob: what is there does not have this digest.
        """
        raise NotImplementedError

    def get_many(self, digests: Sequence[str]) -> list[bytes | None]:
        """The bytes of each, in order; None where they are missing.

        :raises CorruptBlob: what is there does not have this digest.
        """
        from entrepot.errors import MissingBlob

        found: list[bytes | None] = []
        for digest in digests:
            try:
                found.append(self.get(digest))
            except MissingBlob:
                found.append(None)
        return found

    # --- names --------------------------------------------------------------------------

    @required
    def claim(
        self,
        name: str,
        digest: str = EMPTY,
        meta: Mapping[str, str] | None = None,
        *,
        nonce: str | None = None,
    ) -> bool:
        """Point the name at the bytes only if nobody has, and say whether it did.

        Of all that claim a name, on whatever machines, exactly one is told True, and the record is
        that one's. There is no default made of the other verbs: it would be a race.

        :param nonce: 32 random hex digits, by default new ones; a claim that is repeated with the
            same nonce is still the same claim.
        :raises ClaimUnsettled: the store failed in the middle and could not be read back: the name
            may be ours. The error has the nonce; claim again with it, or compare it.
        """
        raise NotImplementedError

    @required
    def bind(
        self,
        name: str,
        digest: str = EMPTY,
        meta: Mapping[str, str] | None = None,
        *,
        nonce: str | None = None,
    ) -> None:
        """Point the name at the bytes, whatever was there. Readers see the old record or the new.

        When it returns the record outlives a power cut, unless ``durable=False``.
        """
        raise NotImplementedError

    @required
    def resolve(self, name: str) -> Record | None:
        """What the name points at; None if nobody claimed or bound it.

        What stands there and cannot be read is None as well, and noted in ``skipped``.
        """
        raise NotImplementedError

    def resolve_many(self, names: Sequence[str]) -> list[Record | None]:
        """:meth:`resolve` of each, in order."""
        return [self.resolve(name) for name in names]

    @required
    def scan(self, prefix: str = "") -> list[Record]:
        """Every record whose name begins with ``prefix``, sorted by name.

        End the prefix with ``/`` to name a folder: ``spam/`` has not the records of ``spam2``.
        What cannot be read is left out, and noted in ``skipped``; it never raises for
        somebody else's file. Of a closed block it gives what the segment says.
        """
        raise NotImplementedError

    @required
    def changes(self, prefix: str = "", cursor: Cursor | None = None) -> Changes:
        """What is new below ``prefix`` since ``cursor`` was given out; everything without one.

        Its cost grows with what changed and with the blocks that are open, not with what there is:
        blocks that a segment closed are not listed again, and only those files are read
        whose inode, time or size, or those objects whose ETag, is another. Names that were
        deleted are not told of.

        :raises ConfigurationError: the cursor is another store's, or another prefix's.
        """
        raise NotImplementedError

    @required
    def delete(self, prefix: str) -> int:
        """Remove every record whose name begins with ``prefix``, and return how many.

        For what is finished with: a name that is deleted can be claimed again, and a closed block
        of which one is deleted is open again.

        :raises BadRecord: the prefix is empty.
        """
        raise NotImplementedError

    # --- the store itself ---------------------------------------------------------------

    @required
    def now(self) -> float:
        """Seconds since 1970 on the store's own clock, read off what it stamps on a write."""
        raise NotImplementedError

    @required
    def close_block(self, study: str, block: int, records: Sequence[Record]) -> bool:
        """Close a block of 1,000 trials, and say whether it was us: later calls change nothing.

        The records become one segment, and are from then on what the block holds for ``scan`` and
        ``changes``: whatever is claimed or bound in it later is never told of. Its names stay
        taken.

        :param records: all that there are in the block.
        :raises BadRecord: one of them is not in the block.
        """
        raise NotImplementedError

    @required
    def gc(self, grace_s: float = GRACE_S, *, dry_run: bool = True) -> Swept:
        """Remove blobs that are older than the grace and that nothing needs.

        A blob is needed when its digest stands in a record, as its digest or anywhere in its meta,
        or in a segment. Safe beside writers: what is put again while gc runs stays.

        :param grace_s: longer than anybody takes from the put of a blob to the claim or bind that
            names it.
        """
        raise NotImplementedError
