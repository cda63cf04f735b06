"""What a store does in a second, beside the bare calls of its disk and the bare PUTs of its bucket.

    python bench/store.py                  # minutes
    python bench/store.py --quick          # under a minute
    python bench/store.py --only folder --json out.json

Load comes from eight processes of their own; what is compared is measured in turn, round by round,
and each figure is the median of its rounds. BENCH_DIR says on which disk the folders are; the
bucket is SeaweedFS on loopback.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

if __package__ in (None, ""):  # run as a file
    sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.report import Bar, Figures, Question, Subject, main
from bench.store_loads import DONE, RUNNING
from entrepot.store import EMPTY, Record, Store
from entrepot.store.bucket import BucketStore
from entrepot.store.layout import BLOCK_TRIALS
from tests.peer.process import LineProcess
from tests.stores.proxy import FaultProxy
from tests.stores.servers import CREDENTIALS, SeaweedServer

PROCESSES = 8
BLOCKS = 99
"""Closed blocks; with the open one that makes 100,000 trials."""

PREFIX = "bench/trial/"
BUCKET = "bench"

WHAT = {
    "bare_pairs_per_s": "bare calls (write, fsync, link, fsync; again for the end): pairs/s",
    "pairs_per_s": "claim and finish, 8 processes, fsynced: pairs/s",
    "pairs_fast_per_s": "the same with durable=False: pairs/s",
    "bare_puts_per_s": "bare PUTs to the bucket, 8 processes: puts/s",
    "bucket_claims_per_s": "claims on the bucket, 8 processes: claims/s",
    "bucket_claims_ratio": "claims on the bucket, over the bare PUTs",
    "load_100k_s": "load 100,000 finished trials, folder, compacted: s",
    "refresh_100k_ms": "refresh after one change among 100,000, folder: ms",
    "refresh_1_requests": "requests to the bucket after 1 change among 100,000",
    "refresh_100_requests": "requests to the bucket after 100 changes among 100,000",
}

BARS = (
    Bar("pairs_per_s", 0.5, over="bare_pairs_per_s"),
    Bar("bucket_claims_ratio", 0.8),
    Bar("load_100k_s", 1.0, at_least=False),
    Bar("refresh_100k_ms", 50.0, at_least=False),
    Bar("refresh_1_requests", 6, at_least=False),
    Bar("refresh_100_requests", 105, at_least=False),
)

STORE = Subject("Stores, measured", WHAT, BARS)


# --- claims -----------------------------------------------------------------------------


def folder(figures: Figures, quick: bool) -> None:
    """Trials claimed and finished a second, fsynced and not, over the bare calls."""
    rounds, seconds = (3, 1.0) if quick else (7, 4.0)
    with _disk() as disk, _workers() as workers, _workers() as fast:
        _all(workers, "open", url=str(disk / "durable"), each=[{"me": n} for n in range(PROCESSES)])
        _all(
            fast,
            "open",
            url=str(disk / "fast"),
            durable=False,
            each=[{"me": n} for n in range(PROCESSES)],
        )
        for round_ in range(rounds):
            bare = disk / f"bare-{round_}"
            bare.mkdir()
            figures.add(
                bare_pairs_per_s=_all(workers, "bare_pairs", folder=str(bare), seconds=seconds),
                pairs_per_s=_all(workers, "pairs", seconds=seconds),
                pairs_fast_per_s=_all(fast, "pairs", seconds=seconds),
            )


def bucket(figures: Figures, quick: bool) -> None:
    """Claims a second on a bucket, over plain PUTs of the same bytes."""
    rounds, seconds = (3, 1.5) if quick else (7, 4.0)
    with _seaweed() as server, _workers() as workers:
        url = f"s3://{BUCKET}/claims?endpoint={server.endpoint}"
        _all(workers, "open", url=url, each=[{"me": n} for n in range(PROCESSES)])
        for _ in range(rounds):
            bare = _all(
                workers, "bare_puts", endpoint=server.endpoint, bucket=BUCKET, seconds=seconds
            )
            claims = _all(workers, "claims", seconds=seconds)
            figures.add(
                bare_puts_per_s=bare,
                bucket_claims_per_s=claims,
                bucket_claims_ratio=claims / bare,
            )


# --- looks ------------------------------------------------------------------------------


def history(figures: Figures, quick: bool) -> None:
    """Loading 100,000 trials from a folder, and seeing one change among them."""
    rounds = 3 if quick else 9
    with _disk() as disk, LineProcess("bench.store_loads") as reader:
        with Store.open(disk / "history", durable=False) as store:
            first = _filled(store, whole=not quick)
            for _ in range(rounds):
                found = reader.ask("load", url=store.url, prefix=PREFIX)
                assert found["records"] == (BLOCKS + 1) * BLOCK_TRIALS, found
                figures.add(load_100k_s=found["seconds"])
        with Store.open(disk / "history", durable=False) as store:
            cursor = store.changes(PREFIX).cursor
            for number in range(first, first + 10 * rounds):
                store.bind(f"{PREFIX}{number}/0", EMPTY, DONE)
                began = time.monotonic()
                changes = store.changes(PREFIX, cursor)
                figures.add(refresh_100k_ms=1e3 * (time.monotonic() - began))
                assert [each.name for each in changes.records] == [f"{PREFIX}{number}/0"]
                cursor = changes.cursor


def requests(figures: Figures, quick: bool) -> None:  # noqa: ARG001  # they are counted once
    """What is asked of a bucket to see 1 and 100 changes among 100,000 trials."""
    with _seaweed() as server, FaultProxy(server.endpoint) as proxy, ExitStack() as stack:
        store = stack.enter_context(BucketStore.at(server.endpoint, BUCKET, "history"))
        reader = stack.enter_context(BucketStore.at(proxy.endpoint, BUCKET, "history"))
        first = _filled(store, whole=False)
        cursor = reader.changes(PREFIX).cursor
        for changed in (1, 100):
            for number in range(first, first + changed):
                store.bind(f"{PREFIX}{number}/0", EMPTY, DONE)
            began = time.monotonic()
            with proxy.counted() as counts:
                changes = reader.changes(PREFIX, cursor)
            assert len(changes.records) == changed
            cursor = changes.cursor
            figures.add(**{f"refresh_{changed}_requests": counts.total()})
            figures.detail(**{f"refresh_{changed}_bucket_ms": 1e3 * (time.monotonic() - began)})


def _filled(store: Store, *, whole: bool) -> int:
    """100,000 trials, of which the last block is open; its first trial.

    :param whole: with a file for every trial of a closed block; one a block otherwise, which no
        reader can tell, since it does not look there.
    """
    for block in range(BLOCKS):
        first = block * BLOCK_TRIALS
        records = [
            Record(f"{PREFIX}{number}/0", EMPTY, DONE, 1.5, "bench:1", f"{number:032x}")
            for number in range(first, first + BLOCK_TRIALS)
        ]
        for record in records if whole else records[:1]:
            store.bind(record.name, EMPTY, record.meta)
        assert store.close_block("bench", block, records)
    first = BLOCKS * BLOCK_TRIALS
    for number in range(first, first + BLOCK_TRIALS):
        store.bind(f"{PREFIX}{number}/0", EMPTY, RUNNING)
    return first


# --- what it runs on --------------------------------------------------------------------


@contextmanager
def _disk() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="entrepot-bench-", dir=os.environ.get("BENCH_DIR")))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _seaweed() -> Iterator[SeaweedServer]:
    before = dict(os.environ)
    os.environ.update(CREDENTIALS)
    try:
        with SeaweedServer() as server:
            server.make(BUCKET)
            yield server
    finally:
        for name in CREDENTIALS:
            os.environ.pop(name)
        os.environ.update(before)


@contextmanager
def _workers() -> Iterator[list[LineProcess]]:
    with ExitStack() as stack:
        yield [stack.enter_context(LineProcess("bench.store_loads")) for _ in range(PROCESSES)]


def _all(
    workers: Sequence[LineProcess], do: str, *, each: Sequence[dict[str, Any]] = (), **fields: Any
) -> float:
    """All of them do it at once; the sum of what they say."""
    for number, worker in enumerate(workers):
        worker.begin(do, **fields, **(each[number] if each else {}))
    return float(sum(worker.finish(timeout_s=120.0) or 0 for worker in workers))


QUESTIONS: dict[str, Question] = {
    "folder": folder,
    "bucket": bucket,
    "history": history,
    "requests": requests,
}


if __name__ == "__main__":
    sys.exit(main(__doc__, STORE, QUESTIONS))
