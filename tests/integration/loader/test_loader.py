"""A loader at a real broker: epochs, switches, resumes; here, and in forked or spawned workers."""

from __future__ import annotations

import io
import json
import sys
import threading
import time
from typing import Any

import pytest
import torch

from entrepot.errors import (
    Closed,
    ConfigurationError,
)
from entrepot.training.epochs import Shard, chunks
from tests.integration.loader_samples import (
    WAYS,
    indices_of,
    loader_of,
    products_of,
    samples_of,
    train,
)
from tests.integration.market_processes import Market

# --- epochs -----------------------------------------------------------------------------


def test_epochs_have_each_index_once_in_the_order_of_the_seed(
    market: Market, way: dict[str, Any]
) -> None:
    market.supplier(name="a")
    market.supplier(name="b")
    with loader_of(market, **train(length=53, batch_size=8, shuffle=True, seed=5), **way) as loader:
        assert len(loader) == 7
        for epoch in range(3):
            batches = list(loader)
            assert loader.epoch == epoch
            shard = Shard(53, epoch, 5)
            wanted = [shard.indices(chunk) for chunk in chunks([(0, 53)], 8)]
            assert [indices_of([batch]) for batch in batches] == wanted


@pytest.mark.parametrize("medium", ["tcp", "file"])
def test_over_other_mediums(
    market: Market,
    quick_way: dict[str, Any],
    medium: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ENTREPOT_CLIENT__FILE_ROOT", market.folder)
    market.supplier()
    options = train(length=40, batch_size=4, medium=medium)
    with loader_of(market, **options, **quick_way) as loader:
        batches = iter(loader)
        found = indices_of([next(batches)])
        loader.set_model("again/{index}")
        assert found + indices_of(batches) == list(range(40))


def test_out_of_order_a_slow_one_holds_up_none(market: Market, quick_way: dict[str, Any]) -> None:
    held = market.supplier("hold:.*", name="a")
    market.supplier("free:.*", name="b")
    with loader_of(
        market, products=_one_is_held, length=24, ordered=False, prefetch=4, **quick_way
    ) as loader:
        found = []
        for sample in loader:
            found += products_of(sample)
            if len(found) == 23:
                held.ask("release")
    assert found[-1] == "hold:3"
    assert sorted(found) == sorted(map(_one_is_held, range(24)))


def _one_is_held(index: int) -> str:
    return f"{'hold' if index == 3 else 'free'}:{index}"


def test_an_index_is_one_ranks(market: Market) -> None:
    market.supplier()
    found = []
    for rank in range(3):
        with loader_of(market, **train(length=10, shuffle=True, rank=rank, world=3)) as loader:
            found.append(indices_of(loader))
    assert sorted(found[0] + found[1] + found[2]) == list(range(10))
    assert [len(each) for each in found] == [4, 3, 3]


def test_drop_last_gives_every_rank_as_many_batches(market: Market) -> None:
    market.supplier()
    for rank in range(2):
        options = {"length": 15, "batch_size": 3, "drop_last": True, "rank": rank, "world": 2}
        with loader_of(market, **train(**options)) as loader:
            assert len(loader) == 2
            assert [len(batch["said"]) for batch in loader] == [3, 3]


def test_a_broken_off_loop_goes_on_with_the_next_epoch(
    market: Market, quick_way: dict[str, Any]
) -> None:
    market.supplier()
    with loader_of(market, **train(length=20), **quick_way) as loader:
        for sample in loader:
            assert indices_of([sample]) == [0]
            break
        assert indices_of(loader) == list(range(20))
        assert loader.epoch == 1
        loader.set_epoch(7)
        assert indices_of(loader) == list(range(20))
        assert loader.epoch == 7


def test_a_loop_is_ended_by_the_next(market: Market) -> None:
    market.supplier()
    with loader_of(market, **train(length=20)) as loader:
        first = iter(loader)
        next(first)
        assert indices_of(loader) == list(range(20))
        with pytest.raises(Closed, match="another loop over this loader has begun"):
            next(first)


def test_pinned_memory_where_there_is_an_accelerator(
    market: Market, quick_way: dict[str, Any]
) -> None:
    market.supplier()
    with loader_of(market, **train(length=6, batch_size=3, pin_memory=True), **quick_way) as loader:
        pinned = [batch["said"].is_pinned() for batch in loader]
    assert pinned == [torch.accelerator.is_available()] * 2


def test_a_bar_counts_what_was_served(
    market: Market, quick_way: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    market.supplier()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", screen := Terminal())
    options = train(length=30, batch_size=4, progress=True)
    with loader_of(market, **options, **quick_way) as loader:
        for _ in loader:
            break
        assert len(indices_of(loader)) == 30
    said = screen.getvalue()
    assert "epoch 0" in said
    assert " 4/30" in said
    assert "epoch 1" in said
    assert "30/30" in said


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


# --- streams ----------------------------------------------------------------------------


def test_a_stream_with_a_length_has_epochs(market: Market, quick_way: dict[str, Any]) -> None:
    market.supplier()
    with loader_of(market, "layer_3", length=10, batch_size=4, **quick_way) as loader:
        assert len(loader) == 3
        made = [sample for _ in range(2) for batch in loader for sample in samples_of(batch)]
        assert len(made) == 24
        assert len(set(made)) == 24, "a sample came twice"
        assert loader.samples == 24


def test_a_stream_without_a_length_has_no_len(market: Market) -> None:
    with loader_of(market, "layer_3") as loader, pytest.raises(TypeError, match="no len"):
        len(loader)


# --- switching --------------------------------------------------------------------------


def test_a_hundred_switches_without_a_stale_sample(market: Market, way: dict[str, Any]) -> None:
    market.supplier(name="a", credit=4)
    market.supplier(name="b")
    with loader_of(market, "m/0", batch_size=2, prefetch=16, **way) as loader:
        samples = iter(loader)
        for number in range(1, 101):
            for _ in range(number % 3):
                assert products_of(next(samples)) == [f"m/{number - 1}"] * 2
            loader.set_model(f"m/{number}")
            assert products_of(next(samples)) == [f"m/{number}"] * 2
        assert bool(loader.stale) == bool(way), "DataLoader's prefetch was not there to be fenced"


def test_a_switch_of_an_epoch_renames_what_is_left(
    market: Market, quick_way: dict[str, Any]
) -> None:
    market.supplier()
    with loader_of(market, **train(length=60, batch_size=4), **quick_way) as loader:
        found = []
        for number, batch in enumerate(loader):
            found += products_of(batch)
            if number in (3, 4, 9):
                loader.set_model(f"again/{number}/{{index}}")
        names = ["train"] * 4 + ["again/3"] + ["again/4"] * 5 + ["again/9"] * 5
        assert found == [f"{names[i // 4]}/{i}" for i in range(60)]


def test_a_switch_ends_the_wait_for_what_nobody_makes(
    market: Market, quick_way: dict[str, Any]
) -> None:
    market.supplier("there")
    with loader_of(market, "not-there", **quick_way) as loader:
        waiting = threading.Thread(target=_switch_when_ordered, args=(market, loader))
        waiting.start()
        assert products_of(next(iter(loader))) == ["there"]
        waiting.join()


def _switch_when_ordered(market: Market, loader: Any) -> None:
    market.until(lambda stats: stats["orders"]["open"])
    loader.set_model("there")


def test_switches_from_another_thread_are_no_errors(market: Market) -> None:
    """While the loop waits for a sample, between two, and at every moment in between."""
    market.supplier(name="a", credit=4)
    over = threading.Event()
    with loader_of(market, "m/0", prefetch=8) as loader:

        def switch() -> None:
            number = 0
            while not over.is_set():
                for _ in range(number % 4 + 1):
                    number += 1
                    loader.set_model(f"m/{number}")
                served = loader.samples  # at least one more, or nothing would ever be made in time
                while loader.samples == served and not over.is_set():
                    time.sleep(1e-4 * (number % 7 + 1))

        switching = threading.Thread(target=switch)
        samples = iter(loader)
        next(samples)
        switching.start()
        found = [int(products_of(next(samples))[0].removeprefix("m/")) for _ in range(30)]
        over.set()
        switching.join()
    assert found == sorted(found), "one of before came after"


def test_a_pattern_needs_its_index(market: Market) -> None:
    loader = loader_of(market, **train(length=3))
    with pytest.raises(ConfigurationError, match=r"it needs an \{index\} in it"):
        loader.set_model("train")


# --- resuming ---------------------------------------------------------------------------


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("ways", [("here", "fork"), ("fork", "here"), ("fork", "fork")])
def test_consumed_and_resumed_are_the_epoch(
    market: Market, ways: tuple[str, str], ordered: bool
) -> None:
    market.supplier()
    options = train(length=50, batch_size=3, shuffle=True, ordered=ordered)
    found = []
    with loader_of(market, **options, **WAYS[ways[0]]) as loader:
        loader.set_epoch(4)
        batches = iter(loader)
        for _ in range(6):
            found += indices_of([next(batches)])
        state = json.loads(json.dumps(loader.state_dict()))
    with loader_of(market, **options, **WAYS[ways[1]]) as loader:
        loader.load_state_dict(state)
        loader.set_epoch(4)  # as a script does at each epoch
        found += indices_of(loader)
        assert loader.epoch == 4
        assert sorted(found) == list(range(50))
        assert sorted(indices_of(loader)) == list(range(50))
        assert loader.epoch == 5


def test_an_epoch_at_its_end_has_nothing_left(market: Market) -> None:
    market.supplier()
    with loader_of(market, **train(length=5)) as loader:
        assert len(indices_of(loader)) == 5
        state = loader.state_dict()
    with loader_of(market, **train(length=5)) as loader:
        loader.load_state_dict(state)
        assert indices_of(loader) == []
        assert len(indices_of(loader)) == 5


def test_another_number_of_ranks_goes_on_with_all_their_states(market: Market) -> None:
    market.supplier()
    found, states = [], []
    for rank in range(2):
        with loader_of(market, **train(length=30, shuffle=True, rank=rank, world=2)) as loader:
            batches = iter(loader)
            for _ in range(4 + rank):
                found += indices_of([next(batches)])
            states.append(loader.state_dict())
    for rank in range(3):
        with loader_of(market, **train(length=30, shuffle=True, rank=rank, world=3)) as loader:
            loader.load_state_dict(states)
            found += indices_of(loader)
    assert sorted(found) == list(range(30))


def test_a_stream_resumes_its_count(market: Market) -> None:
    market.supplier()
    with loader_of(market, "layer_3", length=10) as loader:
        batches = iter(loader)
        for _ in range(7):
            next(batches)
        state = json.loads(json.dumps(loader.state_dict()))
    with loader_of(market, "layer_3", length=10) as loader:
        loader.load_state_dict(state)
        assert len(list(loader)) == 3
        assert loader.samples == 10
