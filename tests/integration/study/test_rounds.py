"""Federated rounds by processes that have nothing but a store in common."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from entrepot.store import Store
from entrepot.store.bucket import BucketStore
from tests.peer.process import LineProcess
from tests.peer.waiting import until
from tests.stores.proxy import FaultProxy
from tests.unit.federation.rounds import meet, put_in, weights


@contextmanager
def clients(store: Store, count: int) -> Iterator[list[LineProcess]]:
    """Processes that have opened the store."""
    with ExitStack() as stack:
        started = [
            stack.enter_context(LineProcess("tests.integration.study.parties"))
            for _ in range(count)
        ]
        for each in started:
            each.begin("open", url=store.url)
        for each in started:
            each.finish()
        yield started


def averagings(store: Store) -> list[str]:
    return [record.name for record in store.scan("fed/") if "/averaging-" in record.name]


def test_four_processes_leave_each_round_with_the_same_number(shared: Store) -> None:
    # Round 0: the mean of 0, 1, 2, 3 is 1.5, and all go on from 2.5. Round 1: all end at 3.5.
    with clients(shared, 4) as started:
        for mine, client in enumerate(started):
            client.begin("rounds", mine=mine, clients=4, rounds=2)
        assert [client.finish() for client in started] == [3.5] * 4
    assert averagings(shared) == ["fed/round/0/averaging-0", "fed/round/1/averaging-0"]


def test_who_does_not_come_is_named_by_all_who_did(folder: Store) -> None:
    with clients(folder, 3) as started:
        for mine, client in enumerate(started):
            client.begin("alone", mine=mine, clients=4, within=1.0, come=3)
        for client in started:
            told = client.finish()
            assert told["missing"] == [3]
            assert "client 3 never turned up within 1 s" in told["said"]
    assert averagings(folder) == []


def test_an_averager_that_is_killed_is_followed_by_the_next(shared: Store) -> None:
    put_in(shared, weights(2.0), mine=0, clients=2)
    with clients(shared, 1) as (victim,):
        victim.begin("hang_averaging", mine=1, clients=2)
        until(lambda: averagings(shared))
        victim.kill()
        assert meet(shared, 2.0, clients=2, patience=5.0, resume=True) == 1.5
        assert averagings(shared) == ["fed/round/0/averaging-0", "fed/round/0/averaging-1"]
    # And the killed one, when it is started again, leaves with the same.
    with clients(shared, 1) as (again,):
        assert again.ask("rounds", mine=1, clients=2, rounds=1, resume=True) == 2.5


def test_a_look_at_a_bucket_is_two_listings_and_what_is_new(
    patient: BucketStore, proxy: FaultProxy
) -> None:
    for mine in range(1, 20):
        put_in(patient, weights(mine), mine=mine, clients=20)
    with proxy.counted() as asked:
        assert meet(patient, 0.0, clients=20) == 9.5
    # Mine, the averaging and the mean; each client's record at the first look, and its blob.
    assert asked["LIST"] <= 6
    assert asked["PUT"] == 5
    assert asked["GET"] <= 20 + 20 + 2
