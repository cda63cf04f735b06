"""What holds for names, claims and records in every store."""

from __future__ import annotations

import os
import threading
from typing import Any

from entrepot.errors import (
    BadRecord,
)
from entrepot.store import EMPTY, digest_of
from entrepot.store.record import MAX_RECORD_NBYTES
from entrepot.testing.later import raises
from entrepot.testing.store_suite import ODD_NAMES, PROCESS_TIMEOUT_S, StoreSuite


class NameSuite(StoreSuite):
    """What holds for names, claims and records in every store."""

    # --- names --------------------------------------------------------------------------

    def test_a_name_is_claimed_once_and_the_first_stays(self) -> None:
        with self.two() as (store, other):
            first, second = store.put(b"first"), store.put(b"second")
            assert store.claim("spam/trial/7/0", first, {"who": "one"}) is True
            assert other.claim("spam/trial/7/0", second, {"who": "two"}) is False
            assert store.claim("spam/trial/7/0", second, {"who": "one"}) is False
            for each in (store, other):
                found = each.resolve("spam/trial/7/0")
                assert found is not None
                assert (found.digest, found.meta) == (first, {"who": "one"})

    def test_a_claim_needs_no_blob(self) -> None:
        with self.store() as store:
            assert store.claim("a")
            found = store.resolve("a")
            assert found is not None
            assert (found.digest, found.meta) == (EMPTY, {})

    def test_a_claim_that_is_repeated_with_its_nonce_is_the_same_claim(self) -> None:
        nonce = "0123456789abcdef" * 2
        with self.two() as (store, other):
            assert store.claim("a", nonce=nonce)
            assert store.claim("a", nonce=nonce)
            assert other.claim("a", nonce=nonce)
            assert not other.claim("a", nonce="f" * 32)
            found = store.resolve("a")
            assert found is not None
            assert found.nonce == nonce

    def test_bind_replaces_and_claim_does_not(self) -> None:
        with self.two() as (store, other):
            store.bind("a", meta={"n": "1"})
            other.bind("a", meta={"n": "2"})
            assert not store.claim("a", meta={"n": "3"})
            assert [each.meta for each in store.scan()] == [{"n": "2"}]
            assert store.claim("b", meta={"n": "4"})
            other.bind("b", meta={"n": "5"})
            assert [each.meta for each in store.scan()] == [{"n": "2"}, {"n": "5"}]

    def test_a_record_says_what_when_and_who(self) -> None:
        meta = {"z": "1", "a": 'ñ 🚀 " \\ \n\0', "": ""}
        with self.store() as store:
            before = store.now()
            store.bind("a", store.put(b"x"), meta)
            after = store.now()
            found = store.resolve("a")
            assert found is not None
            assert found.name == "a"
            assert found.digest == digest_of(b"x")
            assert list(found.meta.items()) == list(meta.items())
            assert before - 2 <= found.when <= after + 2
            assert str(os.getpid()) in found.writer
            assert len(found.nonce) == 32
            assert store.scan() == [found]

    def test_no_two_writes_have_the_same_nonce(self) -> None:
        with self.store() as store:
            nonces = set()
            for _ in range(20):
                store.bind("a")
                found = store.resolve("a")
                assert found is not None
                nonces.add(found.nonce)
            assert len(nonces) == 20

    def test_a_name_that_nobody_has(self) -> None:
        with self.store() as store:
            assert store.resolve("a") is None
            assert store.scan() == []
            assert store.scan("spam/trial/") == []

    def test_many_names_come_in_order_with_gaps(self) -> None:
        with self.store() as store:
            store.bind("a", meta={"n": "1"})
            store.bind("c", meta={"n": "3"})
            found = store.resolve_many(["c", "b", "a", "c"])
            said = [None if each is None else each.meta["n"] for each in found]
            assert said == ["3", None, "1", "3"]
            assert store.resolve_many([]) == []

    def test_any_text_is_a_name(self) -> None:
        with self.two() as (store, other):
            for name in ODD_NAMES:
                assert store.resolve(name) is None, name
                assert store.claim(name, meta={"is": name}), name
                assert not other.claim(name), name
            for name in ODD_NAMES:
                found = other.resolve(name)
                assert found is not None, name
                assert (found.name, found.meta) == (name, {"is": name})
            assert [each.name for each in store.scan()] == sorted(ODD_NAMES)
            assert store.skipped.faults == {}

    def test_what_is_no_name(self) -> None:
        wrong: list[Any] = ["", "x" * 5000, "\ud800", None, 7, b"a"]
        with self.store() as store:
            for name in wrong:
                for use in (store.claim, store.bind, store.resolve):
                    with raises(BadRecord):
                        use(name)
            assert store.scan() == []

    def test_meta_is_text_to_text(self) -> None:
        wrong: list[Any] = [{"a": 1}, {1: "a"}, {"a": None}, {"a": "\ud800"}, ["a"], "a", 7]
        with self.store() as store:
            for meta in wrong:
                for use in (store.claim, store.bind):
                    with raises(BadRecord):
                        use("a", EMPTY, meta)
            assert store.scan() == []

    def test_what_is_no_nonce(self) -> None:
        wrong: list[Any] = ["", "short", "x" * 65, 'a"' * 16, "ñ" * 32, 7]
        with self.store() as store:
            for nonce in wrong:
                with raises(BadRecord):
                    store.claim("a", nonce=nonce)
                with raises(BadRecord):
                    store.bind("a", nonce=nonce)
            assert store.scan() == []

    def test_a_record_has_a_largest_size(self) -> None:
        with self.store() as store:
            store.bind("a", meta={"a": "x" * (MAX_RECORD_NBYTES - 1000)})
            found = store.resolve("a")
            assert found is not None
            assert len(found.meta["a"]) == MAX_RECORD_NBYTES - 1000
            for use in (store.claim, store.bind):
                with raises(BadRecord, match=str(MAX_RECORD_NBYTES)):
                    use("b", EMPTY, {"a": "x" * MAX_RECORD_NBYTES})
            assert store.resolve("b") is None

    def test_eight_at_once_and_the_record_is_the_winners(self) -> None:
        names = [f"spam/trial/{number}/0" for number in range(40)]
        with self.store() as store:
            stores = [self.again(store) for _ in range(8)]
            won: list[list[str]] = [[] for _ in stores]
            start = threading.Barrier(len(stores))

            def claim_all(me: int) -> None:
                start.wait(PROCESS_TIMEOUT_S)
                for name in names:
                    if stores[me].claim(name, meta={"who": str(me)}):
                        won[me].append(name)

            self._all_threads(claim_all, len(stores))
            winner = {name: str(me) for me, theirs in enumerate(won) for name in theirs}
            assert sorted(name for theirs in won for name in theirs) == sorted(names)
            assert {each.name: each.meta["who"] for each in store.scan()} == winner
            for each in stores:
                each.close()

    def test_a_reader_sees_the_old_record_or_the_new(self) -> None:
        with self.two() as (store, other):
            texts = {str(size): "x" * size for size in (10, 5000, 50_000)}
            store.bind("a", meta={"size": "10", "text": texts["10"]})
            over = threading.Event()

            def write(_: int) -> None:
                for round_ in range(60):
                    size = list(texts)[round_ % 3]
                    store.bind("a", meta={"size": size, "text": texts[size]})
                over.set()

            def read(_: int) -> None:
                while not over.is_set():
                    found = other.resolve("a")
                    assert found is not None
                    assert texts[found.meta["size"]] == found.meta["text"]

            self._all_threads(lambda me: (write, read)[me](me), 2)
