"""What holds for many records: scans, what is new, closed blocks, deleting."""

from __future__ import annotations

from typing import Any

from entrepot.errors import (
    BadRecord,
    ConfigurationError,
)
from entrepot.store import EMPTY, Fault, Record, digest_of
from entrepot.store.layout import blob_key, key_of, segment_name
from entrepot.store.record import MAX_RECORD_NBYTES, pack_record
from entrepot.testing.later import raises
from entrepot.testing.store_suite import ODD_NAMES, StoreSuite


class ChangeSuite(StoreSuite):
    """What holds for many records: scans, what is new, closed blocks, deleting."""

    # --- many records -------------------------------------------------------------------

    def test_a_scan_is_sorted_and_knows_prefixes(self) -> None:
        names = ["spam/trial/2/0", "spam/trial/10/0", "spam/best", "spam2/trial/0/0", "spa", "spam"]
        with self.store() as store:
            for name in names:
                store.claim(name)

            def scanned(prefix: str) -> list[str]:
                return [each.name for each in store.scan(prefix)]

            assert scanned("") == sorted(names)
            assert scanned("spam/") == ["spam/best", "spam/trial/10/0", "spam/trial/2/0"]
            assert scanned("spam/trial/") == ["spam/trial/10/0", "spam/trial/2/0"]
            assert scanned("spam/trial/1") == ["spam/trial/10/0"]
            assert scanned("spam/trial/10/") == ["spam/trial/10/0"]
            assert scanned("spam/trial/10/0") == ["spam/trial/10/0"]
            assert scanned("spam/t") == ["spam/trial/10/0", "spam/trial/2/0"]
            assert scanned("spam") == sorted(name for name in names if name.startswith("spam"))
            assert scanned("sp") == sorted(names)
            assert scanned("eggs/") == []

    def test_every_odd_name_is_found_by_each_of_its_prefixes(self) -> None:
        with self.store() as store:
            for name in ODD_NAMES:
                store.claim(name)
            cuts = {
                name[: max(cut, 1)]
                for name in ODD_NAMES
                for cut in (len(name) // 2, name.find("/") + 1)
            }
            for prefix in sorted(cuts):
                found = [each.name for each in store.scan(prefix)]
                assert found == sorted(each for each in ODD_NAMES if each.startswith(prefix))

    def test_what_cannot_be_read_is_left_out_and_noted(self) -> None:
        good = pack_record(Record("spam/trial/1/0", EMPTY, {}, 1.0, "me", "0" * 32))
        misplaced = pack_record(Record("spam/trial/9/9", EMPTY, {}, 1.0, "me", "0" * 32))
        future = good.replace(b"}\n", b',"format":2}\n').replace(b"trial/1/", b"trial/5/")
        planted = {
            "spam/trial/2/0": (b"", Fault.TORN),
            "spam/trial/3/0": (good[:40], Fault.TORN),
            "spam/trial/4/0": (bytes(len(good)), Fault.TORN),
            "spam/trial/5/0": (future, Fault.FUTURE),
            "spam/trial/6/0": (misplaced, Fault.FOREIGN),
            "spam/trial/7/0": (b'{"some": "JSON"}\n', Fault.FOREIGN),
            "spam/trial/8/0": (b"\x80\x81 no text", Fault.FOREIGN),
            "spam/other": (b"x" * (MAX_RECORD_NBYTES + 10_000), Fault.FOREIGN),
        }
        with self.store() as store:
            self.plant(store, key_of("spam/trial/1/0"), good)
            for name, (data, _) in planted.items():
                self.plant(store, key_of(name), data)
            self.plant(store, "names/spam/trial/000000/README", b"by hand")
            assert [each.name for each in store.scan("spam/")] == ["spam/trial/1/0"]
            expected = {key_of(name): fault for name, (_, fault) in planted.items()}
            expected["names/spam/trial/000000/README"] = Fault.FOREIGN
            assert store.skipped.faults == expected
            assert store.skipped.count(Fault.TORN) == 3
            for name in planted:
                assert store.resolve(name) is None
            # What is mended is no longer noted.
            for name in planted:
                store.bind(name)
            assert len(store.scan("spam/")) == 1 + len(planted)
            assert set(store.skipped.faults) == {"names/spam/trial/000000/README"}

    # --- what is new --------------------------------------------------------------------

    def test_first_everything_then_nothing_then_what_changed(self) -> None:
        with self.two() as (store, other):
            for number in (1, 2, 999, 1000, 1001):
                store.claim(f"spam/trial/{number}/0")
            found, cursor = self._new(other, None)
            assert found == {f"spam/trial/{number}/0" for number in (1, 2, 999, 1000, 1001)}
            found, cursor = self._new(other, cursor)
            assert found == set()
            store.bind("spam/trial/2/0", meta={"state": "done"})
            store.claim("spam/trial/3/0")
            store.claim("eggs/trial/3/0")
            found, cursor = self._new(other, cursor)
            assert found == {"spam/trial/2/0", "spam/trial/3/0"}
            found, cursor = self._new(other, cursor)
            assert found == set()

    def test_no_change_is_missed_however_quick(self) -> None:
        # Each is of the same size, and many of them within one tick of a file system's clock.
        with self.two() as (store, other):
            store.claim("spam/trial/0/0", meta={"n": "1000"})
            _, cursor = self._new(other, None)
            for n in range(1001, 1200):
                store.bind("spam/trial/0/0", meta={"n": str(n)})
                changes = other.changes("spam/trial/", cursor)
                assert [each.meta["n"] for each in changes.records] == [str(n)]
                cursor = changes.cursor
                assert other.changes("spam/trial/", cursor).records == []

    def test_an_older_cursor_can_be_used_again(self) -> None:
        with self.store() as store:
            store.claim("spam/trial/0/0")
            _, old = self._new(store, None)
            store.claim("spam/trial/1/0")
            for _ in range(2):
                found, _ = self._new(store, old)
                assert found == {"spam/trial/1/0"}

    def test_a_cursor_is_good_for_its_own_prefix_and_store_only(self) -> None:
        wrong: list[Any] = [7, "cursor"]
        with self.store() as store, self.store() as stranger:
            cursor = store.changes("spam/").cursor
            for each in (*wrong, store.changes("eggs/").cursor, stranger.changes("spam/").cursor):
                with raises(ConfigurationError):
                    store.changes("spam/", each)
            assert store.changes("spam/", cursor).records == []

    def test_what_was_torn_is_told_of_once_it_is_whole(self) -> None:
        with self.store() as store:
            store.claim("spam/trial/0/0")
            self.plant(store, key_of("spam/trial/1/0"), b'{"name":"sp')
            found, cursor = self._new(store, None)
            assert found == {"spam/trial/0/0"}
            store.bind("spam/trial/1/0")
            found, cursor = self._new(store, cursor)
            assert found == {"spam/trial/1/0"}

    def test_a_name_that_was_deleted_and_claimed_again_is_new(self) -> None:
        with self.store() as store:
            store.claim("spam/trial/0/0")
            _, cursor = self._new(store, None)
            store.delete("spam/trial/0/0")
            found, cursor = self._new(store, cursor)
            assert found == set()
            store.claim("spam/trial/0/0")
            found, cursor = self._new(store, cursor)
            assert found == {"spam/trial/0/0"}

    # --- closed blocks ------------------------------------------------------------------

    def test_a_closed_block_holds_what_its_segment_says(self) -> None:
        with self.two() as (store, other):
            for number in (0, 1, 999, 1000):
                store.bind(f"spam/trial/{number}/0", meta={"state": "done", "n": str(number)})
            _, cursor = self._new(other, None)
            records = store.scan("spam/trial/")
            block = [each for each in records if each.name != "spam/trial/1000/0"]
            assert store.close_block("spam", 0, block)
            assert not other.close_block("spam", 0, block[:1])
            assert store.scan("spam/trial/") == other.scan("spam/trial/") == records
            assert other.scan("spam/trial/99") == [block[-1]]

            changes = other.changes("spam/trial/", cursor)
            assert changes.records == []
            assert [(each.study, each.block) for each in changes.closed] == [("spam", 0)]
            assert changes.closed[0].records() == block
            assert changes.closed[0].meta == {"records": "3"}

            # What comes late never speaks, and the numbers stay taken.
            store.bind("spam/trial/1/0", meta={"state": "late"})
            assert store.claim("spam/trial/5/0", meta={"state": "late"})
            assert not store.claim("spam/trial/0/0")
            changes = other.changes("spam/trial/", changes.cursor)
            assert (changes.records, changes.closed) == ([], [])
            assert other.scan("spam/trial/") == records
            assert [each.name for each in other.scan("spam/trial/5")] == []

            # What is in an open block does.
            store.bind("spam/trial/1000/0", meta={"state": "again"})
            changes = other.changes("spam/trial/", changes.cursor)
            assert [each.name for each in changes.records] == ["spam/trial/1000/0"]

            # And who starts now sees the same.
            fresh = other.changes("spam/trial/")
            assert [each.name for each in fresh.records] == ["spam/trial/1000/0"]
            assert [each.block for each in fresh.closed] == [0]

    def test_closed_blocks_are_found_from_above_and_from_within(self) -> None:
        with self.store() as store:
            for study in ("spam", "deep/er"):
                store.bind(f"{study}/trial/7/0")
                store.close_block(study, 0, store.scan(f"{study}/trial/"))
                store.bind(f"{study}/trial/8/0")
            expected = [
                *("deep/er/segment/000000", "deep/er/trial/7/0"),
                *("spam/segment/000000", "spam/trial/7/0"),
            ]
            assert [each.name for each in store.scan()] == expected
            assert [each.name for each in store.scan("spam/")] == expected[2:]
            assert [each.name for each in store.scan("deep/")] == expected[:2]
            assert [each.name for each in store.scan("deep/er/trial/7/")] == expected[1:2]
            assert [each.name for each in store.scan("deep/er/trial/8/")] == []

    def test_a_segment_holds_its_own_block_only(self) -> None:
        with self.store() as store:
            for name in ("spam/trial/7/0", "eggs/trial/7/0", "spam/trial/1000/0", "spam/best"):
                store.claim(name)
                record = store.resolve(name)
                assert record is not None
                for study, block in (("spam", 0), ("spam", 1), ("eggs", 0)):
                    if key_of(name) == key_of(f"{study}/trial/{1000 * block + 7 * (not block)}/0"):
                        continue
                    with raises(BadRecord):
                        store.close_block(study, block, [record])
            with raises(BadRecord):
                store.close_block("spam", -1, [])

    def test_a_segment_that_cannot_be_read_closes_nothing(self) -> None:
        with self.store() as store:
            for block in range(3):
                store.bind(f"spam/trial/{1000 * block}/0")
            stranger = store.put(b'{"format":1,"study":"eggs","block":0,"records":[]}\n')
            store.claim(segment_name("spam", 0), stranger)
            store.claim(segment_name("spam", 1), digest_of(b"never put"))
            damaged = store.put(b"damaged")
            store.claim(segment_name("spam", 2), damaged)
            self.plant(store, blob_key(damaged), b"other")
            names = [each.name for each in store.scan("spam/trial/")]
            assert names == ["spam/trial/0/0", "spam/trial/1000/0", "spam/trial/2000/0"]
            assert store.skipped.faults == {
                key_of(segment_name("spam", block)): Fault.FOREIGN for block in range(3)
            }

    def test_a_segment_that_is_mended_closes_its_block(self) -> None:
        with self.store() as store:
            store.bind("spam/trial/0/0")
            records = store.scan("spam/trial/")
            store.close_block("spam", 0, records)
            segment = store.resolve(segment_name("spam", 0))
            assert segment is not None
            data = store.get(segment.digest)
            self.plant(store, blob_key(segment.digest), b"damaged")
            changes = store.changes("spam/trial/")
            assert (changes.records, changes.closed) == (records, [])
            store.put(data)
            changes = store.changes("spam/trial/", changes.cursor)
            assert [each.block for each in changes.closed] == [0]

    # --- deleting -----------------------------------------------------------------------

    def test_delete_takes_what_begins_with_the_prefix(self) -> None:
        with self.store() as store:
            for name in ("spam/trial/0/0", "spam/trial/1000/0", "spam/best", "spam2/best", "a"):
                store.claim(name)
            store.close_block("spam", 0, [*store.scan("spam/trial/0/")])
            assert store.delete("spam/") == 4
            assert [each.name for each in store.scan()] == ["a", "spam2/best"]
            assert store.delete("spam/") == 0
            assert store.claim("spam/trial/0/0")
            assert [each.name for each in store.scan("spam/")] == ["spam/trial/0/0"]
            with raises(BadRecord, match="prefix"):
                store.delete("")

    def test_delete_takes_odd_names_as_well(self) -> None:
        with self.store() as store:
            for name in ODD_NAMES:
                store.claim(name)
            # That name goes with the first of its block's: it is where their segment would be.
            left = sorted({*ODD_NAMES} - {"spam/segment/000000"})
            store.delete("spam/segment/000000")
            while left:  # from the end, so that none begins with the one that is deleted
                assert store.delete(left.pop()) == 1
            assert store.scan() == []
