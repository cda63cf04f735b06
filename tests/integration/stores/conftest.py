"""Fixtures: real S3 servers, a bucket in one of them, and the proxy before it."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator

import pytest

from entrepot.settings import StoreSettings
from entrepot.store.bucket import BucketStore
from tests.integration.needs import lacking
from tests.stores.proxy import FaultProxy
from tests.stores.servers import CREDENTIALS, RcloneServer, SeaweedServer, ServerFailed, program

BUCKET = "studies"

QUICK = StoreSettings(timeout_s=2.0, backoff_s=0.01, max_backoff_s=0.1)
"""For tests in which requests fail: as the default, with shorter pauses."""

PATIENT = StoreSettings(timeout_s=60.0)
"""For tests that count requests, or hold one: a busy machine has nothing asked twice."""


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The credentials of the servers, and nothing of this machine's own."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "GOOGLE_", "AZURE_", "ENTREPOT_STORE")):
            monkeypatch.delenv(name)
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)


def _needs(name: str) -> None:
    try:
        program(name)
    except ServerFailed as error:
        lacking(str(error))


@pytest.fixture(scope="session")
def seaweed() -> Iterator[SeaweedServer]:
    """SeaweedFS, which wants signatures, with a bucket."""
    _needs("weed")
    with SeaweedServer() as server:
        server.make(BUCKET)
        yield server


@pytest.fixture(scope="session")
def open_seaweed() -> Iterator[SeaweedServer]:
    """SeaweedFS that wants no signatures, with a bucket."""
    _needs("weed")
    with SeaweedServer(signed=False) as server:
        server.make(BUCKET)
        yield server


@pytest.fixture
def anonymous(monkeypatch: pytest.MonkeyPatch) -> None:
    """No credentials."""
    for name in CREDENTIALS:
        monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def rclone() -> Iterator[RcloneServer]:
    """rclone's server, which ignores If-None-Match, with a bucket."""
    _needs("rclone")
    with RcloneServer() as server:
        server.make(BUCKET)
        yield server


@pytest.fixture
def prefix() -> str:
    """A folder in the bucket that nobody has."""
    return f"test/{secrets.token_hex(8)}"


@pytest.fixture
def store(seaweed: SeaweedServer, prefix: str) -> Iterator[BucketStore]:
    """A new store in the bucket."""
    with BucketStore.at(seaweed.endpoint, BUCKET, prefix) as made:
        yield made


@pytest.fixture
def proxy(seaweed: SeaweedServer) -> Iterator[FaultProxy]:
    with FaultProxy(seaweed.endpoint) as started:
        yield started


@pytest.fixture
def proxied(proxy: FaultProxy, prefix: str) -> Iterator[BucketStore]:
    """The same store as ``store``, through the proxy."""
    with BucketStore.at(proxy.endpoint, BUCKET, prefix, settings=QUICK) as made:
        yield made


@pytest.fixture
def patient(proxy: FaultProxy, prefix: str) -> Iterator[BucketStore]:
    """As ``proxied``, and it waits for as long as it takes."""
    with BucketStore.at(proxy.endpoint, BUCKET, prefix, settings=PATIENT) as made:
        yield made
