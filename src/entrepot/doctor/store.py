"""Whether a store keeps what a study relies on, tried out on the store itself.

A store is opened by 16 clients that race for the same names, which shows what no test of one client
at a time does. What is written to try is removed again. All clients are on this machine: a file
system that is right here may still be wrong between two machines.
"""

from __future__ import annotations

import random
import secrets
import statistics
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

from entrepot.doctor.filesystem import NETWORK_FILESYSTEMS, filesystem_of
from entrepot.doctor.finding import Finding, Level, sized, timed
from entrepot.errors import ConditionalPutIgnored, EntrepotError, StoreError
from entrepot.store import Store
from entrepot.store.folder import FolderStore
from entrepot.store.layout import blob_key

CLIENTS = 16
NAMES = 50
"""Clients that race, and names that they race for."""

LANES = 10
"""Names that are raced for at once, each by all clients: some servers make the losers wait."""

LOOKS = 20
"""Times that one client looks for what another has just written."""

BLOB_NBYTES = (64 << 10, 12 << 20)
"""Blobs that are put: one of a usual size, and one that a bucket takes in parts."""

LATE_S = 60.0
"""How long a race may take before a client is thought to hang."""

SKEW_S = 5.0
"""A difference between this machine's clock and the store's that is worth a word."""


def check_store(
    url: str, *, clients: int = CLIENTS, names: int = NAMES
) -> Generator[Finding, None, None]:
    """The findings about the store at ``url``, as they are made."""
    began = time.monotonic()
    try:
        store = Store.open(url)
    except ConditionalPutIgnored as fault:
        yield _finding(Level.FAIL, str(fault), "docs/stores.md lists stores that passed")
        return
    except EntrepotError as fault:
        yield _finding(Level.FAIL, str(fault))
        return
    opened_s = time.monotonic() - began
    study = f"doctor-{secrets.token_hex(8)}"
    with ExitStack() as stack:
        stack.callback(store.close)
        stack.callback(_tidied, store, study)
        try:
            yield _finding(Level.OK, f"{store.url} opens in {timed(opened_s)}")
            yield from _place(store)
            with ThreadPoolExecutor(clients) as threads:
                others = list(threads.map(lambda _: Store.open(store.url), range(clients - 1)))
            for other in others:
                stack.callback(other.close)
            yield _race([store, *others], study, names)
            yield _read_after_write(store, others[0], study)
            yield _list_after_write(store, others[0], study)
            yield from _stale_writes(store)
            for nbytes in BLOB_NBYTES:
                yield _blob(store, others[0], nbytes)
            yield _clock(store)
        except EntrepotError as fault:
            yield _finding(Level.FAIL, str(fault))


def _tidied(store: Store, study: str) -> None:
    """Remove what was written; what could not be lies in a study of its own, and harms nobody."""
    with suppress(EntrepotError):
        store.delete(f"{study}/")


def _finding(level: Level, said: str, remedy: str = "") -> Finding:
    return Finding("store", level, said, remedy)


# --- where it is ------------------------------------------------------------------------


def _place(store: Store) -> Iterator[Finding]:
    if not isinstance(store, FolderStore):
        return
    kind = filesystem_of(store.path)
    if kind.startswith(NETWORK_FILESYSTEMS):
        yield _finding(
            Level.WARN,
            f"it is on a network file system ({kind}), and all that is tried is tried from here",
            "run this on two machines at once, and see docs/stores.md on its mount options",
        )
    else:
        yield _finding(
            Level.OK, f"it is on a local file system ({kind}): machines share it only if it is one"
        )
    if store.claims == "link":
        yield _finding(Level.OK, "claims are hard links")
    else:
        yield _finding(
            Level.WARN,
            "the file system has no hard links: claims are files made with O_EXCL",
            "no process may be stopped for longer than a minute in the middle of a claim; a file "
            "system with hard links, or a bucket, has no such limit",
        )


# --- claims -----------------------------------------------------------------------------


def _race(stores: Sequence[Store], study: str, names: int) -> Finding:
    """All clients claim each name at the same moment."""
    won: list[tuple[int, int]] = []
    failed: list[EntrepotError] = []

    def client(me: int, lane: int, start: threading.Barrier) -> None:
        for number in range(lane, names, LANES):
            start.wait(LATE_S)
            try:
                if stores[me].claim(f"{study}/trial/{number}/0", meta={"who": str(me)}):
                    won.append((number, me))
            except EntrepotError as fault:
                failed.append(fault)

    threads = []
    for lane in range(min(LANES, names)):
        start = threading.Barrier(len(stores))
        threads += [
            threading.Thread(target=client, args=(me, lane, start)) for me in range(len(stores))
        ]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.monotonic() - began
    if failed:
        return _finding(
            Level.FAIL,
            f"{len(failed)} of {names * len(stores)} claims failed, such as: {failed[0]}",
        )
    winners: dict[int, list[int]] = {number: [] for number in range(names)}
    for number, me in won:
        winners[number].append(me)
    several = sum(len(each) > 1 for each in winners.values())
    nobody = sum(not each for each in winners.values())
    found = stores[0].resolve_many([f"{study}/trial/{number}/0" for number in range(names)])
    others = sum(
        record is None or [record.meta.get("who")] != [str(me) for me in winners[number][:1]]
        for number, record in enumerate(found)
        if len(winners[number]) == 1
    )
    if several or nobody or others:
        return _finding(
            Level.FAIL,
            f"of {names} names that {len(stores)} clients raced for, {several} were given to more "
            f"than one, {nobody} to nobody, and {others} to another than their record says",
            "do not use this store: machines would run the same trials. docs/stores.md lists "
            "stores and releases that passed",
        )
    return _finding(
        Level.OK,
        f"{len(stores)} clients raced for {names} names: one winner each, in {timed(took)}",
    )


# --- what others see --------------------------------------------------------------------


def _read_after_write(writer: Store, reader: Store, study: str) -> Finding:
    late = 0
    for number in range(LOOKS):
        writer.bind(f"{study}/read", meta={"n": str(number)})
        found = reader.resolve(f"{study}/read")
        late += found is None or found.meta != {"n": str(number)}
    return _seen(late, "read", "is bound")


def _list_after_write(writer: Store, reader: Store, study: str) -> Finding:
    late, took = 0, []
    for number in range(LOOKS):
        began = time.monotonic()
        writer.claim(f"{study}/list-{number}/a")
        took.append(time.monotonic() - began)
        late += len(reader.scan(f"{study}/list-{number}/")) != 1
    return _seen(late, "list", f"is claimed, in {timed(statistics.median(took))} each,")


def _seen(late: int, verb: str, what: str) -> Finding:
    if late:
        return _finding(
            Level.FAIL,
            f"what {what} was not there for another client {late} of {LOOKS} times ({verb})",
            "a cache is in between, or the store is not strongly consistent: nothing is claimed "
            "twice, but gc may take what a record names that it does not see. Turn the cache off",
        )
    return _finding(Level.OK, f"what {what} is there at once for another client ({verb})")


def _stale_writes(store: Store) -> Iterator[Finding]:
    if isinstance(store, FolderStore):
        return
    from entrepot.store.bucket import BucketStore

    if not isinstance(store, BucketStore):
        return
    if store.refuses_stale_writes():
        yield _finding(Level.OK, "a write with a stale If-Match is refused")
    else:
        yield _finding(
            Level.WARN,
            "a write with a stale If-Match is carried out",
            "only a torn record, such as a copy of a folder may have, is claimed by If-Match; "
            "copy stores while nobody writes to them",
        )


# --- blobs, clock -----------------------------------------------------------------------


def _blob(writer: Store, reader: Store, nbytes: int) -> Finding:
    data = random.Random(secrets.token_bytes(8)).randbytes(nbytes)
    began = time.monotonic()
    digest = writer.put(data)
    put_s = time.monotonic() - began
    began = time.monotonic()
    right = reader.get(digest) == data
    get_s = time.monotonic() - began
    _discard(writer, digest)
    if not right:  # get compares the digest itself: this is for a store that does not
        return _finding(Level.FAIL, f"{sized(nbytes)} were got, and not as they were put")
    return _finding(
        Level.OK, f"a blob of {sized(nbytes)} is put in {timed(put_s)} and got in {timed(get_s)}"
    )


def _discard(store: Store, digest: str) -> None:
    """Remove a blob that nobody else can have; gc would, after its grace."""
    key = blob_key(digest)
    try:
        if isinstance(store, FolderStore):
            Path(store.path, key).unlink()
        else:
            from entrepot.store.bucket import BucketStore

            if isinstance(store, BucketStore):
                store.discard(key)
    except (OSError, StoreError):
        pass


def _clock(store: Store) -> Finding:
    skew_s = store.now() - time.time()
    if abs(skew_s) > SKEW_S:
        return _finding(
            Level.WARN,
            f"this machine's clock is {timed(abs(skew_s))} {'behind' if skew_s > 0 else 'ahead of'}"
            f" the store's",
            "studies go by the store's, so nothing is wrong with them; requests are refused from "
            "15 minutes on. Set both by NTP",
        )
    return _finding(Level.OK, "its clock and this machine's agree")
