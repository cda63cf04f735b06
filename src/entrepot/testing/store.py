"""The suite that any new store must pass; see :mod:`entrepot.testing`.

::

    class TestMyStore(StoreContract):
        def make(self):
            return MyStore.new()            # empty, and nobody else's

        def again(self, store, *, read_only=False):
            return MyStore.at(store.url, read_only=read_only)

        def plant(self, store, key, data):
            ...                             # these bytes at this key, past all rules
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from entrepot.errors import (
    Closed,
    StoreReadOnly,
)
from entrepot.store import EMPTY, digest_of
from entrepot.testing.later import raises, skip
from entrepot.testing.store_blobs import BlobSuite
from entrepot.testing.store_changes import ChangeSuite
from entrepot.testing.store_names import NameSuite


class StoreContract(BlobSuite, NameSuite, ChangeSuite):
    """What holds for every store. Subclass it, name it ``Test...``, and give the first three."""

    # --- the store itself ---------------------------------------------------------------

    def test_its_clock_goes_forward(self) -> None:
        with self.two() as (store, other):
            start = store.now()
            self._until(lambda: store.now() > start)
            assert abs(store.now() - other.now()) < 5

    def test_a_reader_reads_and_writes_nothing(self) -> None:
        with self.store() as store:
            digest = store.put(b"x")
            store.bind("spam/trial/0/0", digest)
            reader = self.again(store, read_only=True)
            assert reader.read_only
            assert reader.get(digest) == b"x"
            assert reader.scan() == store.scan()
            assert reader.changes("spam/").records == store.scan()
            assert reader.resolve("spam/trial/0/0") == store.resolve("spam/trial/0/0")
            refused: list[Callable[[], Any]] = [
                lambda: reader.put(b"y"),
                lambda: reader.put(b""),
                lambda: reader.claim("b"),
                lambda: reader.bind("spam/trial/0/0"),
                lambda: reader.delete("spam/"),
                lambda: reader.close_block("spam", 0, []),
                lambda: reader.now(),
                lambda: reader.gc(0, dry_run=False),
            ]
            for use in refused:
                with raises(StoreReadOnly, match="read.only"):
                    use()
            assert [each.name for each in store.scan()] == ["spam/trial/0/0"]
            reader.close()

    def test_use_after_close(self) -> None:
        store = self.make()
        cursor = store.changes().cursor
        store.close()
        store.close()
        uses: list[Callable[[], Any]] = [
            lambda: store.put(b"x"),
            lambda: store.get(EMPTY),
            lambda: store.claim("a"),
            lambda: store.bind("a"),
            lambda: store.resolve("a"),
            lambda: store.resolve_many(["a"]),
            lambda: store.scan(),
            lambda: store.changes("", cursor),
            lambda: store.delete("a"),
            lambda: store.gc(),
            lambda: store.now(),
        ]
        for use in uses:
            with raises(Closed):
                use()

    def test_a_forked_child_has_the_same_store(self) -> None:
        if not self.forks:
            skip("what this store holds is in one process")
        with self.store() as store:
            store.claim("parent", store.put(b"x"))
            assert len(store.scan()) == 1
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    ours = store.get(digest_of(b"x")) == b"x" and not store.claim("parent")
                    store.bind("child", store.put(b"child's"))
                    code = 0 if ours and store.claim("another") else 2
                finally:
                    os._exit(code)
            code = self._exit_code(child)
            assert code == 0
            assert {each.name for each in store.scan()} == {"another", "child", "parent"}
            assert store.get(digest_of(b"child's")) == b"child's"
            nonces = {each.nonce for each in store.scan()}
            assert len(nonces) == 3
