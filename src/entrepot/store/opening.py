"""Which store a path or URL means."""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from entrepot.errors import ConfigurationError
from entrepot.logs import masked
from entrepot.store.base import Store

if TYPE_CHECKING:
    from entrepot.settings import StoreSettings

BUCKET_SCHEMES = ("s3", "gs", "az")


def open_store(
    url: str | os.PathLike[str],
    *,
    read_only: bool = False,
    durable: bool | None = None,
    settings: StoreSettings | None = None,
) -> Store:
    """See :meth:`entrepot.store.Store.open`.

    :param settings: of a bucket; by default those of the environment.
    """
    path = folder_of(url)
    if path is None:
        options = {} if settings is None else {"settings": settings}
        return _bucket().from_url(url, read_only=read_only, **options)  # type: ignore[no-any-return]
    from entrepot.store.folder import FolderStore

    return FolderStore(path, read_only=read_only, durable=durable is not False)


def check_url(url: str) -> None:
    """Whether a store can be there at all. Asks nobody, so it says nothing of whether one is.

    :raises ConfigurationError: it is no path, and no URL of a store.
    :raises MissingExtra: it is in a bucket, and obstore is not installed.
    """
    path = folder_of(url)
    if path is None:
        from entrepot.store import library
        from entrepot.store.location import location_at

        location_at(url, os.environ)
        library.obstore()
        return
    from entrepot.store.folder import checked_path

    checked_path(path)


def folder_of(url: str | os.PathLike[str]) -> str | os.PathLike[str] | None:
    """The path that is meant; None for a bucket.

    :raises ConfigurationError: it is a URL of something else, or no path.
    """
    if not isinstance(url, str):
        from entrepot.store.folder import checked_path

        return checked_path(url)
    scheme, found, _ = url.partition("://")
    if not found:
        return url
    if scheme == "file":
        parts = urlsplit(url)
        if parts.netloc not in ("", "localhost") or parts.query or parts.fragment:
            raise ConfigurationError(
                f"{masked(url)!r:.200} is no folder of this machine; write file:///its/path"
            )
        return unquote(parts.path)
    if scheme in BUCKET_SCHEMES:
        return None
    raise ConfigurationError(
        f"{masked(url)!r:.200} is no store: give a path, or a URL that begins with file://, "
        f"{', '.join(f'{each}://' for each in BUCKET_SCHEMES)}"
    )


def on_bucket(endpoint: str, bucket: str, prefix: str = "", **options: Any) -> Store:
    """See :meth:`entrepot.store.Store.on_bucket`."""
    return _bucket().at(endpoint, bucket, prefix, **options)  # type: ignore[no-any-return]


def _bucket() -> Any:
    # By name, so that a folder needs nothing of it, not even for type checkers.
    return import_module("entrepot.store.bucket").BucketStore
