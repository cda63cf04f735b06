"""Folders under the suite for all stores: with fsyncs and without, with hard links and without."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.register_assert_rewrite("entrepot.testing")

from entrepot.store import Store  # noqa: E402
from entrepot.store.calls import Calls  # noqa: E402
from entrepot.store.folder import FolderStore  # noqa: E402
from entrepot.testing import StoreContract  # noqa: E402
from tests.unit.store.folder_faults import NoLinks  # noqa: E402


class TestFolderStore(StoreContract):
    durable = True
    calls: type[Calls] = Calls

    @pytest.fixture(autouse=True)
    def _folders(self, tmp_path: Path) -> None:
        self.tmp_path = tmp_path
        self.made = 0

    def make(self) -> FolderStore:
        self.made += 1
        return self.at(self.tmp_path / f"store-{self.made}")

    def at(self, path: Path, *, read_only: bool = False) -> FolderStore:
        return FolderStore(path, read_only=read_only, durable=self.durable, calls=self.calls())

    def again(self, store: Store, *, read_only: bool = False) -> FolderStore:
        assert isinstance(store, FolderStore)
        return self.at(store.path, read_only=read_only)

    def plant(self, store: Store, key: str, data: bytes) -> None:
        assert isinstance(store, FolderStore)
        path = store.path / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def test_store_json_says_how_claims_are_made(self) -> None:
        with self.store() as store:
            assert isinstance(store, FolderStore)
            expected = "link" if self.calls is Calls else "exclusive"
            assert store.claims == expected
            assert (store.path / "store.json").read_text() == (
                f'{{"format":1,"claims":"{expected}"}}\n'
            )


class TestFolderStoreWithoutSyncs(TestFolderStore):
    durable = False


class TestFolderStoreWithoutLinks(TestFolderStore):
    calls = NoLinks
