"""Opening a bucket: is it a store that this release knows, and can names be claimed in it?"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import msgspec

from entrepot.errors import ConditionalPutIgnored, StoreError, StoreFormat
from entrepot.store import layout
from entrepot.store.clients import Use
from entrepot.store.clock import StoreClock, uptime
from entrepot.store.faults import NOT_SUPPORTED, Kind, fault_of
from entrepot.store.identity import host, new_nonce
from entrepot.store.record import FORMAT
from entrepot.store.requests import Requests

CLAIMS = "put"
"""What ``store.json`` says of how claims are made."""

PROBE = f"{layout.TMP}/probe-"

T = TypeVar("T")


class Manifest(msgspec.Struct, frozen=True):
    """``store.json``: the format of records and layout, and how claims are made."""

    format: int
    claims: str


def opened(requests: Requests, url: str, clock: StoreClock, *, read_only: bool) -> bool:
    """Find the store, or make it; whether it was made.

    :raises StoreFormat: it is of a later format, or there is none and ``read_only`` makes none.
    :raises ConditionalPutIgnored: see :func:`prove`.
    """
    manifest = _manifest(requests, url)
    if read_only:
        if manifest is None:
            raise StoreFormat(
                f"there is no store at {url} yet, and read_only makes none; open it for writing "
                f"once, or wait for who does"
            )
        return False
    clock.anchor(prove(requests, url))
    if manifest is None:
        data = msgspec.json.encode(Manifest(FORMAT, CLAIMS)) + b"\n"
        requests.send(layout.MANIFEST, data, "write the store's manifest")
    return manifest is None


def _manifest(requests: Requests, url: str) -> Manifest | None:
    data = _tried(requests, f"open {url}", lambda: requests.got(layout.MANIFEST, Use.ONCE))
    if data is None:
        return None
    try:
        found = msgspec.json.decode(data, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise StoreFormat(
            f"{layout.MANIFEST} at {url} is not what a store has there: {data[:80]!r}; choose "
            f"another prefix, or remove it if this is a store"
        ) from None
    if found.format != FORMAT:
        raise StoreFormat(
            f"{url} is a store of format {found.format}, and this release knows {FORMAT}; install "
            f"a later one"
        )
    return found


def prove(requests: Requests, url: str) -> float:
    """Whether the endpoint keeps the condition, in two requests; the time that it has.

    The names that are tried have 128 random bits: the first PUT has to win, and the second, of the
    same name, to lose. That says nothing of two at once: ``entrepot doctor store`` does.

    :raises ConditionalPutIgnored: it does not.
    """
    service, key = requests.location.service, f"{PROBE}{host()}-{new_nonce()}"
    doing = f"open {url} for writing"
    try:
        _tried(requests, doing, lambda: _wrote(requests, key))
        written = uptime()
        if _tried(requests, doing, lambda: _wrote(requests, key)):
            raise ConditionalPutIgnored(
                f"{service} wrote {requests.bucket_key(key)!r} twice although it was told "
                f"If-None-Match: *; on it every machine would win every claim. Use another store, "
                f"or a later release of this one: docs/stores.md lists some, and `entrepot doctor "
                f"store` tries one out"
            )
        there = requests.head(key, doing)
        if there is None:
            raise StoreError(
                f"{service} says that {requests.bucket_key(key)!r} is there, and has nothing "
                f"there; nobody would ever win a claim on it"
            )
        return float(there["last_modified"].timestamp()) + uptime() - written
    finally:
        try:
            requests.drop(key, doing)
        except StoreError:  # a few bytes; what matters has been said
            pass


def refuses_stale(requests: Requests) -> bool:
    """Whether a write that depends on an ETag is refused once that is another."""
    key, doing = f"{PROBE}{host()}-{new_nonce()}", "try a write with a stale If-Match"
    try:
        requests.send(key, b"first", doing)
        there = requests.head(key, doing)
        requests.send(key, b"second", doing)
        if there is None:
            raise StoreError(f"{requests.bucket_key(key)!r} vanished while it was tried out")
        return not requests.update(key, b"third", there, doing)
    finally:
        try:
            requests.drop(key, doing)
        except StoreError:  # gc takes it
            pass


def _wrote(requests: Requests, key: str) -> bool:
    """One conditional PUT. A server that has no such thing is refused."""
    try:
        requests.put(key, b"probe", Use.ONCE, mode="create")
        return True
    except Exception as error:
        fault = fault_of(error)
        if fault.kind is Kind.THERE:
            return False
        if fault.status == 501 or type(error).__name__ in NOT_SUPPORTED:
            raise ConditionalPutIgnored(
                f"{requests.location.service} has no conditional writes ({fault.said}), and so no "
                f"claims; docs/stores.md lists stores that have"
            ) from None
        raise


def _tried(requests: Requests, doing: str, act: Callable[[], T]) -> T:
    """Twice at most, since a person waits for it."""
    began = uptime()
    try:
        return act()
    except Exception as error:
        if isinstance(error, StoreError) or fault_of(error).kind is not Kind.UNCLEAR:
            requests.fail(error, doing, began)
    time.sleep(requests.settings.backoff_s)
    try:
        return act()
    except Exception as error:
        requests.fail(error, doing, began, 2)
