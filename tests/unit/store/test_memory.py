"""The store in memory under the suite for all stores."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("entrepot.testing")

from entrepot.store import Store  # noqa: E402
from entrepot.store.memory import MemoryStore  # noqa: E402
from entrepot.testing import StoreContract  # noqa: E402


class TestMemoryStore(StoreContract):
    forks = False

    def make(self) -> MemoryStore:
        return MemoryStore()

    def again(self, store: Store, *, read_only: bool = False) -> MemoryStore:
        assert isinstance(store, MemoryStore)
        return store.view(read_only=read_only)

    def plant(self, store: Store, key: str, data: bytes) -> None:
        assert isinstance(store, MemoryStore)
        store.plant(key, data)
