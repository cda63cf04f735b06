"""gc beside writers: whatever the order, what was put stays, and what nobody needs goes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import TypeVar

import pytest

from entrepot.errors import MissingBlob, StoreUnreachable
from entrepot.store import Swept, digest_of
from entrepot.store.bucket import BucketStore
from entrepot.store.layout import blob_key
from entrepot.store.tombs import tomb_of
from tests.peer.process import LineProcess
from tests.peer.waiting import until
from tests.stores.proxy import FaultProxy, How

T = TypeVar("T")

DATA = b"what gc and a writer both want"
KEY = blob_key(digest_of(DATA))
TOMB = tomb_of(KEY)

GRACE_S = 1.0


class Going(threading.Thread):
    """Something that goes on elsewhere; :meth:`result` waits for it."""

    def __init__(self, act: Callable[[], object]) -> None:
        super().__init__()
        self._act = act
        self._made: object = None
        self._raised: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._made = self._act()
        except BaseException as error:
            self._raised = error

    def result(self) -> object:
        self.join(60)
        assert not self.is_alive()
        if self._raised is not None:
            raise self._raised
        return self._made


def grow_old(store: BucketStore) -> None:
    """Until what was put is as old as the grace."""
    now = store.now()
    until(store.now, lambda then: then > now + GRACE_S)


def wait_until_young(store: BucketStore) -> None:
    """Until the blob has been written again, which its writer may not be sure of yet."""
    now = store.now()
    until(
        lambda: store._requests.head(KEY, "look"),
        lambda there: there is not None and there["last_modified"].timestamp() > now - GRACE_S,
    )


@pytest.fixture
def old(store: BucketStore) -> BucketStore:
    """The store, with a blob in it that gc would take."""
    store.put(DATA)
    grow_old(store)
    return store


def collected(store: BucketStore) -> Swept:
    return store.gc(GRACE_S, dry_run=False)


def test_put_just_before_it_is_removed(
    old: BucketStore, patient: BucketStore, proxy: FaultProxy
) -> None:
    held = proxy.spoil(How.HELD, "DELETE", "blobs/")
    gc = Going(lambda: collected(patient))
    assert held.reached.wait(30)
    # gc has looked for the last time, and is about to remove it: the writer has to wait.
    writer = Going(lambda: old.put(DATA))
    wait_until_young(old)
    held.release.set()
    assert gc.result().digests == [digest_of(DATA)]  # type: ignore[attr-defined]
    assert writer.result() == digest_of(DATA)
    assert old.get(digest_of(DATA)) == DATA


def test_put_before_gc_looks_for_the_last_time(
    old: BucketStore, patient: BucketStore, proxy: FaultProxy
) -> None:
    held = proxy.spoil(How.HELD, "HEAD", "blobs/")
    gc = Going(lambda: collected(patient))
    assert held.reached.wait(30)
    writer = Going(lambda: old.put(DATA))
    wait_until_young(old)
    held.release.set()
    assert gc.result().digests == []  # type: ignore[attr-defined]
    assert writer.result() == digest_of(DATA)
    assert old.get(digest_of(DATA)) == DATA


def test_put_of_a_blob_that_is_gone_by_then(
    old: BucketStore, patient: BucketStore, proxy: FaultProxy
) -> None:
    held = proxy.spoil(How.HELD, "DELETE", "tmp/gc-")
    gc = Going(lambda: collected(patient))
    assert held.reached.wait(30)
    # It was removed: the put makes a new one, which gc has no hand on any more.
    assert old.put(DATA) == digest_of(DATA)
    held.release.set()
    gc.result()
    assert old.get(digest_of(DATA)) == DATA


def test_two_at_once_take_each_blob_once(
    old: BucketStore, patient: BucketStore, proxy: FaultProxy
) -> None:
    held = proxy.spoil(How.HELD, "DELETE", "blobs/")
    gc = Going(lambda: collected(patient))
    assert held.reached.wait(30)
    assert collected(old).digests == []
    held.release.set()
    gc.result()
    with pytest.raises(MissingBlob):
        old.get(digest_of(DATA))


def test_a_removal_of_which_nobody_knows_whether_it_came_leaves_its_tomb(
    old: BucketStore, proxied: BucketStore, proxy: FaultProxy
) -> None:
    proxy.spoil(How.CUT, "DELETE", "blobs/")
    with pytest.raises(StoreUnreachable):
        collected(proxied)
    assert old._requests.head(TOMB, "look") is not None
    # Neither a later gc nor a writer gets past it as if nothing were; both get past it in the end.
    assert collected(old).digests == []
    assert proxied.put(DATA) == digest_of(DATA)
    assert old.get(digest_of(DATA)) == DATA


def test_tombs_that_were_left_are_taken_away(
    store: BucketStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store._requests.send(TOMB, b"", "plant")
    store._requests.send("tmp/probe-somebody-0", b"", "plant")
    store.gc(dry_run=False)
    assert store._requests.head(TOMB, "look") is not None
    monkeypatch.setattr("entrepot.store.tombs.LEFT_S", -5.0)
    store.gc(dry_run=False)
    left = [key for key, _ in store._requests.below("tmp")]
    assert [key for key in left if not key.startswith("tmp/clock-")] == []


def test_what_removing_a_blob_costs(
    old: BucketStore, patient: BucketStore, proxy: FaultProxy
) -> None:
    with proxy.counted() as counts:
        collected(patient)
    # The clock, blobs, records and what changed in them; then tomb, last look, removal, tomb; then
    # what was left.
    assert counts == {"PUT": 1 + 1, "HEAD": 1 + 1, "DELETE": 2, "LIST": 4}


def test_what_a_put_costs(patient: BucketStore, proxy: FaultProxy) -> None:
    with proxy.counted() as new:
        patient.put(DATA)
    assert new == {"PUT": 1}
    with proxy.counted() as again:
        patient.put(DATA)
    assert again == {"PUT": 2, "HEAD": 2}


ROUNDS = 6
"""Times that gc and writers are let at it until gc has found something to take."""


def beside_writers(store: BucketStore, seconds: float) -> None:
    """gc again and again, while writers put the same blobs at about its grace."""
    with ExitStack() as stack:
        writers = [stack.enter_context(LineProcess("tests.stores.racer")) for _ in range(3)]
        for writer in writers:
            writer.ask("open", url=store.url)
        swept, puts = 0, 0
        for _ in range(ROUNDS):
            for number, writer in enumerate(writers):
                pause_s = 1.5 + 0.3 * number
                writer.begin(
                    "keep_putting", seconds=seconds, blobs=20, pause_s=pause_s, grace_s=GRACE_S
                )
            give_up = time.monotonic() + seconds
            while time.monotonic() < give_up:
                swept += len(store.gc(GRACE_S, dry_run=False).digests)
            puts += min([writer.finish(timeout_s=seconds + 60) for writer in writers])
            if swept and puts >= 20:
                return
    raise AssertionError(f"gc and writers did not meet: {swept} taken, {puts} put")


def test_gc_beside_writers(store: BucketStore) -> None:
    beside_writers(store, 8.0)


@pytest.mark.soak
def test_gc_beside_writers_for_long(store: BucketStore) -> None:
    beside_writers(store, 300.0)
