"""Opening a bucket: the proof, what it costs, and what is said when it cannot be opened."""

from __future__ import annotations

import logging
import os
import pickle
import re
import socket
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from entrepot.errors import (
    ConditionalPutIgnored,
    ConfigurationError,
    NoBucket,
    StoreDenied,
    StoreError,
    StoreFormat,
    StoreReadOnly,
    StoreUnreachable,
)
from entrepot.settings import StoreSettings
from entrepot.store import Store
from entrepot.store.bucket import BucketStore
from entrepot.store.location import location_at
from entrepot.store.requests import Requests
from tests.integration.stores.conftest import BUCKET
from tests.stores.proxy import FaultProxy, How
from tests.stores.servers import SECRET, RcloneServer, SeaweedServer

LONGEST_S = 10.0
"""How long anybody may have to wait for the word that a store cannot be used."""

TOKEN = "session-token-that-must-not-be-told-0123456789"


# --- the proof --------------------------------------------------------------------------


def test_the_proof_is_two_requests_of_five(proxy: FaultProxy, prefix: str) -> None:
    with BucketStore.at(proxy.endpoint, BUCKET, prefix):
        pass
    with proxy.counted() as counts, BucketStore.at(proxy.endpoint, BUCKET, prefix):
        pass
    assert counts == {"GET": 1, "PUT": 2, "HEAD": 1, "DELETE": 1}
    probes = [
        asked.target for asked in proxy.seen if asked.kind == "PUT" and "probe" in asked.target
    ]
    assert len(probes) == 4
    assert probes[0] == probes[1] != probes[2] == probes[3]
    assert re.search("[0-9a-f]{32}$", probes[0])


def test_an_endpoint_that_ignores_the_condition_is_refused(rclone: RcloneServer) -> None:
    with pytest.raises(ConditionalPutIgnored, match=re.escape(rclone.endpoint)) as told:
        Store.on_bucket(rclone.endpoint, BUCKET)
    assert "wrote" in str(told.value)
    assert "twice" in str(told.value)
    written = [path.relative_to(rclone.data) for path in rclone.data.rglob("*") if path.is_file()]
    assert not [path for path in written if path.match("probe-*")], "the probe is removed"


def test_an_endpoint_that_has_no_conditions_is_refused(proxy: FaultProxy, prefix: str) -> None:
    proxy.spoil(How.ANSWERED, "PUT", "probe", status=501, code="NotImplemented")
    with pytest.raises(ConditionalPutIgnored, match="no conditional writes"):
        Store.on_bucket(proxy.endpoint, BUCKET, prefix)


def test_an_endpoint_on_which_nobody_would_win_is_refused(proxy: FaultProxy, prefix: str) -> None:
    proxy.spoil(How.ANSWERED, "PUT", "probe", times=2, status=412, code="PreconditionFailed")
    with pytest.raises(StoreError, match="nobody would ever win"):
        Store.on_bucket(proxy.endpoint, BUCKET, prefix)


@pytest.mark.parametrize("how", [How.LOST, How.CUT])
def test_a_proof_whose_replies_are_lost_is_still_one(
    proxy: FaultProxy, prefix: str, how: How
) -> None:
    for skip in (0, 1):
        proxy.spoil(how, "PUT", "probe", skip=skip)
        with BucketStore.at(proxy.endpoint, BUCKET, prefix) as store:
            assert store.claim(f"a/{skip}")


def test_a_reader_writes_nothing_and_is_let_in_anywhere(
    proxy: FaultProxy, store: BucketStore, rclone: RcloneServer
) -> None:
    store.claim("a")
    url = store.url.replace(store.location.service, proxy.endpoint)
    with Store.open(url, read_only=True) as reader:
        assert reader.resolve("a") is not None
        with pytest.raises(StoreReadOnly):
            reader.claim("b")
    assert {asked.kind for asked in proxy.seen} == {"GET"}
    # It needs no proof, since it claims nothing.
    where = location_at(f"s3://{BUCKET}/read?endpoint={rclone.endpoint}", {})
    with closing(Requests(where, StoreSettings(), os.environ)) as requests:
        requests.send("store.json", b'{"format":1,"claims":"put"}\n', "plant")
    with BucketStore.at(rclone.endpoint, BUCKET, "read", read_only=True) as reader:
        assert reader.scan() == []


def test_a_reader_makes_no_store(seaweed: SeaweedServer, prefix: str) -> None:
    with pytest.raises(StoreFormat, match="no store at"):
        BucketStore.at(seaweed.endpoint, BUCKET, prefix, read_only=True)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"by hand", "by hand"),
        (b'{"format":2,"claims":"put"}', "format 2"),
        (b'{"claims":"put"}', "not what a store has"),
    ],
)
def test_a_manifest_of_another_release_or_program(
    store: BucketStore, data: bytes, said: str
) -> None:
    store._requests.send("store.json", data, "plant")
    with pytest.raises(StoreFormat, match=said):
        Store.open(store.url)


# --- one store, many ways to it -----------------------------------------------------------


def test_the_url_that_a_store_says_opens_it(store: BucketStore) -> None:
    store.claim("a")
    with Store.open(store.url) as other:
        assert other.url == store.url
        assert not other.claim("a")


def test_prefixes_do_not_see_each_other(seaweed: SeaweedServer, store: BucketStore) -> None:
    prefix = store.location.prefix
    store.claim("a", store.put(b"x"))
    for other in (f"{prefix}/names", f"{prefix}2", f"{prefix}/sub dir/ünder"):
        with BucketStore.at(seaweed.endpoint, BUCKET, other) as theirs:
            assert theirs.scan() == []
            assert theirs.claim("a")
            theirs.gc(0, dry_run=False)
        with Store.open(theirs.url) as again:
            assert len(again.scan()) == 1
    assert len(store.scan()) == 1


def test_the_endpoint_may_come_from_the_environment(
    store: BucketStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", store.location.service)
    with Store.open(f"s3://{BUCKET}/{store.location.prefix}") as other:
        assert other.url == store.url


def test_an_endpoint_of_the_url_wins_over_the_environment(
    store: BucketStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    with Store.open(store.url) as other:
        assert other.url == store.url


@pytest.mark.usefixtures("anonymous")
def test_without_credentials_nothing_is_signed(open_seaweed: SeaweedServer, prefix: str) -> None:
    with FaultProxy(open_seaweed.endpoint) as proxy:
        with Store.on_bucket(proxy.endpoint, BUCKET, prefix) as store:
            assert store.claim("a")
        assert all("authorization" not in asked.headers for asked in proxy.seen)


def test_a_session_token_is_sent(
    proxy: FaultProxy, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", TOKEN)
    # This server knows no such token; that it was asked with one is what counts.
    with pytest.raises(StoreDenied) as told:
        Store.on_bucket(proxy.endpoint, BUCKET, prefix)
    assert all("x-amz-security-token" in asked.headers for asked in proxy.seen)
    assert TOKEN not in "".join(traceback.format_exception(told.value))


def test_a_store_goes_to_another_process_without_its_credentials(store: BucketStore) -> None:
    store.claim("a")
    data = pickle.dumps(store)
    assert SECRET.encode() not in data
    with pickle.loads(data) as other:
        assert (other.url, other.resolve("a")) == (store.url, store.resolve("a"))


# --- what cannot be opened ------------------------------------------------------------------


@pytest.fixture
def dead() -> Iterator[str]:
    """An endpoint where nobody listens, nor begins to."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


def told(act: Callable[[], object]) -> tuple[Exception, str]:
    """What is raised, within the time that there is, and all that a log would have of it."""
    began = time.monotonic()
    try:
        act()
    except Exception as error:
        assert time.monotonic() - began < LONGEST_S
        return error, "".join(traceback.format_exception(error))
    raise AssertionError("nothing was raised")


def test_wrong_credentials(
    seaweed: SeaweedServer,
    prefix: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    for name, value, said in (
        ("AWS_SECRET_ACCESS_KEY", "wrong-secret-0123456789", "SignatureDoesNotMatch"),
        ("AWS_ACCESS_KEY_ID", "nobodys-key-0123456789", "InvalidAccessKeyId"),
    ):
        with monkeypatch.context() as changed:
            changed.setenv(name, value)
            error, log = told(lambda: Store.on_bucket(seaweed.endpoint, BUCKET, prefix))
        assert isinstance(error, StoreDenied)
        assert said in str(error)
        assert "AWS_SECRET_ACCESS_KEY" in str(error)
        for secret in (value, SECRET):
            assert secret not in log
            assert secret not in caplog.text


@pytest.mark.usefixtures("anonymous")
def test_no_credentials(seaweed: SeaweedServer, prefix: str) -> None:
    error, _ = told(lambda: Store.on_bucket(seaweed.endpoint, BUCKET, prefix))
    assert isinstance(error, StoreDenied)
    assert "AWS_ACCESS_KEY_ID" in str(error)


@pytest.mark.parametrize("read_only", [False, True])
def test_no_such_bucket(seaweed: SeaweedServer, read_only: bool) -> None:
    url = f"s3://nobodys-bucket/x?endpoint={seaweed.endpoint}"
    error, _ = told(lambda: Store.open(url, read_only=read_only))
    assert isinstance(error, NoBucket)
    assert f"entrepot store init '{url}'" in str(error)


def test_nobody_listens(dead: str) -> None:
    error, _ = told(lambda: Store.on_bucket(dead, BUCKET))
    assert isinstance(error, StoreUnreachable)
    assert dead in str(error)
    assert "Connection refused" in str(error)


def test_nobody_of_that_name() -> None:
    error, _ = told(lambda: Store.on_bucket("http://nobody.invalid:9000", BUCKET))
    assert isinstance(error, StoreUnreachable)
    assert "http://nobody.invalid:9000" in str(error)


def test_somebody_listens_and_never_answers(proxy: FaultProxy, prefix: str) -> None:
    proxy.spoil(How.STALLED, "GET", times=99)
    error, _ = told(lambda: Store.on_bucket(proxy.endpoint, BUCKET, prefix))
    assert isinstance(error, StoreUnreachable)
    assert "no answer in time" in str(error)


def test_an_endpoint_that_stops_answering_later(proxy: FaultProxy, prefix: str) -> None:
    """How long the tries take that it is told to make is looked at in test_patience.py."""
    settings = StoreSettings(attempts=2)
    with BucketStore.at(proxy.endpoint, BUCKET, prefix, settings=settings) as store:
        store.claim("a")
        for kind, act in (("GET", lambda: store.resolve("a")), ("LIST", store.scan)):
            proxy.spoil(How.STALLED, kind, times=99)
            error, _ = told(act)
            assert isinstance(error, StoreUnreachable)
            assert "no answer in time" in str(error)
        proxy.mend()
        assert store.resolve("a") is not None


@pytest.mark.parametrize("status", [500, 503])
def test_a_server_that_is_down_behind_its_proxy(
    proxy: FaultProxy, prefix: str, status: int
) -> None:
    proxy.spoil(How.ANSWERED, "GET", times=99, status=status, code="SlowDown")
    error, _ = told(lambda: Store.on_bucket(proxy.endpoint, BUCKET, prefix))
    assert isinstance(error, StoreUnreachable)
    assert f"{status} SlowDown, 2 times" in str(error)


def test_what_is_no_bucket_at_all(seaweed: SeaweedServer) -> None:
    port = seaweed.ports[2]  # its master's pages
    error, _ = told(lambda: Store.on_bucket(f"http://127.0.0.1:{port}", BUCKET))
    assert isinstance(error, StoreError)


@pytest.mark.parametrize(
    "url",
    [
        "s3://",
        "s3://b",
        "s3://bucket/../x",
        "s3://bucket/a//b",
        "s3://bucket/%0A",
        "s3://bucket?endpoint=ftp://host",
        "s3://bucket?endpoint=http://",
        "s3://bucket?endpoint=http://host:99999",
        "s3://bucket?endpoint=http://host?x=1",
        "s3://bucket?endpoint=",
        "s3://bucket?secret=x",
        "s3://bucket?endpoint=http://a&endpoint=http://b",
        "s3://bucket#part",
        "gs://bucket?region=x",
        "http://bucket",
        "s3:bucket",
    ],
)
def test_what_is_no_url_of_a_bucket(url: str) -> None:
    with pytest.raises(ConfigurationError):
        BucketStore.from_url(url)


@pytest.mark.parametrize(
    "url",
    ["s3://me:hunter2-0123@bucket/x", "s3://bucket?endpoint=http://me:hunter2-0123@host:9000"],
)
def test_a_url_with_a_password_is_refused_without_repeating_it(url: str) -> None:
    error, _ = told(lambda: Store.open(url))
    assert isinstance(error, ConfigurationError)
    assert "hunter2" not in str(error)
    assert "credentials" in str(error)
