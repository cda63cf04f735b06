"""Runs at their server: apart from each other, bounded, checkpointed, and brought back."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import pytest
import torch
from torch import nn

from entrepot.errors import NoCheckpoint, StageFull, StageLost
from entrepot.market.broker import Broker
from entrepot.market.client import Client
from entrepot.mediums import ShmMedium
from entrepot.stages import TorchStageServer
from entrepot.stages.checkpoints import Checkpoints
from entrepot.stages.forms import digest_of
from entrepot.stages.torch.state import Checkpoint, pack_state, unpack_state
from entrepot.stages.torch.tensors import values_of
from entrepot.store import EMPTY, Store
from tests.peer.waiting import LIMIT_S
from tests.unit.stages.conftest import SLOT, Serve
from tests.unit.stages.cuts import (
    CONFIG,
    batches,
    build,
    build_middle,
    expected,
    same_weights,
    stage_of,
    steps,
    weights,
)

# --- apart from each other --------------------------------------------------------------


def test_two_runs_never_mix(client: Client, broker: Broker, serve: Serve) -> None:
    """Turn by turn, of one name and two configurations, and of two names."""
    serve(TorchStageServer(broker.backend, "embed", build))
    runs = [(stage_of(client), {}), (stage_of(client, seed=4), {"seed": 4})]
    runs.append((stage_of(client, run="s"), {}))
    data = [list(batches(4, seed)) for seed in range(3)]
    for number in range(4):
        losses = []
        for (stage, _), some in zip(runs, data, strict=True):
            stage.zero_grad()
            losses.append(stage(some[number][0]).square().sum())
        for loss in losses:
            loss.backward()
        for stage, _ in runs:
            stage.step()
    for seed, (stage, changed) in enumerate(runs):
        assert weights(stage) == expected(4, seed, **changed)


def test_runs_of_several_clients_at_once(broker: Broker, serve: Serve, store: Store) -> None:
    """More than have room, each in a thread with a client of its own."""
    serve(TorchStageServer(broker.backend, "embed", build, max_runs=3, store=store))
    found: dict[int, str] = {}

    def one(seed: int) -> None:
        with Client(broker.frontend, ShmMedium.create(SLOT, 4), timeout_s=LIMIT_S) as client:
            stage = stage_of(client, run="r", seed=seed)
            done = 0
            for x, _ in batches(5, seed):
                while stage.steps == done:
                    try:
                        stage.zero_grad()
                        stage(x).square().sum().backward()
                        stage.step()
                    except StageFull:
                        continue
                done += 1
            found[seed] = weights(stage)

    threads = [threading.Thread(target=one, args=(seed,)) for seed in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {seed: expected(5, seed, seed=seed) for seed in range(5)}


def test_a_run_of_a_name_that_was_there_begins_from_nothing(
    client: Client, broker: Broker, serve: Serve
) -> None:
    """A script that is started again against a standing server is not warm."""
    serve(TorchStageServer(broker.backend, "embed", build))
    first = stage_of(client)
    steps(first, 3)
    again = stage_of(client)
    assert weights(again) == expected(0)
    steps(again, 2)
    assert weights(again) == expected(2)
    with pytest.raises(StageLost, match="was begun anew by another"):
        first(next(batches(1))[0])


def test_fifty_runs_one_after_another_leak_nothing(
    client: Client, broker: Broker, serve: Serve
) -> None:
    alive: weakref.WeakSet[nn.Module] = weakref.WeakSet()

    def watched(config: dict[str, Any]) -> Any:
        module, optimizer = build(config)
        alive.add(module)
        return module, optimizer

    server: Any = serve(TorchStageServer(broker.backend, "embed", watched, max_runs=3))
    for number in range(50):
        stage = stage_of(client, run=f"r/{number}")
        steps(stage, 2)
        assert stage.steps == 2
        if number % 2:
            stage.end()
            with pytest.raises(StageLost, match="its user has ended it"):
                stage.step()
    gc.collect()
    assert server.runs <= 3
    assert len(alive) <= 3
    assert client.figures()["free"] == client.medium.slots


# --- a bounded number -------------------------------------------------------------------


def test_the_run_that_was_idle_longest_makes_room_and_is_brought_back(
    client: Client, broker: Broker, serve: Serve, store: Store
) -> None:
    server: Any = serve(TorchStageServer(broker.backend, "embed", build, max_runs=2, store=store))
    stages = [stage_of(client, run=f"r/{number}") for number in range(5)]
    data = [list(batches(6, seed)) for seed in range(5)]
    for number in range(6):
        for stage, some in zip(stages, data, strict=True):
            stage.zero_grad()
            stage(some[number][0]).square().sum().backward()
            stage.step()
            assert server.runs <= 2
    for seed, stage in enumerate(stages):
        assert weights(stage) == expected(6, seed)


def test_a_run_is_brought_back_in_the_middle_of_a_step(
    client: Client, broker: Broker, serve: Serve, store: Store
) -> None:
    """With its gradients, its random numbers, and its last answer."""
    server: Any = serve(TorchStageServer(broker.backend, "embed", build, max_runs=1, store=store))
    one, two = stage_of(client, run="one"), stage_of(client, run="two")
    (x, _), (z, _) = batches(2)
    for data in (x, z):
        one(data).square().sum().backward()
        two(data).square().sum().backward()
        assert server.runs == 1
    one.step()
    two.step()
    assert weights(one) == weights(two)
    module, optimizer = build(CONFIG)
    for data in (x, z):
        module(data).square().sum().backward()
    optimizer.step()
    assert weights(one) != expected(0)
    one(x)
    assert same_weights(server._runs[one._link.begin].module, module)


def test_a_call_that_comes_again_after_its_run_was_brought_back(
    client: Client, broker: Broker, serve: Serve, store: Store
) -> None:
    serve(TorchStageServer(broker.backend, "embed", build, max_runs=1, store=store))
    one, two = stage_of(client, run="one"), stage_of(client, run="two")
    steps(one, 1)
    link = one._link
    link.stepping = request = link.request("step")
    link.doubt, request.step = "step", 0
    request.call, request.after = link.call, link.call - 1
    steps(two, 1)
    assert one.step() == 1, "it was made, and is not made again"
    assert weights(one) == expected(1)


def test_without_a_store_the_run_that_was_idle_longest_is_lost_and_told_so(
    client: Client, broker: Broker, serve: Serve
) -> None:
    serve(TorchStageServer(broker.backend, "embed", build, max_runs=1, name="host-b"))
    one, two = stage_of(client, run="one"), stage_of(client, run="two")
    steps(one, 1)
    steps(two, 1)
    with pytest.raises(StageLost, match="host-b has room for 1 runs and no store") as lost:
        steps(one, 1)
    assert (lost.value.stage, lost.value.host) == ("embed", "host-b")
    steps(two, 1)


def test_runs_that_are_in_the_middle_of_a_step_make_no_room(
    client: Client, broker: Broker, serve: Serve
) -> None:
    now = [0.0]
    server: Any = serve(
        TorchStageServer(
            broker.backend, "embed", build, max_runs=1, idle_s=60, clock=lambda: now[0]
        )
    )
    one, two = stage_of(client, run="one"), stage_of(client, run="two")
    loss = one(next(batches(1))[0]).sum()
    with pytest.raises(StageFull, match="all of them are in the middle of a step"):
        steps(two, 1)
    loss.backward()
    one(next(batches(1))[0])
    now[0] = 60.0  # who has one has gone, as it seems
    steps(two, 1)
    assert server.runs == 1


# --- checkpoints ------------------------------------------------------------------------


def test_a_run_goes_on_from_its_checkpoint_at_another_server(
    client: Client, broker: Broker, serve: Serve, store: Store
) -> None:
    with TorchStageServer(broker.backend, "embed", build, store=store, name="host-a") as first:
        first.start()
        first.wait_registered(LIMIT_S)
        stage = stage_of(client)
        steps(stage, 2)
        assert stage.checkpoint() == 2
        for x, _ in batches(1):  # not kept
            stage(x).square().sum().backward()
        first._checkpoints = None  # it dies, and keeps nothing at its end
    serve(TorchStageServer(broker.backend, "embed", build, store=store, name="host-c"))
    with pytest.raises(StageLost, match=r"which host-a had, is lost: .* host-c, is") as lost:
        stage.step()
    assert (lost.value.stage, lost.value.host) == ("embed", "host-a")
    with pytest.raises(StageLost, match="which host-a had, is lost") as again:
        stage(next(batches(1))[0])
    assert again.value.host == "host-a", "and not who answers now"
    assert stage.restore() == 2
    assert weights(stage) == expected(2)
    for x, _ in list(batches(5))[2:]:
        stage.zero_grad()
        stage(x).square().sum().backward()
        stage.step()
    assert stage.steps == 5
    assert weights(stage) == expected(5)


def test_a_server_that_ends_in_order_keeps_its_runs(
    client: Client, broker: Broker, serve: Serve, store: Store
) -> None:
    with TorchStageServer(broker.backend, "embed", build, store=store) as first:
        first.start()
        first.wait_registered(LIMIT_S)
        stage = stage_of(client)
        steps(stage, 3)
    serve(TorchStageServer(broker.backend, "embed", build, store=str(store.url)))
    assert stage.restore() == 3
    assert weights(stage) == expected(3)


def test_checkpoints_that_nobody_asks_for(
    client: Client, broker: Broker, serve: Serve, store: Store
) -> None:
    serve(TorchStageServer(broker.backend, "embed", build, store=store, checkpoint_every=2))
    stage = stage_of(client)
    steps(stage, 7)
    assert stage.restore() == 6
    assert stage.restore(4) == 4, "who uses it may be behind"
    assert weights(stage) == expected(4)
    with pytest.raises(NoCheckpoint, match=r"no checkpoint .* at step 6 \(it has step 4\)"):
        stage.restore(6)
    for x, _ in list(batches(5))[4:]:  # the run is where it was, and goes on from there
        stage(x).square().sum().backward()
    assert stage.step() == 5
    assert weights(stage) == expected(5)


def test_a_run_without_a_checkpoint(
    client: Client, broker: Broker, serve: Serve, store: Store
) -> None:
    serve(TorchStageServer(broker.backend, "embed", build, store=store))
    serve(TorchStageServer(broker.backend, "middle", build_middle, name="host-b"))
    stage = stage_of(client)
    steps(stage, 2)
    with pytest.raises(NoCheckpoint, match="it has none"):
        stage.restore()
    assert weights(stage) == expected(2)
    without = stage_of(client, stage="middle")
    with pytest.raises(NoCheckpoint, match=r"host-b, has no store"):
        without.restore()
    x = torch.ones(2, 4)
    assert torch.equal(without(x), without(x)), (
        "a run that was never begun begins with its first call"
    )
    with pytest.raises(NoCheckpoint, match=r"host-b, has no store to keep"):
        stage_of(client, stage="middle").checkpoint()


def test_a_run_that_begins_anew_has_none_of_the_checkpoints_before_it(
    client: Client, broker: Broker, serve: Serve, store: Store
) -> None:
    serve(TorchStageServer(broker.backend, "embed", build, store=store))
    first = stage_of(client)
    steps(first, 2)
    first.checkpoint()
    second = stage_of(client)
    steps(second, 1)
    with pytest.raises(NoCheckpoint):
        second.restore()


def test_only_the_last_generations_checkpoints_count(store: Store) -> None:
    checkpoints = Checkpoints(store, "embed")
    old = checkpoints.begin("r", "{}")
    checkpoints.save(old, 1, b"one")
    new = checkpoints.begin("r", "{}", checkpoints.kept("r", "{}"))
    checkpoints.save(old, 9, b"of one that was thought dead")
    assert checkpoints.newest("r", "{}") == (1, b"one")
    checkpoints.save(new, 2, b"two")
    checkpoints.save(new, 2, b"two again")
    checkpoints.save(new, 3, b"three")
    assert checkpoints.newest("r", "{}") == (3, b"three")
    assert checkpoints.newest("r", "{}", 2) == (2, b"two again")
    assert checkpoints.kept("r", '{"other":1}') == []
    assert checkpoints.kept("r/c", "{}") == []
    with pytest.raises(NoCheckpoint, match="at step 1"):
        checkpoints.newest("r", "{}", 1)


def test_checkpoints_that_are_needed_are_not_swept(store: Store) -> None:
    checkpoints = Checkpoints(store, "embed")
    generation = checkpoints.begin("r", "{}")
    for step in range(4):
        checkpoints.save(generation, step, b"%d" % step)
    store.gc(0.0, dry_run=False)
    assert checkpoints.newest("r", "{}", 3) == (3, b"3")
    assert checkpoints.newest("r", "{}", 2) == (2, b"2")
    assert EMPTY


def test_a_store_that_fails_fails_no_step(
    client: Client,
    broker: Broker,
    serve: Serve,
    store: Store,
    caplog: pytest.LogCaptureFixture,
) -> None:
    serve(TorchStageServer(broker.backend, "embed", build, store=store, checkpoint_every=1))
    stage = stage_of(client)
    assert weights(stage) == expected(0)
    store.close()
    steps(stage, 2)
    assert weights(stage) == expected(2)
    assert "a checkpoint could not be kept: Closed: " in caplog.text


def test_a_model_of_thousands_of_parameters_is_kept() -> None:
    """More values than a message may have."""
    module = nn.ParameterList(torch.ones(1) for _ in range(2000))
    optimizer = torch.optim.Adam(module.parameters(), 0.1)
    for parameter in module:
        parameter.grad = torch.ones(1)
    optimizer.step()
    state = {"module": module.state_dict(), "optimizer": optimizer.state_dict()}
    header = Checkpoint(stage="s", run="r", config="{}", step=1)
    _, got = unpack_state(pack_state(header, state))
    assert len(got["optimizer"]["state"]) == 2000
    assert torch.equal(got["module"]["1999"], module[1999].detach())
    assert digest_of(values_of(module.state_dict()))


@pytest.mark.parametrize("kind", ["Adam", "AdamW", "SGD", "Adagrad", "RMSprop", "Adamax"])
def test_states_of_optimizers_come_back(kind: str) -> None:
    torch.manual_seed(0)
    options = {"momentum": 0.9} if kind == "SGD" else {}
    make = getattr(torch.optim, kind)
    one = nn.Linear(3, 2)
    optimizer = make(one.parameters(), lr=0.1, **options)
    one(torch.ones(4, 3)).sum().backward()
    optimizer.step()
    state = {"module": one.state_dict(), "optimizer": optimizer.state_dict()}
    header = Checkpoint(stage="s", run="r", config="{}", step=1)
    _, got = unpack_state(pack_state(header, state))
    other = nn.Linear(3, 2)
    other.load_state_dict(got["module"])
    its_own = make(other.parameters(), lr=9.0, **options)
    its_own.load_state_dict(got["optimizer"])
    for module, stepping in ((one, optimizer), (other, its_own)):
        stepping.zero_grad()
        module(torch.full((4, 3), 2.0)).square().sum().backward()
        stepping.step()
    assert same_weights(one, other)
