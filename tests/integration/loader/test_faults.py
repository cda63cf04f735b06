"""What goes wrong around a loader: typed errors, no sample lost, and ends that leave nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from entrepot import Contract, Supplier, TensorSpec
from entrepot.errors import (
    BrokerUnavailable,
    Closed,
    ConfigurationError,
    ContractError,
    OrderFailed,
    OrderTimeout,
    Refused,
    SharedMemoryTooSmall,
    WorkerDied,
)
from entrepot.mediums import ShmMedium
from entrepot.training import SoftDataLoader
from tests.integration.loader_samples import (
    CONTRACT,
    LIMIT_S,
    NBYTES,
    WAYS,
    indices_of,
    left_of,
    loader_of,
    noted,
    products_of,
    train,
)
from tests.integration.market_processes import Market, Nursery, until

# --- faults -----------------------------------------------------------------------------


def test_a_killed_supplier_costs_no_sample(market: Market, quick_way: dict[str, Any]) -> None:
    victims = [market.supplier(name=f"victim-{number}", credit=4) for number in range(3)]
    market.supplier(name="heir")
    with loader_of(market, **train(length=200, batch_size=4), **quick_way) as loader:
        found = []
        for number, batch in enumerate(loader):
            found += indices_of([batch])
            if number in (5, 15, 25):
                market.kill(victims.pop())
    assert found == list(range(200))


def test_a_broker_that_restarts_costs_no_sample(market: Market, quick_way: dict[str, Any]) -> None:
    market.supplier()
    with loader_of(market, **train(length=60, batch_size=4), **quick_way) as loader:
        found = []
        for number, batch in enumerate(loader):
            found += indices_of([batch])
            if number == 4:
                market.kill(market.broker)
                market.start_broker()
    assert found == list(range(60))


def test_what_nobody_makes_is_a_time_out_and_may_come_later(
    market: Market, quick_way: dict[str, Any]
) -> None:
    with loader_of(market, **train(length=5), timeout_s=0.2, **quick_way) as loader:
        samples = iter(loader)
        for _ in range(2):
            _too_late(samples)
        market.supplier()
        found: list[int] = []
        while len(found) < 5:
            try:
                found += indices_of([next(samples)])
            except OrderTimeout:  # it has not registered yet
                continue
        assert found == list(range(5))


def _too_late(samples: Any) -> None:
    """There is no sample in time; on a busy machine there is no broker in time either, at first."""
    while True:
        with pytest.raises((OrderTimeout, BrokerUnavailable)) as told:
            next(samples)
        if told.type is OrderTimeout:
            assert told.match(r"none of \d+ orders for 'train/{index}' has")
            return


def test_a_loop_that_an_error_ended_is_taken_up_again(
    market: Market, quick_way: dict[str, Any]
) -> None:
    market.supplier()
    with loader_of(market, **train(length=30, batch_size=4), **quick_way) as loader:
        loader.set_epoch(3)
        loader.set_model("raise:{index}")
        with pytest.raises(OrderFailed):
            list(loader)
        loader.set_model("train/{index}")
        batches = iter(loader)
        found = indices_of([next(batches)])
        loader.set_model("raise:{index}")
        with pytest.raises(OrderFailed):
            list(batches)
        loader.set_model("train/{index}")
        found += indices_of(loader)
        assert loader.epoch == 3
        assert found == list(range(30))
        assert indices_of(loader) == list(range(30))
        assert loader.epoch == 4


def test_no_broker_is_said(quick_way: dict[str, Any], nursery: Nursery) -> None:
    with (
        Market(nursery) as nobody,
        loader_of(nobody, "a", timeout_s=0.2, **quick_way) as loader,
        pytest.raises(BrokerUnavailable, match=r"no broker answered at tcp://127"),
    ):
        next(iter(loader))


def test_another_size_is_an_error_with_the_difference(
    market: Market, quick_way: dict[str, Any]
) -> None:
    market.supplier(nbytes=100)
    with loader_of(market, "layer_3", **quick_way) as loader, pytest.raises(ContractError) as told:
        next(iter(loader))
    assert "'layer_3': the product is too short: 100 bytes where the contract has 256" in str(
        told.value
    )
    assert "said: bytes [256]" in str(told.value)


def test_another_contract_is_refused_with_the_difference(
    market: Market, quick_way: dict[str, Any]
) -> None:
    other = Contract([TensorSpec("said", (NBYTES + 1,), "bytes")])
    with Supplier(market.backend, {"a": bytes}, contracts={"a": other}) as supplier:
        supplier.start()
        supplier.wait_registered(LIMIT_S)
        with loader_of(market, "a", **quick_way) as loader, pytest.raises(Refused) as told:
            next(iter(loader))
    assert told.value.code == "contract_mismatch"
    assert "tensor said: shape [256] here, [257] there" in str(told.value)


def test_what_cannot_be_made_says_who_tried(market: Market, quick_way: dict[str, Any]) -> None:
    market.supplier(name="refuser")
    with loader_of(market, "raise", **quick_way) as loader:
        samples = iter(loader)
        with pytest.raises(OrderFailed) as told:
            next(samples)
        assert told.value.product_id == "raise"
        assert told.value.reason == "attempts"
        assert "refuser does not make that" in told.value.attempts[0]
        loader.set_model("layer_3")
        assert products_of(next(samples)) == ["layer_3"]


def test_no_room_for_memory_is_said(market: Market, quick_way: dict[str, Any]) -> None:
    with loader_of(market, "a", medium=_no_room, **quick_way) as loader:
        samples = iter(loader)
        for _ in range(2):
            with pytest.raises(SharedMemoryTooSmall, match=f"{1 << 62} bytes of shared memory"):
                next(samples)


def _no_room(slot_nbytes: int, slots: int) -> ShmMedium:
    return ShmMedium.create(1 << 62, 1)


def test_what_cannot_be_sent_to_workers_is_said(market: Market) -> None:
    options = {"products": lambda index: f"train/{index}", "length": 3, **WAYS["spawn"]}
    with (
        loader_of(market, **options) as loader,
        pytest.raises(ConfigurationError, match="cannot be sent to workers that are spawned"),
    ):
        next(iter(loader))


def test_an_error_of_the_users_own_comes_as_it_is(
    market: Market, quick_way: dict[str, Any]
) -> None:
    market.supplier()
    with loader_of(market, "a", batch_size=2, collate_fn=_broken, **quick_way) as loader:
        samples = iter(loader)
        for _ in range(2):
            with pytest.raises(KeyError, match="no such thing"):
                next(samples)


def _broken(samples: list[Any]) -> Any:
    raise KeyError("no such thing")


def test_a_killed_worker_is_said_and_leaves_no_memory(market: Market, tmp_path: Path) -> None:
    market.supplier()
    made = partial(noted, tmp_path)
    with loader_of(market, "a", medium=made, **WAYS["fork"]) as loader:
        samples = iter(loader)
        next(samples)
        until(lambda: len(left_of(tmp_path)), lambda count: count == 2)
        _kill_a_worker(loader)
        assert len(left_of(tmp_path)) == 2, "the kernel alone removes nothing"
        with pytest.raises(WorkerDied, match=r"worker \d+ of the loader ended with -9"):
            list(samples)
        assert len(left_of(tmp_path)) == 1, "the other lives"
    assert left_of(tmp_path) == []


CHECKOUT = Path(__file__).parents[3]

UNGUARDED = """
from entrepot.training import SoftDataLoader
from tests.integration.loader_samples import CONTRACT, WAYS

loader = SoftDataLoader("tcp://127.0.0.1:9", CONTRACT, "a", **WAYS["spawn"])
next(iter(loader))
"""


def test_a_script_whose_workers_run_it_again_is_told_of_the_guard(tmp_path: Path) -> None:
    """It is imported by each worker that is spawned, which then would start workers itself."""
    script = tmp_path / "unguarded.py"
    script.write_text(UNGUARDED)
    done = subprocess.run(
        [sys.executable, str(script)],
        env=os.environ | {"PYTHONPATH": f"{CHECKOUT / 'src'}:{CHECKOUT}"},
        stderr=subprocess.PIPE,
        text=True,
        timeout=100,
    )
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert "WorkerDied" in last
    assert "below `if __name__ == '__main__':`" in last


def test_a_worker_that_was_killed_unseen_leaves_no_memory(market: Market, tmp_path: Path) -> None:
    market.supplier()
    with loader_of(market, "a", medium=partial(noted, tmp_path), **WAYS["fork"]) as loader:
        next(iter(loader))
        until(lambda: len(left_of(tmp_path)), lambda count: count == 2)
        _kill_a_worker(loader)
        assert left_of(tmp_path)
    assert left_of(tmp_path) == []


def _kill_a_worker(loader: Any) -> None:
    worker = loader._source._packets._workers[0]
    os.kill(worker.pid, signal.SIGKILL)
    worker.join()


# --- the end ----------------------------------------------------------------------------


def test_close_ends_a_wait(market: Market, quick_way: dict[str, Any]) -> None:
    loader = loader_of(market, "nobody makes it", **quick_way)
    samples = iter(loader)
    closing = threading.Thread(target=_close_when_ordered, args=(market, loader))
    closing.start()
    with pytest.raises(Closed):
        next(samples)
    closing.join()
    with pytest.raises(Closed):
        next(samples)
    with pytest.raises(Closed):
        iter(loader)
    loader.close()
    until(market.stats, lambda stats: not stats["orders"]["open"])


def _close_when_ordered(market: Market, loader: Any) -> None:
    market.until(lambda stats: stats["orders"]["open"])
    loader.close()


def test_torchs_random_numbers_are_left_alone(market: Market, quick_way: dict[str, Any]) -> None:
    market.supplier()
    torch.manual_seed(0)
    wanted = torch.rand(1)
    torch.manual_seed(0)
    with loader_of(market, **train(length=4, shuffle=True), **quick_way) as loader:
        assert len(list(loader)) == 4
    assert torch.equal(torch.rand(1), wanted)


def test_a_loader_that_is_dropped_lets_go(market: Market, quick_way: dict[str, Any]) -> None:
    market.supplier()
    samples = iter(loader_of(market, "a", **quick_way))
    next(samples)
    del samples


def test_one_that_was_never_used_has_nothing_to_let_go_of() -> None:
    SoftDataLoader("tcp://127.0.0.1:1", CONTRACT, "a", num_workers=3)
