"""Requests that are lost, answers that are lost, and what comes twice: each step is made once.

The market itself loses none of them. A client that does stands for all that may be between.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from entrepot.errors import (
    OrderTimeout,
    OutOfStep,
    StageError,
    StageLost,
    StageUnavailable,
)
from entrepot.market.broker import Broker
from entrepot.market.client import Client
from entrepot.mediums import ShmMedium
from entrepot.stages import CutOptimizer, TorchStage, TorchStageServer
from entrepot.stages.protocol import BACKWARD, CHECKPOINT, FORWARD, REPLY, RESTORE, STEP
from entrepot.store import Store
from tests.peer.waiting import LIMIT_S
from tests.unit.stages.conftest import SLOT, Serve
from tests.unit.stages.cuts import (
    CONFIG,
    batches,
    build,
    build_head,
    same_weights,
    train,
)

VERBS = (FORWARD, BACKWARD, STEP, CHECKPOINT)


class Gone:
    """An order of which nothing is heard."""

    def result(self, timeout_s: float | None = None) -> Any:
        raise OrderTimeout("nothing was heard of it")

    def cancel(self) -> bool:
        return False


class FaultyClient(Client):
    """Loses and repeats what it is told to.

    :ivar faults: verbs and what happens to their next order, the first of each being the next.
    :ivar seen: every message that was sent, by verb.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.faults: list[tuple[str, str]] = []
        self.seen: list[tuple[str, bytes]] = []

    def order(self, product_id: str, **options: Any) -> Any:
        verb = product_id.rpartition("/")[2]
        self.seen.append((product_id, options["input"].tobytes()))
        fault = next((fault for fault in self.faults if fault[0] == verb), None)
        if fault is None:
            return super().order(product_id, **options)
        self.faults.remove(fault)
        if fault[1] == "lost request":
            return Gone()
        with super().order(product_id, **options).result(LIMIT_S):
            pass
        return Gone() if fault[1] == "lost reply" else super().order(product_id, **options)

    def replay(self, number: int) -> str:
        """Sends an old message once more; the code of the answer."""
        product_id, data = self.seen[number]
        with super().order(product_id, input=data).result(LIMIT_S) as product:
            return REPLY.decode(product.data)[0].code


@pytest.fixture
def faulty(broker: Broker) -> Iterator[FaultyClient]:
    with FaultyClient(broker.frontend, ShmMedium.create(SLOT, 8), timeout_s=LIMIT_S) as client:
        yield client


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store", durable=False)


def stage_of(client: Client, attempts: int = 2, run: str = "r") -> TorchStage:
    return TorchStage(client, "embed", run=run, config=CONFIG, timeout_s=LIMIT_S, attempts=attempts)


def whole(steps: int) -> torch.nn.Module:
    module, optimizer = build(CONFIG)
    for x, _ in batches(steps):
        optimizer.zero_grad()
        module(x).square().sum().backward()
        optimizer.step()
    return module


def is_whole(server: Any, stage: TorchStage, steps: int) -> bool:
    run = server._runs[stage._link.begin]
    return bool(run.step == steps and same_weights(run.module, whole(steps)))


FAULTS = ("lost request", "lost reply", "duplicated")


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("verb", VERBS)
def test_each_call_is_carried_out_once(
    faulty: FaultyClient, broker: Broker, serve: Serve, store: Store, verb: str, fault: str
) -> None:
    server: Any = serve(TorchStageServer(broker.backend, "embed", build, store=store))
    stage = stage_of(faulty)
    for number, (x, _) in enumerate(batches(4)):
        if number != 2:
            faulty.faults.append((verb, fault))
        stage.zero_grad()
        stage(x).square().sum().backward()
        assert stage.step() == number + 1
        assert stage.checkpoint() == number + 1
    assert faulty.faults == []
    assert is_whole(server, stage, 4)
    assert stage.restore() == 4
    assert is_whole(server, stage, 4)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_restore_whose_answer_is_lost(
    faulty: FaultyClient, broker: Broker, serve: Serve, store: Store, fault: str
) -> None:
    server: Any = serve(TorchStageServer(broker.backend, "embed", build, store=store))
    stage = stage_of(faulty)
    data = list(batches(4))
    for number, (x, _) in enumerate(data):
        if number == 2:
            stage.checkpoint()
            faulty.faults.append((RESTORE, fault))
            assert stage.restore() == 2
        stage.zero_grad()
        stage(x).square().sum().backward()
        stage.step()
    assert is_whole(server, stage, 4)
    assert len(store.scan("stages/")) == 2, "two generations, and no more"


@given(faults=st.lists(st.tuples(st.sampled_from(VERBS), st.sampled_from(FAULTS)), max_size=12))
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_is_lost_and_repeated_the_weights_are_those_of_one_process(
    faulty: FaultyClient, broker: Broker, serve: Serve, faults: list[tuple[str, str]]
) -> None:
    with TorchStageServer(broker.backend, "embed", build) as server:
        server.start()
        server.wait_registered(LIMIT_S)
        stage, head = stage_of(faulty, attempts=20), build_head()
        faulty.faults = [fault for fault in faults if fault[0] != CHECKPOINT]
        optimizer = CutOptimizer([torch.optim.SGD(head.parameters(), 0.1), stage])
        losses = train(torch.nn.Sequential(stage, head), optimizer, batches(3))
        faulty.faults = []
        (front, its_own), whole_head = build(CONFIG), build_head()
        both = CutOptimizer([its_own, torch.optim.SGD(whole_head.parameters(), 0.1)])
        assert losses == train(torch.nn.Sequential(front, whole_head), both, batches(3))
        assert same_weights(server._runs[stage._link.begin].module, front)
        assert same_weights(head, whole_head)


def test_what_comes_late_is_refused(faulty: FaultyClient, broker: Broker, serve: Serve) -> None:
    """Every message of three steps, sent once more after all of them: the last is answered."""
    server: Any = serve(TorchStageServer(broker.backend, "embed", build))
    stage = stage_of(faulty)
    for x, _ in batches(3):
        stage.zero_grad()
        stage(x).square().sum().backward()
        stage.step()
    codes = [faulty.replay(number) for number in range(len(faulty.seen))]
    assert codes == ["out_of_step"] * 8 + ["ok"]
    assert is_whole(server, stage, 3)


def test_what_comes_late_from_one_that_was_begun_anew(
    faulty: FaultyClient, broker: Broker, serve: Serve
) -> None:
    """The first message of a run does not begin it once more."""
    server: Any = serve(TorchStageServer(broker.backend, "embed", build))
    old = stage_of(faulty)
    old(next(batches(1))[0])
    new = stage_of(faulty)
    new(next(batches(1))[0])
    assert faulty.replay(0) == "stage_lost"
    assert list(server._runs) == [new._link.begin]


def test_a_message_of_one_run_is_not_another_ones(
    faulty: FaultyClient, broker: Broker, serve: Serve
) -> None:
    serve(TorchStageServer(broker.backend, "embed", build))
    stage = stage_of(faulty)
    stage(next(batches(1))[0])
    stage._link.run = "other"
    with pytest.raises(StageError, match="run 'r' is called as 'other'"):
        stage(next(batches(1))[0])


# --- what stays unanswered --------------------------------------------------------------


@pytest.mark.parametrize("fault", ["lost request", "lost reply"])
def test_a_step_without_an_answer_is_called_again(
    faulty: FaultyClient, broker: Broker, serve: Serve, fault: str
) -> None:
    server: Any = serve(TorchStageServer(broker.backend, "embed", build))
    stage = stage_of(faulty, attempts=1)
    (x, _), (z, _) = batches(2)
    stage(x).square().sum().backward()
    faulty.faults.append((STEP, fault))
    with pytest.raises(StageUnavailable):
        stage.step()
    for call in (lambda: stage(x), stage.checkpoint):
        with pytest.raises(OutOfStep, match=r"the last step .* call step\(\) again"):
            call()
    stage.zero_grad()
    assert stage.step() == 1
    stage(z).square().sum().backward()
    assert stage.step() == 2
    assert is_whole(server, stage, 2)


@pytest.mark.parametrize("fault", ["lost request", "lost reply"])
@pytest.mark.parametrize("verb", [FORWARD, BACKWARD])
def test_after_a_pass_without_an_answer_the_step_begins_anew(
    faulty: FaultyClient, broker: Broker, serve: Serve, verb: str, fault: str
) -> None:
    server: Any = serve(TorchStageServer(broker.backend, "embed", build))
    stage = stage_of(faulty, attempts=1)
    for x, _ in batches(2):
        faulty.faults.append((verb, fault))
        stage.zero_grad()
        with pytest.raises(StageUnavailable):
            stage(x).square().sum().backward()
        with pytest.raises(OutOfStep, match=r"call zero_grad\(\) to begin the step anew"):
            stage.step()
        stage.zero_grad()
        stage(x).square().sum().backward()
        stage.step()
    assert is_whole(server, stage, 2)


def test_an_evaluation_without_an_answer_is_called_again(
    faulty: FaultyClient, broker: Broker, serve: Serve
) -> None:
    serve(TorchStageServer(broker.backend, "embed", build))
    stage = stage_of(faulty, attempts=1).eval()
    faulty.faults.append((FORWARD, "lost reply"))
    with pytest.raises(StageUnavailable):
        stage(next(batches(1))[0])
    stage(next(batches(1))[0])


def test_a_stage_that_nobody_serves_says_so_in_time(client: Client) -> None:
    client.stats()  # so that it has a broker: its time is for an answer alone
    stage = TorchStage(client, "embed", run="r", timeout_s=0.3)
    with pytest.raises(StageUnavailable, match=r"nobody answered for stage 'embed' within 0\.3 s"):
        stage(torch.zeros(1, 1).long())


# --- steps that do not agree ------------------------------------------------------------


def test_another_order_is_out_of_step(faulty: FaultyClient, broker: Broker, serve: Serve) -> None:
    serve(TorchStageServer(broker.backend, "embed", build, name="host-b"))
    stage = stage_of(faulty)
    x = next(batches(1))[0]
    stage(x).square().sum().backward()
    stage.step()
    for changed, said in (
        ({"step": 0}, "is at step 1, and forward is asked for at step 0"),
        ({"step": 2}, "forward is asked for at step 2"),
        ({"answered": 1}, "follows call 1, and call 3 was carried out"),
        ({"call": 1}, "call 2 comes after call 3"),
        ({"call": 2}, "call 3 was step"),
    ):
        before = {name: getattr(stage._link, name) for name in changed}
        for name, value in changed.items():
            setattr(stage._link, name, value)
        with pytest.raises(OutOfStep, match=said) as refused:
            stage(x)
        assert refused.value.host == "host-b"
        stage._link.__dict__.update(before)
    stage._link.call = 10
    stage(x).square().sum().backward()
    assert stage.step() == 2


def test_a_server_that_was_started_again_says_so(
    faulty: FaultyClient, broker: Broker, serve: Serve
) -> None:
    stage = stage_of(faulty)
    with TorchStageServer(broker.backend, "embed", build, name="host-a") as first:
        first.start()
        first.wait_registered(LIMIT_S)
        stage(next(batches(1))[0]).sum().backward()
    server: Any = serve(TorchStageServer(broker.backend, "embed", build, name="host-b"))
    for call in (stage.step, lambda: stage(next(batches(1))[0]), stage.describe):
        stage._link.doubt, stage._link.stepping = "", None
        with pytest.raises(StageLost, match="host-b, is another"):
            call()
    assert server.runs == 0, "it has not begun a run of untrained weights"


def test_a_store_alone_begins_at_no_other_step_than_the_first(
    faulty: FaultyClient, broker: Broker, serve: Serve
) -> None:
    serve(TorchStageServer(broker.backend, "embed", build))
    stage = stage_of(faulty)
    stage._link.step = 3
    with pytest.raises(OutOfStep, match="begins at step 0, and is called at step 3"):
        stage(next(batches(1))[0])
