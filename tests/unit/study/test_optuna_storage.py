"""Optuna's own suite over a folder and over memory."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

pytest.register_assert_rewrite("optuna.testing.pytest_storages")

from optuna.storages import BaseStorage  # noqa: E402
from optuna.testing.pytest_storages import StorageTestCase  # noqa: E402

from entrepot.store import Store  # noqa: E402
from entrepot.store.memory import MemoryStore  # noqa: E402
from entrepot.study.optuna import EntrepotStorage  # noqa: E402


class TestInAFolder(StorageTestCase):
    @pytest.fixture
    def storage(self, tmp_path: Path) -> EntrepotStorage:
        return EntrepotStorage(Store(tmp_path / "store", durable=False))


class TestInMemory(StorageTestCase):
    @pytest.fixture
    def storage(self) -> EntrepotStorage:
        return EntrepotStorage(MemoryStore())

    def test_pickle_storage(self, storage: BaseStorage) -> None:
        with pytest.raises(TypeError):
            pickle.dumps(storage)
