"""Stores against a model: several machines, several readers, whatever the order of what they do."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    precondition,
    rule,
)

from entrepot.errors import MissingBlob
from entrepot.store import EMPTY, Cursor, Record, Store, digest_of
from entrepot.store.folder import FolderStore
from entrepot.store.layout import BLOCK_TRIALS, key_of
from entrepot.store.memory import MemoryStore
from tests.unit.store.folder_faults import NoLinks

MACHINES = 3
STUDIES = ("spam", "a/b")
# Numbers at the borders of blocks, and attempts.
TRIALS = st.tuples(
    st.sampled_from(STUDIES), st.sampled_from([0, 1, 999, 1000, 1001, 2000]), st.integers(0, 1)
)
OTHERS = st.sampled_from(["spam/best", "spam/trial/x", "spam/trial/000000/0.0", "a", "ñ" * 300])
NAMES = st.one_of(TRIALS.map(lambda each: f"{each[0]}/trial/{each[1]}/{each[2]}"), OTHERS)
PREFIXES = st.sampled_from(["", "spam/", "spam/trial/", "spam/trial/1", "a", "a/b/trial/0/", "ñ"])
BLOBS = st.sampled_from([b"one", b"two", b"three"])
WHO = st.integers(0, MACHINES - 1)


def block_of(name: str) -> tuple[str, int] | None:
    """Study and block, if this is a trial's name."""
    parts = name.rsplit("/", 3)
    if len(parts) < 4 or parts[1] != "trial" or not (parts[2].isdecimal() and parts[3].isdecimal()):
        return None
    if any(part != str(int(part)) for part in parts[2:]):
        return None
    return parts[0], int(parts[2]) // BLOCK_TRIALS


class Reader:
    """What somebody knows who only ever asks what is new, as a study does."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.cursor: Cursor | None = None
        self.known: dict[str, Record] = {}

    def look(self, store: Store) -> None:
        changes = store.changes(self.prefix, self.cursor)
        for segment in changes.closed:
            block = (segment.study, segment.block)
            self.known = {n: r for n, r in self.known.items() if block_of(n) != block}
            self.known |= {record.name: record for record in segment.records()}
        self.known |= {record.name: record for record in changes.records}
        self.cursor = changes.cursor


class StoreMachine(RuleBasedStateMachine):
    """``stores`` are the same store on several machines; the rest is the model."""

    cursors = Bundle("cursors")

    def __init__(self) -> None:
        super().__init__()
        self.stores = self.make()
        self.files: dict[str, Record] = {}  # what was claimed or bound last
        self.closed: dict[tuple[str, int], dict[str, Record]] = {}
        self.blobs: set[bytes] = set()
        self.lost: set[str] = set()
        self.writes = 0
        self.readers: list[Reader] = []

    def make(self) -> list[Any]:
        raise NotImplementedError

    def spoken(self) -> dict[str, Record]:
        """What scan has to say: closed blocks by their segments, all else by the files."""
        found = {n: r for n, r in self.files.items() if block_of(n) not in self.closed}
        for records in self.closed.values():
            found |= records
        return found

    @initialize(prefixes=st.lists(PREFIXES, min_size=2, max_size=2))
    def start_readers(self, prefixes: list[str]) -> None:
        self.readers = [Reader(prefix) for prefix in prefixes]

    def wrote(self, who: int, name: str, expected: dict[str, str], digest: str) -> None:
        found = self.stores[(who + 1) % MACHINES].resolve(name)
        assert found is not None
        assert (found.name, found.meta, found.digest) == (name, expected, digest)
        self.files[name] = found

    # --- what machines do ---------------------------------------------------------------

    @rule(who=WHO, name=NAMES, data=BLOBS | st.none())
    def claim(self, who: int, name: str, data: bytes | None) -> None:
        self.writes += 1
        meta = {"n": f"{self.writes:04}"}
        digest = EMPTY if data is None else self.stores[who].put(data)
        self.blobs |= set() if data is None else {data}
        won = self.stores[who].claim(name, digest, meta)
        assert won is (name not in self.files)
        if won:
            self.wrote(who, name, meta, digest)

    @rule(who=WHO, name=NAMES, data=BLOBS | st.none())
    def bind(self, who: int, name: str, data: bytes | None) -> None:
        self.writes += 1
        meta = {"n": f"{self.writes:04}"}
        digest = EMPTY if data is None else self.stores[who].put(data)
        self.blobs |= set() if data is None else {data}
        self.stores[who].bind(name, digest, meta)
        self.wrote(who, name, meta, digest)

    @rule(who=WHO, trial=TRIALS)
    def close_block(self, who: int, trial: tuple[str, int, int]) -> None:
        study, block = trial[0], trial[1] // BLOCK_TRIALS
        records = {n: r for n, r in self.spoken().items() if block_of(n) == (study, block)}
        name = f"{study}/segment/{block:06d}"
        won = self.stores[who].close_block(study, block, list(records.values()))
        assert won is (name not in self.files)
        if won:
            self.closed[study, block] = records
            found = self.stores[who].resolve(name)
            assert found is not None
            self.files[name] = found

    @rule(who=WHO, prefix=PREFIXES.filter(bool))
    def delete(self, who: int, prefix: str) -> None:
        gone = {name for name in self.files if name.startswith(prefix)}
        opened = {block_of(name) for name in gone} & set(self.closed)
        segments = {f"{study}/segment/{block:06d}" for study, block in filter(None, opened)}
        assert self.stores[who].delete(prefix) == len(gone)
        # What came late to a block that is open again speaks, and gc may have had its blob.
        self.lost |= {r.digest for n, r in self.files.items() if block_of(n) in opened}
        self.files = {n: r for n, r in self.files.items() if n not in gone | segments}
        self.closed = {
            (study, block): records
            for (study, block), records in self.closed.items()
            if f"{study}/segment/{block:06d}" in self.files
        }
        # Names that were deleted are not told of, so readers start anew.
        for reader in self.readers:
            reader.cursor, reader.known = None, {}

    @rule(who=WHO)
    def collect(self, who: int) -> None:
        # The writers of the model name what they put before anybody collects.
        self.stores[who].gc(0, dry_run=False)
        needed = {record.digest for record in self.spoken().values()}
        for data in self.blobs:
            try:
                assert self.stores[who].get(digest_of(data)) == data
            except MissingBlob:
                assert digest_of(data) not in needed - self.lost

    # --- what is seen -------------------------------------------------------------------

    @rule(who=WHO, prefix=PREFIXES)
    def scan(self, who: int, prefix: str) -> None:
        expected = [r for n, r in sorted(self.spoken().items()) if n.startswith(prefix)]
        assert self.stores[who].scan(prefix) == expected

    @rule(who=WHO, names=st.lists(NAMES, max_size=4))
    def resolve(self, who: int, names: list[str]) -> None:
        assert self.stores[who].resolve_many(names) == [self.files.get(name) for name in names]

    @rule(who=WHO, number=st.integers(0, 1))
    def look(self, who: int, number: int) -> None:
        reader = self.readers[number]
        reader.look(self.stores[who])
        spoken = self.spoken()
        assert reader.known == {n: r for n, r in spoken.items() if n.startswith(reader.prefix)}

    @rule(target=cursors, who=WHO)
    def keep_cursor(self, who: int) -> tuple[Cursor, int]:
        return self.stores[who].changes("spam/").cursor, self.writes

    @precondition(lambda self: not self.closed)
    @rule(who=WHO, kept=consumes(cursors))
    def look_back(self, who: int, kept: tuple[Cursor, int]) -> None:
        """An old cursor misses nothing that was written since."""
        cursor, writes = kept
        told = {record.name for record in self.stores[who].changes("spam/", cursor).records}
        new = {
            name
            for name, record in self.files.items()
            if name.startswith("spam/") and int(record.meta.get("n", "0")) > writes
        }
        assert new <= told

    @invariant()
    def nothing_is_skipped(self) -> None:
        assert all(store.skipped.faults == {} for store in self.stores)

    def teardown(self) -> None:
        for store in self.stores:
            store.close()


class MemoryMachine(StoreMachine):
    def make(self) -> list[Any]:
        store = MemoryStore()
        return [store, store.view(), store.view()]


class FolderMachine(StoreMachine):
    """One of them thinks that there are no hard links."""

    def make(self) -> list[Any]:
        self.path = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
        stores = [FolderStore(self.path / "store", durable=False) for _ in range(MACHINES)]
        stores[0] = FolderStore(self.path / "store", durable=False, calls=NoLinks())
        return stores

    def teardown(self) -> None:
        super().teardown()
        shutil.rmtree(self.path)

    @invariant()
    def nothing_is_left_over(self) -> None:
        assert list((self.path / "store" / "tmp").iterdir()) == []
        names = {key_of(name) for name in self.files}
        found = (self.path / "store" / "names").rglob("*.json")
        assert {str(path.relative_to(self.path / "store")) for path in found} == names


TestMemoryMachine = MemoryMachine.TestCase
TestMemoryMachine.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)
TestFolderMachine = FolderMachine.TestCase
TestFolderMachine.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
