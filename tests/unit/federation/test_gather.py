"""A round: who waits for whom, who averages, and what goes wrong."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from entrepot.errors import (
    ConfigurationError,
    FederationError,
    RoundIncomplete,
    RunReused,
    StoreUnreachable,
)
from entrepot.federation import gather
from entrepot.store import Store
from entrepot.store.base import Changes
from entrepot.store.layout import blob_key
from entrepot.store.memory import MemoryStore
from tests.unit.federation.rounds import Time, meet, put_in, value_of, weights


@pytest.fixture(params=["folder", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path / "store", durable=False) if request.param == "folder" else MemoryStore()
    with made:
        yield made


def names(store: Store) -> list[str]:
    return [record.name.removeprefix("fed/round/0/") for record in store.scan("fed/")]


# --- a round ----------------------------------------------------------------------------


def test_the_only_client_averages_by_itself_and_publishes(store: Store) -> None:
    assert meet(store, 4.0) == 4.0
    assert names(store) == ["average", "averaging-0", "client-0"]
    average = store.resolve("fed/round/0/average")
    assert average is not None
    assert average.meta == {"clients": "1", "by": "0", "took": "0"}


def test_the_last_to_come_averages_and_the_first_finds_it(store: Store) -> None:
    time = Time()
    time.at[105.0] = lambda: meet(store, 3.0, mine=1, clients=2)
    assert meet(store, 1.0, clients=2, time=time) == 2.0
    assert 5.0 <= time.passed <= 6.5
    assert names(store).count("averaging-0") == 1


def test_who_comes_late_leaves_with_the_average_of_its_round(store: Store) -> None:
    put_in(store, weights(98.0), mine=0, clients=8)
    assert meet(store, 100.0, mine=1, clients=8, within=1.0, quorum=2) == 99.0
    before = names(store)
    time = Time()
    assert meet(store, 1.0, mine=3, clients=8, within=0.0, time=time) == 99.0
    assert time.slept == 0
    assert names(store) == before


def test_two_runs_are_two_and_so_are_two_rounds(store: Store) -> None:
    assert meet(store, 1.0, run="one") == 1.0
    assert meet(store, 7.0, run="other") == 7.0
    assert meet(store, 8.0, run="one", round=1) == 8.0
    assert meet(store, 9.0, run="one/deeper") == 9.0


def test_all_leave_with_what_they_came_with_in_kind() -> None:
    store = MemoryStore()
    nets = [torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2)) for _ in range(2)]
    for net, batches in zip(nets, (3, 5), strict=True):
        for _ in range(batches):
            net(torch.randn(4, 3))
    states = [net.state_dict() for net in nets]
    put_in(store, states[0], mine=0, clients=2, size=1)
    second = gather(store, states[1], run="fed", round=0, clients=2, mine=1, size=3)
    first = gather(store, states[0], run="fed", round=0, clients=2, mine=0, resume=True)
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name])
        assert tensor.dtype is states[0][name].dtype
    torch.testing.assert_close(
        first["0.weight"], states[0]["0.weight"] * 0.25 + states[1]["0.weight"] * 0.75
    )
    assert first["1.num_batches_tracked"].item() == 5
    nets[0].load_state_dict(first)
    first["0.weight"].add_(1.0)  # it is ours


# --- sizes ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "mean"),
    [((900, 100), 9.0), ((None, None), 5.0), ((1, 0), 10.0), ((0.25, 0.75), 2.5)],
)
def test_sizes_weigh(store: Store, sizes: tuple[float | None, float | None], mean: float) -> None:
    put_in(store, weights(0.0), mine=1, clients=2, size=sizes[1])
    assert meet(store, 10.0, clients=2, size=sizes[0]) == mean


def test_where_one_does_not_say_its_size_all_weigh_the_same(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    put_in(store, weights(0.0), mine=1, clients=2)
    with caplog.at_level(logging.WARNING):
        assert meet(store, 10.0, clients=2, size=900) == 5.0
    assert [record.silent for record in caplog.records] == ["1"]  # type: ignore[attr-defined]


# --- who does not turn up ---------------------------------------------------------------


def test_at_the_dead_line_the_missing_are_named(store: Store) -> None:
    time = Time()
    with pytest.raises(RoundIncomplete, match=r"round 0 of 'fed': client 1, 2, 3 never") as told:
        meet(store, 1.0, clients=4, within=30.0, time=time)
    assert told.value.missing == [1, 2, 3]
    assert isinstance(told.value, TimeoutError)
    assert 30.0 <= time.passed < 31.0
    assert time.slept < 60


def test_with_a_quorum_the_dead_line_goes_on_with_those_who_came(store: Store) -> None:
    put_in(store, weights(4.0), mine=2, clients=4, size=1)
    put_in(store, weights(6.0), mine=3, clients=4, size=2)
    time = Time()
    assert meet(store, 1.0, clients=4, size=1, within=30.0, quorum=3, time=time) == 17 / 4
    assert 30.0 <= time.passed < 31.0
    average = store.resolve("fed/round/0/average")
    assert average is not None
    assert average.meta["took"] == "0,2,3"
    assert meet(store, 1000.0, mine=1, clients=4, size=9) == 17 / 4


def test_fewer_than_the_quorum_are_not_enough(store: Store) -> None:
    put_in(store, weights(4.0), mine=2, clients=4)
    with pytest.raises(RoundIncomplete, match=r"client 1, 3 never.* 2 of 4 .*the quorum is 3"):
        meet(store, 1.0, clients=4, within=3.0, quorum=3)


# --- who dies averaging -----------------------------------------------------------------


def test_a_dead_averager_is_followed_by_the_next(store: Store) -> None:
    put_in(store, weights(2.0), mine=1, clients=2)
    # All are there, and whoever claimed the averaging is not heard of again.
    store.claim("fed/round/0/averaging-0", meta={"by": "1"})
    time = Time()
    assert meet(store, 4.0, clients=2, within=1.0, patience=20.0, time=time) == 3.0
    assert 20.0 <= time.passed < 21.5
    assert names(store) == ["average", "averaging-0", "averaging-1", "client-0", "client-1"]


def test_each_next_averaging_is_waited_for_twice_as_long_and_the_third_is_the_last(
    store: Store,
) -> None:
    put_in(store, weights(2.0), mine=1, clients=2)
    for attempt in range(3):
        store.claim(f"fed/round/0/averaging-{attempt}", meta={"by": "1"})
    time = Time()
    with pytest.raises(FederationError, match="3 clients began the average and none came to its"):
        meet(store, 4.0, clients=2, patience=20.0, time=time)
    assert 80.0 <= time.passed < 81.5


def test_who_was_only_slow_leaves_with_what_the_others_have(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two average at once, over different clients: one mean is the round's."""
    put_in(store, weights(2.0), mine=1, clients=3)
    claim = store.claim
    others: list[float] = []

    def slow(name: str, *given: Any, **more: Any) -> bool:
        if name.endswith("/average") and not others:
            others.append(math.nan)
            put_in(store, weights(9.0), mine=2, clients=3)
            others[:] = [meet(store, 2.0, mine=1, clients=3, patience=0.0, resume=True)]
        return claim(name, *given, **more)

    monkeypatch.setattr(store, "claim", slow)
    mine = meet(store, 4.0, clients=3, within=1.0, quorum=2)
    assert others == [5.0]
    assert mine == 5.0


# --- what cannot be averaged ------------------------------------------------------------


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_an_update_that_is_not_finite_is_refused_before_anything_is_written(
    store: Store, wrong: float
) -> None:
    with pytest.raises(FederationError, match=r"client 1, key 'body\.0': the update is not finite"):
        meet(store, wrong, mine=1, clients=2)
    with pytest.raises(FederationError, match="client 0, key 'w': the update is not finite"):
        gather(store, {"w": torch.tensor([wrong])}, run="fed", round=0, clients=1, mine=0)
    assert names(store) == []


REFUSED: list[tuple[str, dict[str, Any]]] = [
    (r"client 1, key 'body\.0': the update is not finite", weights(math.nan)),
    (r"client 1, key 'body\.0': shape \[5\], and client 0 has \[4\]", weights(1.0, n=5)),
    (r"client 1 has no key 'body\.0', and client 0 has", {"head": {"0": np.ones(4)}}),
    (r"client 1, key 'body\.0': dtype float32, .*", {"body": {"0": np.ones(4, np.float32)}}),
    (
        r"client 1, key 'body\.0': kind tensor, .*",
        {"body": {"0": torch.ones(4, dtype=torch.float64)}},
    ),
]


@pytest.mark.parametrize(("said", "state"), REFUSED, ids=range(len(REFUSED)))
def test_what_another_sent_and_cannot_be_averaged_is_said_to_all_at_once(
    store: Store, said: str, state: dict[str, Any]
) -> None:
    put_in(store, state, mine=1, clients=3)
    put_in(store, weights(2.0), mine=2, clients=3)
    with pytest.raises(FederationError, match=said):
        meet(store, 4.0, clients=3)
    time = Time()
    with pytest.raises(FederationError, match=said):
        meet(store, 2.0, mine=2, clients=3, resume=True, time=time)
    assert time.slept == 0


def test_sizes_that_are_all_nought_are_said_to_all(store: Store) -> None:
    put_in(store, weights(2.0), mine=1, clients=2, size=0)
    for mine in (0, 1):
        with pytest.raises(FederationError, match="all 2 sizes are 0"):
            meet(store, 4.0, mine=mine, clients=2, size=0, resume=mine == 1)


def test_an_update_that_cannot_be_read_is_said_by_its_client() -> None:
    for spoilt in (b"nonsense", None):
        store = MemoryStore()
        put_in(store, weights(2.0), mine=1, clients=2)
        record = store.resolve("fed/round/0/client-1")
        assert record is not None
        if spoilt is None:
            store._remove(blob_key(record.digest))
        else:
            store.plant(blob_key(record.digest), spoilt)
        with pytest.raises(FederationError, match="what client 1 sent cannot be read"):
            meet(store, 4.0, clients=2)


def test_who_comes_late_with_another_model_is_told(store: Store) -> None:
    meet(store, 4.0, clients=2, within=0.0, quorum=1)
    with pytest.raises(FederationError, match=r"key 'body\.0': shape \[4\], and client 1 has \[5"):
        gather(store, weights(1.0, n=5), run="fed", round=0, clients=2, mine=1)


# --- names that were used before --------------------------------------------------------


def test_a_name_that_was_used_before_is_refused_unless_the_run_goes_on(store: Store) -> None:
    assert meet(store, 4.0) == 4.0
    with pytest.raises(RunReused, match=r"client 0 has sent round 0 of 'fed' before.*resume=True"):
        meet(store, 5.0)
    assert meet(store, 5.0, resume=True) == 4.0
    assert meet(store, 5.0, round=1, resume=True) == 5.0


def test_a_round_that_was_cut_short_goes_on_where_it_was(store: Store) -> None:
    put_in(store, weights(4.0), mine=0, clients=2)
    with pytest.raises(RunReused):
        meet(store, 5.0, clients=2)
    put_in(store, weights(6.0), mine=1, clients=2)
    assert meet(store, 99.0, clients=2, resume=True) == 5.0  # what was sent first counts


def test_a_run_of_another_number_of_clients_is_another_run(store: Store) -> None:
    meet(store, 4.0, clients=2, within=0.0, quorum=1)
    for resume in (True, False):
        with pytest.raises(RunReused, match=r"has 2 clients as .*, and client 1 was told 3"):
            meet(store, 5.0, mine=1, clients=3, resume=resume)


def test_a_run_of_another_job_is_another_run(store: Store) -> None:
    meet(store, 4.0, clients=2, within=0.0, quorum=1, job="17")
    with pytest.raises(RunReused, match=r"is of the job '17' as .* says, and this is '18'"):
        meet(store, 5.0, mine=1, clients=2, job="18")
    with pytest.raises(RunReused, match="and this is ''"):
        meet(store, 5.0, mine=1, clients=2)
    assert meet(store, 5.0, mine=1, clients=2, job="17") == 4.0
    assert meet(store, 5.0, mine=1, clients=2, job="18", resume=True) == 4.0


def test_two_with_one_number_are_told(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both look, and both find that nobody has sent."""
    claim = store.claim

    def second(name: str, *given: Any, **more: Any) -> bool:
        if name.endswith("client-0"):
            claim(name, meta={"clients": "1"})
        return claim(name, *given, **more)

    monkeypatch.setattr(store, "claim", second)
    with pytest.raises(RunReused, match="each client a number of its own"):
        meet(store, 4.0)


# --- what it costs, and what stops it ---------------------------------------------------


def test_a_look_is_one_listing_and_reads_only_what_is_new() -> None:
    store = MemoryStore()
    for mine in range(1, 40):
        put_in(store.view(), weights(mine), mine=mine, clients=41)
    asked: Counter[str] = Counter()
    for name in ("_list", "_read"):
        do = getattr(store, name)

        def counted(key: str, name: str = name, do: Any = do) -> Any:
            asked[name] += 1
            return do(key)

        setattr(store, name, counted)
    time = Time()
    with pytest.raises(RoundIncomplete, match="client 40 never"):
        meet(store, 0.0, clients=41, within=30.0, time=time)
    looks = time.slept + 2
    assert looks < 60
    assert asked["_list"] <= 2 * looks  # one for the round, one for whether a segment closed it
    assert asked["_read"] <= 40 + 5


def test_a_store_that_does_not_answer_for_a_while_is_waited_for(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = store.changes
    time = Time()
    mended = 20.0

    def flaky(prefix: str = "", cursor: Any = None) -> Changes:
        if 1.0 < time.passed < mended:
            raise StoreUnreachable("no")
        return changes(prefix, cursor)

    monkeypatch.setattr(store, "changes", flaky)
    time.at[125.0] = lambda: put_in(store, weights(3.0), mine=1, clients=2)
    assert meet(store, 1.0, clients=2, within=30.0, time=time) == 2.0
    time.now, mended = 100.0, 1e9
    with pytest.raises(StoreUnreachable):
        meet(store, 1.0, clients=2, round=1, within=30.0, time=time)
    assert 30.0 <= time.passed < 31.5


@pytest.mark.parametrize(
    "wrong",
    [
        {"run": ""},
        {"run": "fed/"},
        {"run": "/fed"},
        {"run": "x" * 201},
        {"run": 7},
        {"run": "a/../b"},
        {"run": "a\nb"},
        {"run": "a\u200bb"},
        {"run": "a/trial/b"},
        {"size": 10**400},
        {"round": -1},
        {"round": 0.5},
        {"clients": 0},
        {"mine": 1},
        {"mine": -1},
        {"mine": True},
        {"size": -1},
        {"size": math.nan},
        {"size": math.inf},
        {"size": "1"},
        {"within": -1},
        {"within": math.nan},
        {"patience": -1},
        {"quorum": 0},
        {"quorum": 2},
    ],
    ids=repr,
)
def test_wrong_arguments_are_refused_and_nothing_is_written(
    store: Store, wrong: dict[str, Any]
) -> None:
    given: dict[str, Any] = {"run": "fed", "round": 0, "clients": 1, "mine": 0, **wrong}
    with pytest.raises(ConfigurationError):
        gather(store, weights(1.0), **given)
    assert store.scan() == []


def test_a_folder_is_as_good_as_its_store_and_what_is_no_store_is_told(tmp_path: Path) -> None:
    given: dict[str, Any] = {"run": "fed", "round": 0, "clients": 1, "mine": 0}
    for path in (tmp_path / "store", str(tmp_path / "other")):
        assert value_of(gather(path, weights(2.0), **given)) == 2.0
        with Store(path) as store:
            assert store.resolve("fed/round/0/average") is not None
            given["resume"] = True
            assert value_of(gather(store, weights(3.0), **given)) == 2.0
            assert store.resolve("fed/round/0/average") is not None  # it was left open
        del given["resume"]
    none: Any = None
    with pytest.raises(ConfigurationError, match="a store needs a path, got None"):
        gather(none, weights(1.0), **given)


@pytest.mark.parametrize("state", [[1.0], {}, {"w": 1.0}, {"w": np.array(["x"])}], ids=repr)
def test_a_state_that_is_none_is_refused_and_nothing_is_written(store: Store, state: Any) -> None:
    with pytest.raises(FederationError, match="client 0"):
        gather(store, state, run="fed", round=0, clients=1, mine=0)
    assert store.scan() == []


def test_the_mean_is_the_callers_own() -> None:
    store = MemoryStore()
    sent = weights(1.0)
    mean = gather(store, sent, run="fed", round=0, clients=1, mine=0)
    mean["body"]["0"] += 1
    assert value_of(sent) == 1.0
    assert meet(store, 1.0, resume=True) == 1.0
