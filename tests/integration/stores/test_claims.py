"""Every name is claimed once: by many processes, and through everything that can go wrong."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from entrepot.errors import ClaimUnsettled, StoreDenied
from entrepot.store import Store
from entrepot.store.bucket import BucketStore
from tests.integration.stores.conftest import BUCKET, QUICK
from tests.peer.process import LineProcess
from tests.stores.proxy import FaultProxy, How
from tests.stores.servers import SeaweedServer

RACERS = 8
NAMES = [f"spam/trial/{number}/0" for number in range(1000)]

FAULTS = [
    (How.LOST, 200, ""),
    (How.CUT, 200, ""),
    (How.STALLED, 200, ""),
    (How.MUTE, 200, ""),
    (How.ANSWERED, 409, "ConditionalRequestConflict"),
    (How.ANSWERED, 429, "TooManyRequests"),
    (How.ANSWERED, 500, "InternalError"),
    (How.ANSWERED, 503, "SlowDown"),
    (How.DENIED, 409, "ConditionalRequestConflict"),
    (How.DENIED, 412, "PreconditionFailed"),
    (How.DENIED, 500, "InternalError"),
    (How.DENIED, 503, "ServiceUnavailable"),
]
"""What a network, a proxy that asks again, or a server under load does to a PUT."""

each_fault = pytest.mark.parametrize(
    ("how", "status", "code"), FAULTS, ids=[f"{how.name}-{status}" for how, status, _ in FAULTS]
)


# --- many processes ---------------------------------------------------------------------


@pytest.fixture
def racers(store: BucketStore) -> Iterator[list[LineProcess]]:
    """Processes that have opened the store."""
    with ExitStack() as stack:
        started = [stack.enter_context(LineProcess("tests.stores.racer")) for _ in range(RACERS)]
        for racer in started:
            racer.begin("open", url=store.url)
        for racer in started:
            racer.finish()
        yield started


def race(store: Store, racers: list[LineProcess]) -> None:
    for racer in racers:
        racer.begin("race", names=NAMES)
    won = {racer.pid: racer.finish(timeout_s=300) for racer in racers}
    assert sorted(name for names in won.values() for name in names) == sorted(NAMES)
    winners = {name: str(pid) for pid, names in won.items() for name in names}
    assert {record.name: record.meta["pid"] for record in store.scan()} == winners


@pytest.mark.timeout(300)
@pytest.mark.parametrize("run", range(2))
def test_eight_processes_and_a_thousand_names_have_one_winner_each(
    store: BucketStore, racers: list[LineProcess], run: int
) -> None:
    race(store, racers)


@pytest.mark.soak
@pytest.mark.parametrize("run", range(20))
def test_eight_processes_and_a_thousand_names_again_and_again(
    store: BucketStore, racers: list[LineProcess], run: int
) -> None:
    race(store, racers)


# --- what may go wrong ------------------------------------------------------------------


@each_fault
def test_who_claims_alone_gets_it_and_knows(
    proxied: BucketStore, proxy: FaultProxy, store: BucketStore, how: How, status: int, code: str
) -> None:
    rule = proxy.spoil(how, "PUT", "names/", status=status, code=code)
    nonce = "a" * 32
    assert proxied.claim("spam/trial/7/0", nonce=nonce)
    assert rule.spoilt == 1
    found = store.resolve("spam/trial/7/0")
    assert found is not None
    assert found.nonce == nonce
    assert not store.claim("spam/trial/7/0")


@each_fault
def test_who_comes_second_does_not_get_it(
    proxied: BucketStore, proxy: FaultProxy, store: BucketStore, how: How, status: int, code: str
) -> None:
    assert store.claim("spam/trial/7/0", nonce="b" * 32)
    rule = proxy.spoil(how, "PUT", "names/", status=status, code=code)
    assert not proxied.claim("spam/trial/7/0")
    assert rule.spoilt == 1
    found = store.resolve("spam/trial/7/0")
    assert found is not None
    assert found.nonce == "b" * 32


@each_fault
def test_of_many_at_once_one_gets_it(
    proxied: BucketStore, proxy: FaultProxy, store: BucketStore, how: How, status: int, code: str
) -> None:
    names = [f"spam/trial/{number}/0" for number in range(4)]
    proxy.spoil(how, "PUT", "names/", status=status, code=code, times=6, skip=1)
    told: list[tuple[str, str]] = []
    start = threading.Barrier(4)

    def claim(each: BucketStore, me: str) -> None:
        start.wait(30)
        for name in names:
            nonce = me * 16 + name.encode().hex()[:16]
            if each.claim(name, nonce=nonce, meta={"who": me}):
                told.append((name, me))

    threads = [
        threading.Thread(target=claim, args=(each, me))
        for each, me in ((proxied, "a"), (proxied, "b"), (proxied, "c"), (store, "d"))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(name for name, _ in told) == names
    assert {(record.name, record.meta["who"]) for record in store.scan()} == set(told)


@pytest.mark.parametrize("how", [How.LOST, How.CUT])
def test_a_read_back_that_fails_is_repeated(
    proxied: BucketStore, proxy: FaultProxy, store: BucketStore, how: How
) -> None:
    proxy.spoil(how, "PUT", "names/", times=2)
    proxy.spoil(How.ANSWERED, "GET", "names/", times=2, status=503)
    assert proxied.claim("spam/trial/7/0", nonce="c" * 32)
    found = store.resolve("spam/trial/7/0")
    assert found is not None
    assert found.nonce == "c" * 32


@pytest.mark.parametrize(("how", "landed"), [(How.LOST, True), (How.CUT, False)])
def test_what_cannot_be_settled_says_so_and_can_be_asked_again(
    proxied: BucketStore, proxy: FaultProxy, store: BucketStore, how: How, landed: bool
) -> None:
    proxy.spoil(how, "PUT", "names/", times=1000)
    proxy.spoil(How.ANSWERED, "GET", "names/", times=1000)
    with pytest.raises(ClaimUnsettled, match=r"spam/trial/7/0.*500 InternalError") as told:
        proxied.claim("spam/trial/7/0")
    proxy.mend()
    found = store.resolve("spam/trial/7/0")
    assert (found is not None and found.nonce == told.value.nonce) is landed
    assert proxied.claim("spam/trial/7/0", nonce=told.value.nonce)
    assert not proxied.claim("spam/trial/7/0")


def test_what_is_refused_for_good_is_not_tried_again(
    proxied: BucketStore, proxy: FaultProxy, store: BucketStore
) -> None:
    rule = proxy.spoil(How.ANSWERED, "PUT", "names/", times=9, status=403, code="AccessDenied")
    with pytest.raises(StoreDenied, match="403 AccessDenied"):
        proxied.claim("spam/trial/7/0")
    assert rule.spoilt == 1
    assert store.resolve("spam/trial/7/0") is None


def test_a_claim_is_one_request_and_a_lost_one_two(patient: BucketStore, proxy: FaultProxy) -> None:
    with proxy.counted() as won:
        assert patient.claim("spam/trial/7/0")
    assert won == {"PUT": 1}
    with proxy.counted() as lost:
        assert not patient.claim("spam/trial/7/0")
    assert lost == {"PUT": 1, "GET": 1}


def test_a_bind_whose_reply_is_lost_is_made_again(
    proxied: BucketStore, proxy: FaultProxy, store: BucketStore
) -> None:
    for how in (How.LOST, How.CUT, How.ANSWERED):
        rule = proxy.spoil(how, "PUT", "names/")
        proxied.bind("a", meta={"how": how.name})
        assert rule.spoilt == 1
        found = store.resolve("a")
        assert found is not None
        assert found.meta == {"how": how.name}


def test_claims_of_one_store_through_two_endpoints(
    seaweed: SeaweedServer, proxied: BucketStore, store: BucketStore
) -> None:
    assert proxied.claim("a")
    assert not store.claim("a")
    with BucketStore.at(seaweed.endpoint, BUCKET, "elsewhere", settings=QUICK) as other:
        assert other.resolve("a") is None
