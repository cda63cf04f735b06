"""What a look at a bucket costs: requests that grow with what changed, not with what is there."""

from __future__ import annotations

from collections import Counter

import pytest

from entrepot.store import EMPTY, Record
from entrepot.store.bucket import BucketStore
from entrepot.store.layout import BLOCK_TRIALS
from tests.stores.proxy import FaultProxy


def filled(store: BucketStore, blocks: int, open_trials: int) -> int:
    """A study of so many closed blocks and an open one; the first trial of the open one.

    Of the closed blocks there are segments, and a record each, so that they are folders as well.
    """
    for block in range(blocks):
        first = block * BLOCK_TRIALS
        records = [
            Record(f"spam/trial/{n}/0", EMPTY, {"state": "done"}, 1.0, "me", f"{n:032}")
            for n in range(first, first + BLOCK_TRIALS)
        ]
        assert store.close_block("spam", block, records)
        store.claim(f"spam/trial/{first}/0")
    first = blocks * BLOCK_TRIALS
    assert all(
        store._requests.each(
            lambda n: store.claim(f"spam/trial/{n}/0"), range(first, first + open_trials)
        )
    )
    return first


def counts_of_a_look(
    store: BucketStore, patient: BucketStore, proxy: FaultProxy, blocks: int, open_trials: int
) -> dict[int, Counter[str]]:
    """For each number of changes: what one look asks for."""
    first = filled(store, blocks, open_trials)
    changes = patient.changes("spam/trial/")
    assert len(changes.closed) == blocks
    assert len(changes.records) == open_trials
    found = {}
    for changed in (0, 1, 100):
        for n in range(first, first + changed):
            store.bind(f"spam/trial/{n}/0", meta={"state": "running"})
        with proxy.counted() as counts:
            changes = patient.changes("spam/trial/", changes.cursor)
        assert {record.name for record in changes.records} == {
            f"spam/trial/{n}/0" for n in range(first, first + changed)
        }
        assert changes.closed == []
        found[changed] = counts
    return found


@pytest.mark.parametrize("blocks", [1, 8])
def test_a_look_asks_for_what_changed(
    store: BucketStore, patient: BucketStore, proxy: FaultProxy, blocks: int
) -> None:
    counts = counts_of_a_look(store, patient, proxy, blocks, 120)
    # The segments, the blocks, and the one that is open.
    assert counts[0] == {"LIST": 3}
    assert counts[1] == {"LIST": 3, "GET": 1}
    assert counts[100] == {"LIST": 3, "GET": 100}


@pytest.mark.soak
def test_a_look_at_a_hundred_thousand(
    store: BucketStore, patient: BucketStore, proxy: FaultProxy
) -> None:
    counts = counts_of_a_look(store, patient, proxy, 99, BLOCK_TRIALS)
    assert counts[1] == {"LIST": 3, "GET": 1}
    assert counts[100] == {"LIST": 3, "GET": 100}


def test_a_first_look_reads_a_segment_with_two_requests(
    store: BucketStore, patient: BucketStore, proxy: FaultProxy
) -> None:
    filled(store, 4, 10)
    with proxy.counted() as counts:
        changes = patient.changes("spam/trial/")
    assert len(changes.closed) == 4
    # The segments, the blocks, and the open one; each segment's record and blob; each open record.
    assert counts == {"LIST": 3, "GET": 4 * 2 + 10}


def test_a_scan_has_what_the_segments_say(store: BucketStore) -> None:
    filled(store, 2, 3)
    records = store.scan("spam/trial/")
    assert len(records) == 2 * BLOCK_TRIALS + 3
    assert records == sorted(records, key=lambda record: record.name)
