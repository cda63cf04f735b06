"""Stores that processes share: a folder, and a bucket in a real S3 server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from entrepot.store import Store
from entrepot.store.bucket import BucketStore
from tests.integration.stores.conftest import (
    BUCKET,
    environment,
    patient,
    prefix,
    proxied,
    proxy,
    seaweed,
)
from tests.integration.stores.conftest import store as writer

__all__ = ["environment", "patient", "prefix", "proxied", "proxy", "seaweed", "writer"]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Store]:
    """A store in a folder, without fsyncs: nobody pulls the plug here."""
    with Store(tmp_path / "store", durable=False) as made:
        yield made


@pytest.fixture(params=["folder", "bucket"])
def shared(request: pytest.FixtureRequest) -> Iterator[Store]:
    """Each of the two."""
    if request.param == "folder":
        yield request.getfixturevalue("folder")
        return
    server = request.getfixturevalue("seaweed")
    with BucketStore.at(server.endpoint, BUCKET, request.getfixturevalue("prefix")) as made:
        yield made
