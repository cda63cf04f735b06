"""What a look at a folder costs, and that it misses nothing where the clock is coarse."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from entrepot.store.calls import Calls
from entrepot.store.clock import COARSE_GRAIN_NS, Horizon
from entrepot.store.folder import FolderStore
from tests.unit.store.folder_faults import Hooked

S = 1_000_000_000


class Fat(Calls):
    """Stamps every second second, and gives every file the same inode."""

    @staticmethod
    @contextmanager
    def scandir(path: str) -> Iterator[Iterator[Any]]:
        with os.scandir(path) as entries:
            yield map(Fat._coarse, entries)

    @staticmethod
    def _coarse(entry: os.DirEntry[str]) -> Any:
        def stat(*, follow_symlinks: bool) -> Any:
            found = entry.stat(follow_symlinks=follow_symlinks)
            return SimpleNamespace(
                st_ino=1,
                st_size=found.st_size,
                st_mtime=found.st_mtime // 2 * 2,
                st_ctime=found.st_ctime,
                st_mtime_ns=found.st_mtime_ns // (2 * S) * 2 * S,
            )

        return SimpleNamespace(
            name=entry.name,
            path=entry.path,
            is_dir=entry.is_dir,
            is_file=entry.is_file,
            stat=stat,
        )


class Counted:
    """Which files and folders were looked into, without ``tmp``."""

    def __init__(self) -> None:
        self.opened: list[str] = []
        self.listed: list[str] = []

    def __call__(self, name: str, call: Any, arguments: tuple[Any, ...]) -> Any:
        if name == "open":
            self.opened.append(arguments[0].rpartition("/")[2])
        elif name == "scandir":
            self.listed.append(arguments[0].partition("/store/")[2])
        return call()

    def clear(self) -> None:
        self.opened.clear()
        self.listed.clear()


def test_no_change_is_missed_on_a_coarse_clock(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "store", durable=False, calls=Fat())
    store.claim("spam/trial/0/0", meta={"n": "1000"})
    cursor = store.changes("spam/").cursor
    for n in range(1001, 1030):
        store.bind("spam/trial/0/0", meta={"n": str(n)})
        changes = store.changes("spam/", cursor)
        assert [each.meta["n"] for each in changes.records] == [str(n)]
        assert store.changes("spam/", changes.cursor).records == []
        cursor = changes.cursor


def test_what_cannot_change_unseen_any_more_is_read_once_again_and_then_never(
    tmp_path: Path,
) -> None:
    counted = Counted()
    store = FolderStore(tmp_path / "store", durable=False, calls=Hooked(counted))
    uptime = 100.0
    store._horizon = Horizon(lambda: uptime)
    store.claim("spam/trial/0/0")
    path = tmp_path / "store/names/spam/trial/000000/0.0.json"
    os.utime(path, ns=(1000 * S, 1000 * S))  # of whole seconds: it may be FAT's
    cursor = None
    reads = []
    for _ in range(4):
        counted.clear()
        changes = store.changes("spam/", cursor)
        cursor = changes.cursor
        reads.append((len(changes.records), counted.opened))
        uptime += COARSE_GRAIN_NS / S * 0.6
        counted.opened = []
    assert reads == [(1, ["0.0.json"]), (0, ["0.0.json"]), (0, ["0.0.json"]), (0, [])]


def test_a_look_lists_what_is_open_and_reads_what_changed(tmp_path: Path) -> None:
    counted = Counted()
    store = FolderStore(tmp_path / "store", durable=False, calls=Hooked(counted))
    uptime = 100.0
    store._horizon = Horizon(lambda: uptime)
    for block in range(5):
        for n in range(3):
            store.bind(f"spam/trial/{1000 * block + n}/0")
    for block in range(4):
        names = [f"spam/trial/{1000 * block + n}/0" for n in range(3)]
        assert store.close_block("spam", block, [r for r in store.resolve_many(names) if r])
    changes = store.changes("spam/trial/")
    assert (len(changes.records), len(changes.closed)) == (3, 4)
    uptime += 10
    cursor = store.changes("spam/trial/", changes.cursor).cursor

    counted.clear()
    assert store.changes("spam/trial/", cursor).records == []
    blocks = ["names/spam/segment", "names/spam/trial", "names/spam/trial/000004"]
    assert (counted.opened, counted.listed) == ([], blocks)

    store.bind("spam/trial/4001/0")
    store.bind("spam/trial/1001/0")  # late: its block is closed
    counted.clear()
    changes = store.changes("spam/trial/", cursor)
    assert [each.name for each in changes.records] == ["spam/trial/4001/0"]
    assert (counted.opened, counted.listed) == (["4001.0.json"], blocks)

    # Who starts now reads a segment and its record for each closed block.
    counted.clear()
    store.changes("spam/trial/")
    assert counted.listed == blocks
    assert len(counted.opened) == 4 * 2 + 3


@pytest.mark.parametrize("others", [0, 300])
def test_a_refresh_makes_one_list_a_block_however_many_there_are(
    tmp_path: Path, others: int
) -> None:
    counted = Counted()
    store = FolderStore(tmp_path / "store", durable=False, calls=Hooked(counted))
    for n in range(others):
        store.claim(f"eggs/trial/{n}/0")
    store.claim("spam/trial/0/0")
    cursor = store.changes("spam/trial/").cursor
    counted.clear()
    store.changes("spam/trial/", cursor)
    assert counted.listed == ["names/spam/segment", "names/spam/trial", "names/spam/trial/000000"]
