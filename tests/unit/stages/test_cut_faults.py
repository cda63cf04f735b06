"""What a stage that learns says of itself, and what it says when something is wrong."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from entrepot.errors import (
    ConfigurationError,
    OutOfStep,
    PatternRefused,
    ProductTooLarge,
    StageFailed,
    StageMismatch,
)
from entrepot.market.broker import Broker
from entrepot.market.client import Client
from entrepot.settings import SupplierSettings
from entrepot.stages import (
    CutOptimizer,
    RemoteStage,
    TorchStage,
    TorchStageServer,
)
from tests.peer.waiting import LIMIT_S
from tests.unit.stages.conftest import Serve
from tests.unit.stages.cuts import (
    CONFIG,
    Double,
    batches,
    build,
    build_middle,
    far,
    same_weights,
    stage_of,
)

# --- descriptions and faults ------------------------------------------------------------


def test_a_run_describes_itself(client: Client, broker: Broker, serve: Serve) -> None:
    serve(TorchStageServer(broker.backend, "embed", build, version="2", name="host-b"))
    embed, same, other = stage_of(client), stage_of(client, run="s"), stage_of(client, seed=4)
    first = embed.describe()
    assert (first.stage, first.version, first.host, first.step) == ("embed", "2", "host-b", 0)
    assert first.parameters == same.describe().parameters
    assert first.parameters != other.describe().parameters
    embed(next(batches(1))[0]).sum().backward()
    embed.step()
    after = embed.describe()
    assert (after.step, after.parameters == first.parameters) == (1, False)
    assert RemoteStage(client, "embed", timeout_s=LIMIT_S).describe().version == "2"
    with pytest.raises(StageMismatch, match="version '3' of stage 'embed' is wanted"):
        TorchStage(client, "embed", run="x", version="3", timeout_s=LIMIT_S).describe()


def test_what_the_module_raises_is_said_and_nothing_is_left(
    client: Client, broker: Broker, serve: Serve
) -> None:
    server = serve(TorchStageServer(broker.backend, "middle", build_middle, name="host-b"))
    middle = stage_of(client, "middle")
    with pytest.raises(StageFailed, match="RuntimeError: mat1 and mat2 shapes") as failed:
        middle(torch.ones(2, 5))
    assert failed.value.host == "host-b"
    middle(torch.ones(2, 4)).sum().backward()
    assert middle.step() == 1
    whole, its_own = build_middle(CONFIG)
    whole(torch.ones(2, 4)).sum().backward()
    its_own.step()
    assert same_weights(far(server, middle), whole)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda config: None, "returned NoneType; return a module"),
        (lambda config: (nn.Linear(1, 1), "adam"), "returned a str as its optimizer"),
        (lambda config: config["nothing"], "KeyError: 'nothing'"),
    ],
)
def test_a_build_that_builds_nothing(
    client: Client, broker: Broker, serve: Serve, made: Any, said: str
) -> None:
    server = serve(TorchStageServer(broker.backend, "embed", made))
    with pytest.raises(StageFailed, match=said):
        stage_of(client)(torch.ones(1))
    assert server.runs == 0  # type: ignore[attr-defined]


def test_activations_that_do_not_fit(client: Client, broker: Broker, serve: Serve) -> None:
    serve(TorchStageServer(broker.backend, "double", lambda config: Double()))
    double = stage_of(client, "double")
    with pytest.raises(ProductTooLarge, match="make its medium with larger slots"):
        double(torch.zeros(1 << 15))
    assert double(torch.ones(3)).tolist() == [2, 2, 2]


def test_an_answer_that_does_not_fit(client: Client, broker: Broker, serve: Serve) -> None:
    """The forward was carried out, so the step has to begin anew."""

    class Grows(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.repeat(4)

    serve(TorchStageServer(broker.backend, "grows", lambda config: Grows()))
    grows = stage_of(client, "grows")
    assert grows(torch.ones(3)).shape == (12,)
    with pytest.raises(ProductTooLarge, match="the reply of stage 'grows' has"):
        grows(torch.ones(6000))
    with pytest.raises(OutOfStep, match="zero_grad"):
        grows(torch.ones(3))
    grows.zero_grad()
    assert grows(torch.ones(3)).shape == (12,)


def test_a_stage_has_one_owner(broker: Broker, serve: Serve) -> None:
    serve(TorchStageServer(broker.backend, "embed", build, name="host-b"))
    settings = SupplierSettings(timeout_s=0.2)  # one that may be dying is waited for
    second, third = (
        TorchStageServer(broker.backend, "embed", build, settings=settings) for _ in range(2)
    )
    with second, pytest.raises(PatternRefused, match="is registered by supplier 'host-b'"):
        second.run()
    third.start()
    with pytest.raises(PatternRefused):
        third.wait_registered(LIMIT_S)
    with pytest.raises(PatternRefused):
        third.stop()


def test_arguments_that_cannot_be(client: Client) -> None:
    with pytest.raises(ConfigurationError, match="a run needs a name"):
        TorchStage(client, "embed", run="")
    with pytest.raises(ConfigurationError, match="what JSON can say"):
        TorchStage(client, "embed", run="r", config={"lr": float("nan")})
    with pytest.raises(ConfigurationError, match="checkpoint_every needs a store"):
        TorchStageServer("tcp://127.0.0.1:1", "embed", build, checkpoint_every=1)
    with pytest.raises(ConfigurationError, match="a part is a str"):
        CutOptimizer(["embed"])
    assert "run='r'" in repr(TorchStage(client, "embed", run="r"))
