"""A broker and a client, for stages to be served and used in one process."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from entrepot.market.broker import Broker
from entrepot.market.client import Client
from entrepot.mediums import Medium, ShmMedium, TCPMedium
from entrepot.settings import BrokerSettings
from entrepot.stages.serving import Server
from entrepot.store import Store
from tests.peer.waiting import LIMIT_S

ANY = "tcp://127.0.0.1:*"
SLOT = 1 << 16
SLOTS = 8

Serve = Callable[[Server], Server]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Where a sum is made in two threads its last bit may be another."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(ANY, ANY, settings=BrokerSettings(beat_s=0.1, reconnect_grace_s=0.1)) as broker:
        yield broker


@pytest.fixture
def client(broker: Broker, request: pytest.FixtureRequest) -> Iterator[Client]:
    medium: Medium
    if getattr(request, "param", "shm") == "tcp":
        medium = TCPMedium.create(SLOT, SLOTS)
    else:
        medium = ShmMedium.create(SLOT, SLOTS)
    with Client(broker.frontend, medium, timeout_s=LIMIT_S) as client:
        yield client


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts servers, and ends them in order."""
    with ExitStack() as stack:

        def start(server: Server) -> Server:
            stack.enter_context(server)
            server.start()
            server.wait_registered(LIMIT_S)
            return server

        yield start


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store", durable=False)
