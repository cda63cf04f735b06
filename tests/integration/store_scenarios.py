"""Folders that are full, read-only or gone, and hosts that are alike: each scenario alone.

unshare --mount python -m tests.integration.store_scenarios SCENARIO FOLDER
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from entrepot.errors import (
    MissingBlob,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnreachable,
)
from entrepot.store import Store, digest_of
from entrepot.store.folder import FolderStore
from tests.unit.store.folder_faults import NoLinks

SOON_S = 10.0
MIB = 1 << 20
TRIAL = "spam/trial/{}/0".format


def mount(folder: Path, options: str) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=True)


def fails(error: type[StoreError], said: str, use: Callable[[], Any]) -> None:
    """It raises that within 10 s, in these words."""
    began = time.monotonic()
    with pytest.raises(error, match=re.escape(said)):
        use()
    assert time.monotonic() - began < SOON_S


def claimed_until_full(store: FolderStore) -> int:
    """How many were claimed."""
    claimed = 0

    def one_more() -> None:
        nonlocal claimed
        while True:
            assert store.claim(TRIAL(claimed + 1))
            claimed += 1

    fails(StoreFull, "files are free", one_more)
    return claimed


def a_full_disk(folder: Path) -> None:
    """Of 4 MiB: what is said to be written is there, and what is not leaves nothing."""
    mount(folder, f"size={4 * MIB}")
    store = FolderStore(folder / "store")
    first = store.put(b"x" * MIB)
    assert store.claim(TRIAL(0), first)
    fails(StoreFull, "has no room", lambda: store.put(b"y" * (4 * MIB)))
    left = [path for path in (folder / "store").rglob("*") if path.is_file()]
    assert len(left) == 3, left
    fails(MissingBlob, "is not in", lambda: store.get(digest_of(b"y" * (4 * MIB))))
    # To the last page, by records: each a page of its own.
    (folder / "ballast").write_bytes(bytes(2 * MIB))
    claimed = claimed_until_full(store)
    assert claimed > 50
    assert store.resolve(TRIAL(claimed + 1)) is None
    assert len(store.scan()) == claimed + 1
    assert store.skipped.faults == {}
    assert list((folder / "store" / "tmp").iterdir()) == []
    fails(StoreFull, f"claim '{TRIAL(claimed + 1)}'", lambda: store.claim(TRIAL(claimed + 1)))
    # Reading goes on, losing costs nothing, and room heals it.
    assert store.get(first) == b"x" * MIB
    assert not store.claim(TRIAL(1))
    (folder / "ballast").unlink()
    assert store.claim(TRIAL(claimed + 1))


def no_more_files(folder: Path) -> None:
    """A file system has a number of inodes, and can be full while it has room."""
    mount(folder, "size=16M,nr_inodes=60")
    store = FolderStore(folder / "store")
    claimed = claimed_until_full(store)
    assert 30 < claimed < 60
    assert store.resolve(TRIAL(claimed + 1)) is None
    fails(StoreFull, "put 4 bytes", lambda: store.put(b"data"))
    assert list((folder / "store" / "tmp").iterdir()) == []


def no_room_for_a_store(folder: Path) -> None:
    mount(folder, "size=16M,nr_inodes=4")
    fails(StoreFull, "cannot open the store", lambda: FolderStore(folder / "store"))


def a_read_only_mount(folder: Path) -> None:
    """It can be read, and says so when it is to be written."""
    mount(folder, "size=16M")
    store = FolderStore(folder / "store")
    store.claim(TRIAL(0), store.put(b"data"))
    subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
    reader = Store.open(folder / "store", read_only=True)
    assert reader.get(reader.scan()[0].digest) == b"data"
    said = "mounted read-only"
    fails(StoreReadOnly, said, lambda: Store.open(folder / "store"))
    fails(StoreReadOnly, said, lambda: store.claim(TRIAL(1)))
    fails(StoreReadOnly, said, lambda: store.bind(TRIAL(0)))
    fails(StoreReadOnly, said, lambda: store.put(b"other"))
    fails(StoreReadOnly, said, lambda: store.gc(0, dry_run=False))
    assert not store.claim(TRIAL(0))
    fails(StoreReadOnly, said, lambda: store.put(b"data"))  # it cannot be made young
    subprocess.run(["mount", "-o", "remount,rw", str(folder)], check=True)
    assert store.claim(TRIAL(1))


def an_unmounted_folder(folder: Path) -> None:
    """What is left of a mount point is an empty folder, which is not to be taken for a store."""
    mount(folder, "size=16M")
    (folder / "store").mkdir()
    subprocess.run(["mount", "--bind", str(folder / "store"), str(folder)], check=True)
    store, without_links = FolderStore(folder), FolderStore(folder, calls=NoLinks())
    store.claim(TRIAL(0), store.put(b"data"))
    without_links._claims.links = False
    cursor = store.changes().cursor
    subprocess.run(["umount", str(folder)], check=True)
    gone(folder, store, cursor)
    gone(folder, without_links, cursor)
    subprocess.run(["mount", "--bind", str(folder / "store"), str(folder)], check=True)
    assert [each.name for each in store.changes("", cursor).records] == []
    assert store.claim(TRIAL(1))


def a_removed_folder(folder: Path) -> None:
    store = FolderStore(folder / "store")
    store.claim(TRIAL(0), store.put(b"data"))
    cursor = store.changes().cursor
    (folder / "store").rename(folder / "moved")
    gone(folder / "store", store, cursor)
    assert not (folder / "store").exists()
    (folder / "moved").rename(folder / "store")
    assert store.resolve(TRIAL(0)) is not None


def gone(folder: Path, store: FolderStore, cursor: Any) -> None:
    """Everything says so, and nothing is written where the store was."""
    before = sorted(folder.rglob("*")) if folder.exists() else []
    uses: list[Callable[[], Any]] = [
        lambda: store.claim(TRIAL(0)),
        lambda: store.claim(TRIAL(1)),
        lambda: store.claim("other"),
        lambda: store.bind(TRIAL(0)),
        lambda: store.put(b"data"),
        lambda: store.get(digest_of(b"data")),
        lambda: store.resolve(TRIAL(0)),
        lambda: store.scan(),
        lambda: store.changes("", cursor),
        lambda: store.delete("spam/"),
        lambda: store.gc(0),
        lambda: store.now(),
    ]
    for use in uses:
        fails(StoreUnreachable, "mounted", use)
    assert (sorted(folder.rglob("*")) if folder.exists() else []) == before


def hosts_with_equal_pids(folder: Path) -> None:
    """Two hosts on which everything has the same process id, and the same counters.

    Until both have won something: on a busy machine one may claim all before the other begins.
    """
    races = count()
    while not all(_hosts_with_equal_pids(folder / f"store-{next(races)}")):
        pass


def _hosts_with_equal_pids(path: Path) -> list[list[int]]:
    """What each of them won."""
    FolderStore(path)
    host = ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-m"]
    with ExitStack() as stack:
        racers = [
            stack.enter_context(
                subprocess.Popen(
                    [*host, "tests.unit.store.racer", str(path), "300", str(me)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for me in range(2)
        ]
        for racer in racers:
            assert racer.stdout is not None
            assert racer.stdout.readline() == "ready\n"
        for racer in racers:
            assert racer.stdin is not None
            racer.stdin.write("go\n")
            racer.stdin.flush()
        won: list[list[int]] = [json.loads(racer.communicate(timeout=60)[0]) for racer in racers]
    records = Store(path).scan("spam/")
    assert {each.writer.partition(":")[2] for each in records} == {"1"}, "they are alike"
    assert sorted(won[0] + won[1]) == list(range(300))
    told = {TRIAL(n): str(me) for me in range(2) for n in won[me]}
    assert {each.name: each.meta["who"] for each in records} == told
    return won


if __name__ == "__main__":
    globals()[sys.argv[1]](Path(sys.argv[2]))
