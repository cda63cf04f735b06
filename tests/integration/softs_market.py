"""A broker, and parties of the package ``softs`` in their own environment."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from entrepot.market.broker import Broker
from entrepot.settings import BrokerSettings
from tests.peer import peer_env
from tests.peer.host import Host, softs_host
from tests.peer.process import LineProcess
from tests.peer.raw import RawClient, RawSupplier, RawV1
from tests.peer.waiting import until

SLOTS = 8
NBYTES = 64
SPECS = [
    {"name": "x", "shape": [2, 3], "dtype": "float32"},
    {"name": "y", "shape": [4], "dtype": "int64"},
]


@pytest.fixture(scope="module")
def softs(request: pytest.FixtureRequest) -> Iterator[Host]:
    def say(line: str) -> None:
        capture = request.config.pluginmanager.getplugin("capturemanager")
        with capture.global_and_fixture_disabled():
            print(f"\n{line}", flush=True)

    try:
        python = peer_env.peer_python(say)
    except peer_env.PeerUnavailable as fault:
        if peer_env.mandatory():
            raise
        pytest.skip(str(fault))
    with softs_host(python) as host:
        yield host


class Market:
    """A broker and the peers of one test."""

    def __init__(self, softs: Host, stack: ExitStack, broker: Broker, folder: Path) -> None:
        self.broker = broker
        self._softs = softs
        self._stack = stack
        self._folder = folder

    def client(self, *, medium: str = "tcp", **options: Any) -> LineProcess:
        """softs' Client, after its HELLO."""
        process = self._start("client")
        if medium == "file":
            options["address"] = str(self._folder / f"slots-{process.pid}")
        settings = {"slot_size": NBYTES, "num_slots": SLOTS} | options
        process.ask("start", endpoint=self.broker.frontend, medium=medium, **settings)
        return process

    def supplier(self, *patterns: str, **options: Any) -> LineProcess:
        """softs' Supplier, after its HELLO."""
        process = self._start("supplier")
        endpoint, nbytes = self.broker.backend, NBYTES
        process.ask("start", endpoint=endpoint, patterns=patterns, nbytes=nbytes, **options)
        return process

    def loader(self, product: str, **options: Any) -> LineProcess:
        """softs' dataset, or its loader with a ``batch_size``."""
        process = self._start("loader")
        endpoint = self.broker.frontend
        process.ask("start", endpoint=endpoint, product=product, specs=SPECS, **options)
        return process

    def _start(self, name: str) -> LineProcess:
        return self._stack.enter_context(self._softs.start(f"tests.peer.softs_{name}"))

    def raw_client(self) -> RawClient:
        client = self._stack.enter_context(RawClient(self.broker.frontend))
        client.hello()
        return client

    def raw_supplier(self, *patterns: str) -> RawSupplier:
        return self._stack.enter_context(RawSupplier(self.broker.backend)).ready(*patterns)

    def raw_v1(self) -> RawV1:
        return self._stack.enter_context(RawV1(self.broker.frontend))


@pytest.fixture
def settings() -> BrokerSettings:
    """The broker's; ``given_settings`` changes them for a test."""
    return BrokerSettings()


def given_settings(**changed: Any) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("settings", [BrokerSettings(**changed)], ids=[""])


@pytest.fixture(params=["tcp", "ipc"])
def market(
    request: pytest.FixtureRequest, softs: Host, settings: BrokerSettings
) -> Iterator[Market]:
    with ExitStack() as stack:
        # A socket's path may have 107 characters, and pytest's folders have names of tests.
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        ends = (
            ("tcp://127.0.0.1:*", "tcp://127.0.0.1:*")
            if request.param == "tcp"
            else (f"ipc://{folder}/f.sock", f"ipc://{folder}/b.sock")
        )
        broker = stack.enter_context(Broker(*ends, settings=settings))
        yield Market(softs, stack, broker, folder)


def take_all(client: LineProcess, count: int) -> list[int]:
    """``count`` slots, as the client completes them."""
    slots: list[int] = []

    def more() -> int:
        client.ask("poll", timeout_ms=100)
        while (slot := client.ask("completed")) is not None:
            slots.append(slot)
        return len(slots)

    until(more, lambda taken: taken >= count)
    assert len(slots) == count
    return slots


def read(client: LineProcess, slot: int) -> bytes:
    return bytes.fromhex(client.ask("read", slot=slot))


def all_free(client: LineProcess) -> None:
    """Wait until the client has every slot again."""

    def free() -> int:
        client.ask("poll", timeout_ms=20)
        slots: int = client.ask("slots")["free"]
        return slots

    until(free, lambda slots: slots == SLOTS)
