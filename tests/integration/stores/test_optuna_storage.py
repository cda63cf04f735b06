"""Optuna's own suite for storages over a bucket."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.register_assert_rewrite("optuna.testing.pytest_storages")

from optuna.testing.pytest_storages import StorageTestCase  # noqa: E402

from entrepot.study.optuna import EntrepotStorage  # noqa: E402
from tests.integration.stores.conftest import BUCKET  # noqa: E402
from tests.stores.servers import SeaweedServer  # noqa: E402


class TestInABucket(StorageTestCase):
    @pytest.fixture
    def storage(self, seaweed: SeaweedServer, prefix: str) -> Iterator[EntrepotStorage]:
        storage = EntrepotStorage(f"s3://{BUCKET}/{prefix}?endpoint={seaweed.endpoint}")
        yield storage
        storage.close()
