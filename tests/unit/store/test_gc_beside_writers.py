"""gc while others put, bind and claim: what was acknowledged to them is there when they ask."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from entrepot.store.folder import FolderStore
from entrepot.store.layout import blob_key
from entrepot.store.record import digest_of

WRITERS = 3
ROUNDS = 200
BLOBS = 10
GRACE_S = 60.0
"""Longer than a thread is ever kept from going on between its put and its bind."""


class Writer(threading.Thread):
    """Puts blobs that gc may take, and names them, in each of the ways there are."""

    def __init__(self, path: Path, me: int) -> None:
        super().__init__()
        self.store = FolderStore(path, durable=False)
        self.me = me
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            for round_ in range(ROUNDS):
                self.one(round_)
        except BaseException as error:
            self.failure = error

    def one(self, round_: int) -> None:
        store = self.store
        data = b"%d of %d" % (round_ % BLOBS, self.me)
        digest = store.put(data)
        assert store.get(digest) == data
        name = f"bound/{self.me}"
        if round_ % 3 == 0:
            store.bind(name, digest)
        elif round_ % 3 == 1:
            store.bind(name, meta={"checkpoint": digest})
        else:
            name = f"claimed/{self.me}/{round_}"
            assert store.claim(name, digest)
        assert store.get(digest) == data
        # Nobody needs it now, as if for long: gc may take it at any moment until it is put again.
        store.bind(name)
        try:
            os.utime(store.path / blob_key(digest), (1, 1))
        except FileNotFoundError:  # gc was between its two looks
            pass


def test_what_was_acknowledged_is_there(tmp_path: Path) -> None:
    path = tmp_path / "store"
    collector = FolderStore(path, durable=False)
    writers = [Writer(path, me) for me in range(WRITERS)]
    for writer in writers:
        writer.start()
    taken = 0
    try:
        while any(writer.is_alive() for writer in writers):
            taken += len(collector.gc(GRACE_S, dry_run=False).digests)
    finally:
        for writer in writers:
            writer.join(60)
            assert not writer.is_alive()
    for writer in writers:
        if writer.failure is not None:
            raise writer.failure
    for record in collector.scan():
        for digest in {record.digest, *record.meta.values()}:
            assert digest_of(collector.get(digest)) == digest
    assert list((path / "tmp").iterdir()) == []
    assert taken, "gc and the writers never met"
