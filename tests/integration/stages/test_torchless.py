"""A stage and who calls it, in an environment where torch is not installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from entrepot.market.broker import Broker
from entrepot.market.client import Client
from entrepot.stages import RemoteStage, TorchStage, TorchStageServer
from tests.integration.stages.torchless_party import slots, tokens
from tests.peer import torchless_env
from tests.peer.process import LineProcess

# The environment may have to be made first, and that is not the test's time.
pytestmark = pytest.mark.timeout(120, func_only=True)

ANY = "tcp://127.0.0.1:*"
MODULE = "tests.integration.stages.torchless_party"
TEXTS = ["Free entry!", "", "see you at 8", "ñandú \U0001d4b3 עברית"]

Start = Callable[[], LineProcess]


@pytest.fixture(scope="module")
def python(request: pytest.FixtureRequest) -> Path:
    """The interpreter of the environment without torch."""

    def say(line: str) -> None:
        capture = request.config.pluginmanager.getplugin("capturemanager")
        with capture.global_and_fixture_disabled():
            print(f"\n{line}", flush=True)

    try:
        return torchless_env.torchless_python(say)
    except torchless_env.EnvironmentUnavailable as fault:
        if torchless_env.mandatory():
            raise
        pytest.skip(str(fault))


@pytest.fixture
def start(python: Path) -> Iterator[Start]:
    """Starts processes there, and ends them."""
    with ExitStack() as stack:

        def started() -> LineProcess:
            return stack.enter_context(LineProcess(MODULE, python=python))

        yield started


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(ANY, ANY) as broker:
        yield broker


def test_there_is_no_torch(start: Start) -> None:
    party = start()
    assert party.ask("imported", name="torch") == "ModuleNotFoundError: No module named 'torch'"
    assert party.ask("found", name="torch") == []
    assert party.ask("imported", name="numpy") == ""


@pytest.mark.parametrize("medium", ["shm", "tcp"])
def test_a_server_and_a_client_without_torch(start: Start, broker: Broker, medium: str) -> None:
    server, client = start(), start()
    server.ask("serve", backend=broker.backend)
    for texts in (TEXTS, [], ["x" * 20_000]):
        said = client.ask("call", frontend=broker.frontend, medium=medium, texts=texts)
        assert said == ["int64", tokens(texts).tolist()]
    for party in (server, client):
        assert party.ask("found", name="torch") == []


@pytest.mark.parametrize("medium", ["shm", "tcp"])
def test_what_comes_from_where_there_is_no_torch_is_learned_from_where_there_is(
    start: Start, broker: Broker, medium: str
) -> None:
    """Tokens of one process, an embedding that is trained in another, and the head here."""
    server = start()
    server.ask("serve", backend=broker.backend)

    def build(config: dict[str, int]) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(config["seed"])
        embedding = torch.nn.Embedding(256, 4)
        return embedding, torch.optim.SGD(embedding.parameters(), 0.1)

    with (
        TorchStageServer(broker.backend, "embed", build) as far,
        Client(broker.frontend, slots(medium)) as client,
    ):
        far.start()
        ids = torch.from_numpy(RemoteStage(client, "tokens", timeout_s=30)(TEXTS))
        assert torch.equal(ids, torch.from_numpy(tokens(TEXTS)))
        embed = TorchStage(client, "embed", run="r", config={"seed": 3}, timeout_s=30)
        whole, optimizer = build({"seed": 3})
        for _ in range(3):
            for module in (embed, whole):
                module.zero_grad()
            far_loss, loss = (module(ids).pow(2).mean() for module in (embed, whole))
            assert torch.equal(far_loss, loss)
            far_loss.backward()
            loss.backward()
            embed.step()
            optimizer.step()


@pytest.mark.parametrize("name", ["TorchStage", "TorchStageServer", "CutOptimizer"])
def test_who_asks_for_stages_of_torch_is_told_what_to_install(start: Start, name: str) -> None:
    assert start().ask("got", name=name) == (
        "MissingExtra: stages of torch need torch, which is not installed; "
        "pip install 'entrepot[torch]'"
    )
