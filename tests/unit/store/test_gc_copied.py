"""A digest that goes from one record to another while gc reads them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from entrepot.store.folder import FolderStore
from entrepot.store.layout import blob_key


@pytest.mark.parametrize("as_meta", [True, False])
def test_a_digest_that_was_copied_and_then_taken_off_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_meta: bool
) -> None:
    store, other = (FolderStore(tmp_path / "store") for _ in range(2))
    digest, unneeded = store.put(b"weights"), store.put(b"old weights")
    store.bind("run/1/checkpoint", digest)
    for each in (digest, unneeded):
        os.utime(store.path / blob_key(each), (1, 1))
    read_many = store._read_many
    moved: list[bool] = []

    def read(keys: Sequence[str]) -> Sequence[bytes | None]:
        if any("checkpoint" in key for key in keys) and not moved:
            moved.append(True)
            # What is listed already, and read in a moment, is not what names it by then.
            if as_meta:
                other.claim("run/2/checkpoint", meta={"from": digest})
            else:
                other.claim("run/2/checkpoint", digest)
            other.bind("run/1/checkpoint")
        return list(read_many(keys))

    monkeypatch.setattr(store, "_read_many", read)
    assert store.gc(3600.0, dry_run=False).digests == [unneeded]
    assert moved
    assert store.get(digest) == b"weights"
