"""What holds for the blobs of every store, and what gc may take."""

from __future__ import annotations

import os
from array import array
from typing import Any

from entrepot.errors import (
    BadRecord,
    ConfigurationError,
    CorruptBlob,
    MissingBlob,
)
from entrepot.store import EMPTY, Record, digest_of
from entrepot.store.layout import blob_key, key_of
from entrepot.store.record import pack_record
from entrepot.testing.later import raises
from entrepot.testing.store_suite import StoreSuite


class BlobSuite(StoreSuite):
    """What holds for the blobs of every store, and what gc may take."""

    # --- blobs --------------------------------------------------------------------------

    def test_a_digest_is_the_sha_256_of_the_bytes(self) -> None:
        with self.store() as store:
            assert store.put(b"abc") == (
                "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
            )

    def test_what_is_put_is_what_is_got(self) -> None:
        # 11 MB, since there are HTTP clients that stop at 10.
        with self.two() as (store, other):
            for nbytes in (0, 1, 16 * 1024 - 1, 16 * 1024, 300_000, 11_000_000):
                data = os.urandom(nbytes)
                digest = store.put(data)
                assert digest == digest_of(data)
                assert store.get(digest) == data
                assert other.get(digest) == data

    def test_the_same_bytes_are_put_twice(self) -> None:
        with self.two() as (store, other):
            assert store.put(b"same") == other.put(b"same") == store.put(b"same")
            assert store.get(digest_of(b"same")) == b"same"

    def test_the_blob_of_no_bytes_is_always_there(self) -> None:
        with self.store() as store:
            assert store.get(EMPTY) == b""
            assert store.put(b"") == EMPTY

    def test_puts_whatever_has_a_contiguous_buffer(self) -> None:
        values = array("d", [1.5, -2.5])
        kinds: list[Any] = [values, memoryview(values), bytearray(values.tobytes())]
        with self.store() as store:
            for data in kinds:
                assert store.get(store.put(data)) == values.tobytes()

    def test_puts_nothing_else(self) -> None:
        wrong: list[Any] = ["text", 7, None, memoryview(bytes(8))[::2]]
        with self.store() as store:
            for data in wrong:
                with raises(BadRecord):
                    store.put(data)

    def test_a_blob_that_is_not_there(self) -> None:
        digest = digest_of(b"never put")
        with self.store() as store, raises(MissingBlob, match=digest):
            store.get(digest)

    def test_what_is_no_digest(self) -> None:
        wrong: list[Any] = ["", "abc", "sha256:" + "A" * 64, EMPTY + "\n", "md5:" + "0" * 32, None]
        with self.store() as store:
            for digest in wrong:
                with raises(BadRecord):
                    store.get(digest)
                with raises(BadRecord):
                    store.claim("a", digest)
                with raises(BadRecord):
                    store.bind("a", digest)
            assert store.resolve("a") is None

    def test_many_blobs_come_in_order_with_gaps(self) -> None:
        with self.store() as store:
            one, two = store.put(b"one"), store.put(b"two")
            gone = digest_of(b"gone")
            assert store.get_many([two, gone, one, EMPTY, two]) == [
                b"two",
                None,
                b"one",
                b"",
                b"two",
            ]

    def test_a_damaged_blob_is_not_served_and_a_put_mends_it(self) -> None:
        data = bytes(range(200))
        with self.store() as store:
            for damaged in (b"", data[:100], bytes(200)):
                digest = store.put(data)
                self.plant(store, blob_key(digest), damaged)
                with raises(CorruptBlob, match=digest):
                    store.get(digest)
                assert store.put(data) == digest
                assert store.get(digest) == data

    # --- gc -----------------------------------------------------------------------------

    def test_gc_takes_what_nothing_needs(self) -> None:
        with self.store() as store:
            orphan, named, said = store.put(b"orphan"), store.put(b"named"), store.put(b"in meta")
            closed, replaced = store.put(b"in a segment"), store.put(b"replaced")
            store.bind("a", named, {"checkpoint": said})
            store.bind("b", replaced)
            store.bind("b")
            store.bind("spam/trial/0/0", closed)
            store.close_block("spam", 0, store.scan("spam/trial/"))
            store.bind("spam/trial/0/0")  # late: it does not speak, and its blob has to stay
            self._wait_for_age(store, 0.5)

            swept = store.gc(0.5)
            assert set(swept.digests) == {orphan, replaced}
            assert swept.nbytes == len(b"orphan") + len(b"replaced")
            assert store.get(orphan) == b"orphan", "a dry run takes nothing"
            assert store.gc(0.5, dry_run=False) == swept
            for digest in (orphan, replaced):
                with raises(MissingBlob):
                    store.get(digest)
            for digest in (named, said, closed):
                store.get(digest)
            assert [each.name for each in store.scan("spam/trial/")] == ["spam/trial/0/0"]
            assert store.gc(0.5, dry_run=False).digests == []

    def test_gc_leaves_what_is_young_and_a_put_makes_young(self) -> None:
        with self.store() as store:
            old, again = store.put(b"old"), store.put(b"again")
            assert store.gc(3600, dry_run=False).digests == []
            self._wait_for_age(store, 2.5)
            store.put(b"again")
            assert store.gc(2, dry_run=False).digests == [old]
            assert store.get(again) == b"again"

    def test_gc_keeps_what_unreadable_records_name(self) -> None:
        with self.store() as store:
            torn, future, foreign = store.put(b"torn"), store.put(b"future"), store.put(b"foreign")
            record = pack_record(Record("a", torn, {}, 1.0, "me", "0" * 32))
            self.plant(store, key_of("a"), record[:-20])
            self.plant(store, key_of("b"), b'{"format":2,"blob":"%s"}\n' % future.encode())
            self.plant(store, key_of("c"), b"see %s" % foreign.encode())
            self._wait_for_age(store, 0.5)
            assert store.gc(0.5, dry_run=False).digests == []

    def test_gc_needs_a_grace(self) -> None:
        wrong: list[Any] = [-1, float("nan")]
        with self.store() as store:
            for grace_s in wrong:
                with raises(ConfigurationError, match="grace_s"):
                    store.gc(grace_s)
