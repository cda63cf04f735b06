"""What who serves a stage is told of a forward, or of a build, that raises."""

from __future__ import annotations

import logging
import traceback
from typing import Any

import pytest
import torch

from entrepot.errors import StageError
from entrepot.market.broker import Broker
from entrepot.market.client import Client
from entrepot.stages import RemoteStage, StageServer, TorchStage, TorchStageServer
from tests.unit.stages.conftest import Serve


def told(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [each for each in caplog.records if each.name == "entrepot.stages.serving"]


def trace(record: logging.LogRecord) -> str:
    assert record.exc_info
    return "".join(traceback.format_exception(*record.exc_info))


def test_a_forward_that_raises_is_told_with_its_place_once(
    client: Client, broker: Broker, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    """The sentence is in every message, the traceback with the first, without frames of ours."""

    def forward(text: str) -> str:
        raise ValueError(f"my\x1b bad {text}")

    serve(StageServer(broker.backend, "clean", forward))
    for _ in range(3):
        with pytest.raises(StageError):
            RemoteStage(client, "clean")("x")
    said = told(caplog)
    assert {each.getMessage() for each in said} == {
        r"a call of a stage failed, 'stage/clean/forward': ValueError: my\x1b bad x"
    }
    assert [each.exc_info is not None for each in said] == [True, False, False]
    assert ", in forward\n" in trace(said[0])
    assert "entrepot/stages" not in trace(said[0])


def test_a_build_that_raises_is_told_with_its_place(
    client: Client, broker: Broker, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    def build(config: Any) -> torch.nn.Module:
        raise KeyError("width")

    serve(TorchStageServer(broker.backend, "embed", build))
    with pytest.raises(StageError):
        TorchStage(client, "embed", run="r", config={})(torch.zeros(1))
    (said,) = told(caplog)
    assert "KeyError: 'width'" in said.getMessage()
    assert ", in build\n" in trace(said)


def test_what_callers_do_wrong_needs_no_traceback(
    client: Client, broker: Broker, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    serve(StageServer(broker.backend, "clean", lambda text: text, version="2"))
    with pytest.raises(StageError):
        RemoteStage(client, "clean", version="3")("x")
    (said,) = told(caplog)
    assert "version '3'" in said.getMessage()
    assert not said.exc_info
