"""A store in a bucket: S3 and what speaks like it, Google's, Azure's.

A claim is a PUT with ``If-None-Match: *``. Nothing is inferred from an error: whatever is no plain
success is read back, and the record there is the claim's own if it has its nonce. Whether the
endpoint keeps the condition at all is tried out whenever a store is opened for writing.

Requests are in :mod:`entrepot.store.requests`, opening in :mod:`entrepot.store.proof`, deletion
beside writers in :mod:`entrepot.store.tombs`; every rule that is not about requests is in
:mod:`entrepot.store.keyed`.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from entrepot.errors import ClaimUnsettled, StoreError, StoreUnreachable
from entrepot.settings import StoreSettings, read_settings
from entrepot.store import layout
from entrepot.store.clients import Use
from entrepot.store.clock import StoreClock, uptime
from entrepot.store.cursor import Listing, Tag
from entrepot.store.faults import LONGER, Kind, fault_of
from entrepot.store.identity import boot, host
from entrepot.store.keyed import KeyedStore
from entrepot.store.location import Location, located, location_at
from entrepot.store.primitives import stands_as
from entrepot.store.proof import opened, refuses_stale
from entrepot.store.record import MAX_RECORD_NBYTES, Record
from entrepot.store.requests import Requests, tag_of
from entrepot.store.tombs import CLOCK, Tombs

TORN_GRACE_S = 60.0
"""Age, in seconds, from which a torn record, which only a copy of a folder has, is nobody's."""

CLOCKS = 16
"""Objects that clocks are read off, since some services take one write a second of each."""


class BucketStore(KeyedStore):
    """A bucket, or a folder in one. :meth:`at` and :meth:`from_url` make it.

    :param read_only: write nothing, also not now. The store must be there already.
    :param writer: who writes, for people; stands in every record. By default host and process.
    :param settings: time-outs and tries; by default the environment's.
    :ivar made: whether there was no store until this one was opened.
    :raises StoreUnreachable: no answer, or no such bucket, within two time-outs.
    :raises StoreDenied: the credentials in the environment do not suffice.
    :raises ConditionalPutIgnored: the endpoint writes although it was told not to.
    :raises StoreFormat: the store is of a later format, or is none and ``read_only`` makes none.
    :raises MissingExtra: obstore is not installed.
    """

    def __init__(
        self,
        location: Location,
        *,
        read_only: bool = False,
        writer: str | None = None,
        settings: StoreSettings | None = None,
    ) -> None:
        super().__init__(location.url, read_only=read_only, writer=writer, clock=StoreClock())
        self.location = location
        self.settings = settings or read_settings().store
        self._requests = Requests(location, self.settings, os.environ)
        self._tombs = Tombs(self._requests)
        try:
            self.made = opened(self._requests, self.url, self._clock, read_only=read_only)
        except BaseException:
            self._requests.close()
            raise

    @classmethod
    def from_url(cls, url: str, **options: Any) -> BucketStore:
        """The store at ``s3://bucket/prefix?endpoint=...``, ``gs://`` or ``az://``.

        :raises ConfigurationError: it is no such URL.
        """
        return cls(location_at(url, os.environ), **options)

    @classmethod
    def at(
        cls,
        endpoint: str | None,
        bucket: str,
        prefix: str = "",
        *,
        region: str | None = None,
        **options: Any,
    ) -> BucketStore:
        """The store in an S3 bucket.

        :param endpoint: ``http://host:port``; None for AWS, or where ``AWS_ENDPOINT_URL`` says.
        :param region: by default ``AWS_REGION``, or us-east-1.
        :raises ConfigurationError: endpoint, bucket or prefix cannot be what they are.
        """
        where = located("s3", bucket, prefix, os.environ, endpoint=endpoint, region=region)
        return cls(where, **options)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        # For a process that is spawned with it. Credentials are its environment's.
        return _again, (self.location, self.read_only, self._writer, self.settings)

    def close(self) -> None:
        super().close()
        self._requests.close()

    def refuses_stale_writes(self) -> bool:
        """Whether the endpoint refuses a write with a stale ``If-Match``; tried out on it."""
        return refuses_stale(self._requests)

    # --- records ------------------------------------------------------------------------

    def _read(self, key: str) -> bytes | None:
        return self._requests.fetched(key, f"read {key}", most=MAX_RECORD_NBYTES + 1)

    def _read_many(self, keys: Sequence[str]) -> Iterator[bytes | None]:
        return self._requests.each(self._read, keys)

    def _create(self, key: str, record: Record, data: bytes) -> bool:
        said, began = "", uptime()
        for attempt in range(self.settings.attempts):
            if attempt:
                self._pause(attempt)
            try:
                self._requests.put(key, data, Use.ONCE, mode="create")
                self._anchor_if_due()
                return True
            except Exception as error:
                fault = fault_of(error)
                if fault.kind in (Kind.FINAL, Kind.NOT_THERE):
                    self._requests.fail(error, f"claim {record.name!r}")
                said = fault.said
            try:
                found = self._requests.got(key, Use.ONCE, MAX_RECORD_NBYTES + 1)
            except Exception as unread:
                said = f"{said}; then, when it was read back, {fault_of(unread).said}"
                continue
            standing = stands_as(found, record.nonce)
            if standing is not None:
                return standing
            if found is not None and not self._take_torn(key, data):
                return False
        tries = self.settings.attempts
        tried = f"tried {tries} times" if tries > 1 else "tried once"
        why = f"{said}; it was {tried} in {uptime() - began:.1f} s, and {LONGER}"
        raise ClaimUnsettled(record.name, record.nonce, why)

    def _take_torn(self, key: str, data: bytes) -> bool:
        """Write over a torn record that is old; False where it is too young.

        True says that it has to be read back once more.
        """
        doing = f"claim {key}, which is torn"
        there = self._requests.head(key, doing)
        if there is None:
            return True
        if self._clock.now() - there["last_modified"].timestamp() <= TORN_GRACE_S:
            return False
        try:
            self._requests.update(key, data, there, doing)
        except StoreUnreachable:  # it may have been written
            pass
        return True

    def _pause(self, attempt: int) -> None:
        settings = self.settings
        longest = min(settings.backoff_s * 2.0 ** (attempt - 1), settings.max_backoff_s)
        time.sleep(longest * random.uniform(0.5, 1.0))

    def _replace(self, key: str, record: Record, data: bytes) -> None:
        self._requests.send(key, data, f"bind {record.name!r}")
        self._anchor_if_due()

    def _remove(self, key: str) -> None:
        self._requests.drop(key, f"delete {key}", Use.STEADY)

    def _remove_many(self, keys: Sequence[str]) -> None:
        for _ in self._requests.each(self._remove, keys):
            pass

    def _list(self, folder: str) -> Listing:
        objects, folders, start = self._requests.listed(folder)
        files: dict[str, Tag] = {}
        strange: list[str] = []
        for meta in objects:
            name = meta["path"][start:]
            if name.endswith(layout.SUFFIX):
                files[name] = tag_of(meta)
            elif name:
                strange.append(name)
        return Listing(files, [path[start:].rstrip("/") for path in folders], strange=strange)

    def _list_many(self, folders: Sequence[str]) -> Iterator[Listing]:
        return self._requests.each(self._list, folders)

    # --- blobs --------------------------------------------------------------------------

    def _read_blob(self, key: str) -> bytes | None:
        return self._requests.fetched(key, f"get {key}", use=Use.BULK)

    def _read_blobs(self, keys: Sequence[str]) -> Iterator[bytes | None]:
        return self._requests.each(self._read_blob, keys)

    def _put_blob(self, key: str, data: memoryview) -> None:
        doing, began = f"put {len(data)} bytes", uptime()
        if len(data) <= self.settings.part_nbytes:
            try:
                self._requests.put(key, data, Use.BULK, mode="create")
                return
            except Exception as error:
                if fault_of(error).kind is not Kind.THERE:
                    self._requests.fail(error, doing, began)
        # It may be there, and gc may be about to remove it: writing it makes it young.
        for _ in range(self.settings.attempts):
            self._requests.send(key, data, doing, Use.BULK)
            if self._tombs.none_for(key):
                return
        raise StoreUnreachable(
            f"cannot {doing}: somebody removes {key} from {self.url} again and again"
        )

    def _blobs(self) -> Iterator[tuple[str, float, int, Tag]]:
        for key, meta in self._requests.below(layout.BLOBS):
            yield key, float(int(meta["last_modified"].timestamp())), meta["size"], tag_of(meta)

    def _remove_blob(self, key: str, tag: Tag) -> bool:
        return self._tombs.remove(key, tag)

    def _remove_blobs(self, blobs: Sequence[tuple[str, Tag]]) -> Iterator[bool]:
        return self._requests.each(lambda blob: self._remove_blob(*blob), blobs)

    def discard(self, key: str) -> None:
        """Remove a blob that nobody else can want."""
        self._requests.drop(key, f"remove {key}", Use.STEADY)

    def _tidy(self) -> None:
        self._tombs.sweep(self._clock.now())

    # --- the clock ----------------------------------------------------------------------

    def _stamp(self) -> float:
        number = hash((host(), boot(), os.getpid())) % CLOCKS
        key, doing = f"{CLOCK}{number:02d}", "read the store's clock"
        self._requests.send(key, b"", doing)
        there = self._requests.head(key, doing)
        if there is None:
            raise StoreError(f"{key} was removed from {self.url} while it was written")
        return float(there["last_modified"].timestamp())

    def _anchor_if_due(self) -> None:
        if self._clock.due:
            try:
                self._clock.anchor(self._stamp())
            except StoreError:  # what was to be written is; the next write tries again
                pass


def _again(
    location: Location, read_only: bool, writer: str | None, settings: StoreSettings
) -> BucketStore:
    return BucketStore(location, read_only=read_only, writer=writer, settings=settings)
