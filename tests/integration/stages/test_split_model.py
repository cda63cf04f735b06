"""The example of a model in three parts: what its README says, and that it is the whole model."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

from entrepot.market.broker import Broker
from entrepot.market.client import Client
from entrepot.mediums import TCPMedium
from entrepot.stages import CutOptimizer, TorchStageServer
from examples.split_model import stages
from examples.split_model import train as training
from examples.split_model.model import BUILDS, CONFIG, batches, build_head
from examples.split_model.train import SLOT_NBYTES, cut, train

ANY = "tcp://127.0.0.1:*"
CHECKOUT = Path(__file__).parents[3]
README = CHECKOUT / "examples" / "split_model" / "README.md"
STEPS = 4


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def whole_losses(steps: int) -> list[float]:
    parts = [*(build(CONFIG) for build in BUILDS.values()), build_head(CONFIG)]
    model = nn.Sequential(*(module for module, _ in parts))
    return list(train(model, CutOptimizer([each for _, each in parts]), batches(steps)))


def test_the_three_parts_train_as_one_does() -> None:
    with Broker(ANY, ANY) as broker:
        servers = [TorchStageServer(broker.backend, *each) for each in BUILDS.items()]
        with servers[0], servers[1]:
            for server in servers:
                server.start()
                server.wait_registered(30)
            with Client(broker.frontend, TCPMedium.create(SLOT_NBYTES, 8)) as client:
                losses = list(train(*cut(client, "test", CONFIG), batches(STEPS)))
    assert losses == whole_losses(STEPS)


def test_the_readme_shows_what_it_prints() -> None:
    said = re.findall(r"step +(\d+) +loss ([\d.]+)", README.read_text())
    assert said[0][0] == "1"
    assert float(said[0][1]) == pytest.approx(whole_losses(1)[0], abs=1e-3)
    losses = [float(loss) for _, loss in said]
    assert losses == sorted(losses, reverse=True)


@pytest.mark.parametrize("module", [stages, training])
def test_the_commands_of_the_readme_are_there(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = f"python -m {module.__name__}"
    assert command in README.read_text()
    assert module.__doc__ is not None
    assert command in module.__doc__
    monkeypatch.setattr(sys, "argv", [module.__name__, "--help"])
    with pytest.raises(SystemExit) as ended:
        module.main()
    assert ended.value.code == 0
    offered = capsys.readouterr().out
    for line in README.read_text().splitlines():
        if line.startswith(command):
            assert all(option in offered for option in re.findall(r"--[a-z]+", line))
