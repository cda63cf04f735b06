"""A bucket of a real server under the suite for all stores."""

from __future__ import annotations

import secrets

import pytest

pytest.register_assert_rewrite("entrepot.testing")

from entrepot.store import Store  # noqa: E402
from entrepot.store.bucket import BucketStore  # noqa: E402
from entrepot.testing import StoreContract  # noqa: E402
from tests.integration.stores.conftest import BUCKET  # noqa: E402
from tests.stores.servers import SeaweedServer  # noqa: E402


class TestBucketStore(StoreContract):
    @pytest.fixture(autouse=True)
    def _server(self, seaweed: SeaweedServer) -> None:
        self.endpoint = seaweed.endpoint

    def make(self) -> BucketStore:
        return BucketStore.at(self.endpoint, BUCKET, f"contract/{secrets.token_hex(8)}")

    def again(self, store: Store, *, read_only: bool = False) -> Store:
        return Store.open(store.url, read_only=read_only)

    def plant(self, store: Store, key: str, data: bytes) -> None:
        assert isinstance(store, BucketStore)
        store._requests.send(key, data, "plant")
