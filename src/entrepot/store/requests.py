"""Requests to one bucket: what is asked, and what an answer or the lack of one means.

A key here is one of :mod:`entrepot.store.layout`; the prefix is put before it on the way out and
taken off on the way in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import islice
from typing import Any, NoReturn, TypeVar

from entrepot.errors import EntrepotError
from entrepot.settings import StoreSettings
from entrepot.store import library
from entrepot.store.clients import Clients, Use
from entrepot.store.clock import uptime
from entrepot.store.cursor import Tag
from entrepot.store.faults import Kind, fault_of, in_words
from entrepot.store.location import Location

T = TypeVar("T")
U = TypeVar("U")

URL_LIVES = timedelta(minutes=1)

MOST_AT_ONCE_NBYTES = 5 << 20
"""What obstore sends in one request unless told otherwise; to tell it takes it twice as long."""

PAGE_KEYS = 1000
"""Keys that a service lists at once."""


class Requests:
    """See the module. Every method raises ``StoreError`` in words, but :meth:`put` and :meth:`got`.

    :param environment: where credentials are.
    """

    def __init__(
        self, location: Location, settings: StoreSettings, environment: Mapping[str, str]
    ) -> None:
        self.location = location
        self.settings = settings
        self._root = f"{location.prefix}/" if location.prefix else ""
        self._clients = Clients(location, settings, environment)

    def close(self) -> None:
        self._clients.close()

    # --- one object ---------------------------------------------------------------------

    def bucket_key(self, key: str) -> str:
        """The key in the bucket, prefix included."""
        return self._root + key

    def fetched(
        self, key: str, doing: str, *, use: Use = Use.STEADY, most: int | None = None
    ) -> bytes | None:
        """The bytes of an object, the first ``most`` of them; None if it is not there."""
        began = uptime()
        try:
            return self.got(key, use, most)
        except Exception as error:
            self.fail(error, doing, began)

    def got(self, key: str, use: Use, most: int | None = None) -> bytes | None:
        """:meth:`fetched`, with obstore's own errors."""
        obstore, client, path = library.obstore(), self._clients.at(use), self.bucket_key(key)
        try:
            found = obstore.get(client, path)
            if most is None or found.meta["size"] <= most:
                return bytes(found.bytes())
            return bytes(obstore.get_range(client, path, start=0, end=most))
        except Exception as error:
            if fault_of(error).kind is Kind.NOT_THERE:
                return None
            raise

    def head(self, key: str, doing: str) -> Mapping[str, Any] | None:
        """What the server says of an object, or None."""
        began = uptime()
        try:
            found: Mapping[str, Any] = library.obstore().head(
                self._clients.at(Use.STEADY), self.bucket_key(key)
            )
            return found
        except Exception as error:
            if fault_of(error).kind is Kind.NOT_THERE:
                return None
            self.fail(error, doing, began)

    def send(self, key: str, data: bytes | memoryview, doing: str, use: Use = Use.STEADY) -> None:
        """Write an object, whatever was there."""
        began = uptime()
        try:
            self.put(key, data, use)
        except Exception as error:
            self.fail(error, doing, began)

    def create(self, key: str, data: bytes, doing: str) -> bool:
        """Write an object if there is none; asked once."""
        began = uptime()
        try:
            self.put(key, data, Use.ONCE, mode="create")
            return True
        except Exception as error:
            if fault_of(error).kind is Kind.THERE:
                return False
            self.fail(error, doing, began)

    def update(self, key: str, data: bytes, there: Mapping[str, Any], doing: str) -> bool:
        """Write an object if it is still what :meth:`head` said; asked once."""
        began = uptime()
        version = {name: there[name] for name in ("e_tag", "version") if there[name] is not None}
        try:
            self.put(key, data, Use.ONCE, mode=version)
            return True
        except Exception as error:
            if fault_of(error).kind in (Kind.STALE, Kind.NOT_THERE):
                return False
            self.fail(error, doing, began)

    def drop(self, key: str, doing: str, use: Use = Use.ONCE) -> None:
        """Remove an object, if it is there."""
        began = uptime()
        try:
            library.obstore().delete(self._clients.at(use), self.bucket_key(key))
        except Exception as error:
            if fault_of(error).kind is not Kind.NOT_THERE:
                self.fail(error, doing, began)

    def put(self, key: str, data: bytes | memoryview, use: Use, **options: Any) -> None:
        """Write an object; what obstore raises is for :func:`~entrepot.store.faults.fault_of`."""
        nbytes = len(data)
        if nbytes > MOST_AT_ONCE_NBYTES:
            options["use_multipart"] = "mode" not in options and nbytes > self.settings.part_nbytes
            options["chunk_size"] = self.settings.part_nbytes
            options["max_concurrency"] = self.settings.concurrency
        library.obstore().put(self._clients.at(use), self.bucket_key(key), data, **options)

    def fail(
        self, error: Exception, doing: str, began: float | None = None, tries: int = 0
    ) -> NoReturn:
        """Raise what the error means. What obstore said goes no further: see ``faults``.

        :param began: when it was asked for, by :func:`~entrepot.store.clock.uptime`.
        :param tries: how often, if it was not obstore that tried again.
        """
        if isinstance(error, EntrepotError):
            raise error
        took_s = None if began is None else uptime() - began
        raise in_words(error, doing, self.location, tries, took_s) from None

    def signed_url_of_bucket(self, method: str) -> str:
        """The bucket's own URL, good for a minute; it is as good as a credential.

        Where nothing is signed, it is the plain one.
        """
        client = self._clients.at(Use.ONCE)
        if self._clients.are_anonymous:
            return f"{self.location.service}/{self.location.bucket}"
        try:
            return str(library.obstore().sign(client, method, "", URL_LIVES))
        except Exception as error:
            self.fail(error, f"sign for bucket {self.location.bucket!r}")

    # --- many ---------------------------------------------------------------------------

    def listed(self, folder: str) -> tuple[list[Mapping[str, Any]], list[str], int]:
        """What lies in a folder, one level deep: objects, folders, where their last part begins."""
        start, began = self.bucket_key(folder), uptime()
        try:
            found = library.obstore().list_with_delimiter(self._clients.at(Use.STEADY), start)
        except Exception as error:
            self.fail(error, f"list {folder}", began)
        return found["objects"], found["common_prefixes"], len(start) + 1

    def below(self, folder: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Every object in a folder, at any depth: its key and what the server says of it."""
        skip, began = len(self._root), uptime()
        try:
            for metas in library.obstore().list(
                self._clients.at(Use.STEADY), self.bucket_key(folder), chunk_size=PAGE_KEYS
            ):
                for meta in metas:
                    yield meta["path"][skip:], meta
                began = uptime()
        except Exception as error:
            self.fail(error, f"list {folder}", began)

    def each(self, act: Callable[[T], U], items: Sequence[T]) -> Iterator[U]:
        """``act`` of each item, in order; several at once, and not much ahead of who reads."""
        if len(items) < 2:
            yield from map(act, items)
            return
        most = min(self.settings.concurrency, len(items))
        with ThreadPoolExecutor(most, thread_name_prefix="entrepot-bucket") as threads:
            rest = iter(items)
            going = [threads.submit(act, item) for item in islice(rest, 4 * most)]
            try:
                while going:
                    yield going.pop(0).result()
                    going += [threads.submit(act, item) for item in islice(rest, 1)]
            finally:
                for future in going:
                    future.cancel()


def tag_of(meta: Mapping[str, Any]) -> Tag:
    """What tells one object's bytes and age from another's; listings quote an ETag or not."""
    etag = meta.get("e_tag")
    second = int(meta["last_modified"].timestamp())
    return (etag.strip('"') if etag else meta["size"], second)
