"""A broker, and whoever a test of a fault adds to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from entrepot.market.broker import Broker
from entrepot.market.client import Client
from entrepot.market.supplier import Supplier
from entrepot.mediums import ShmMedium
from entrepot.settings import BrokerSettings
from tests.peer.generator import Generator
from tests.peer.process import LineProcess
from tests.peer.raw import RawClient, RawSupplier, RawV1, canary, stats
from tests.peer.waiting import LIMIT_S

NBYTES = 64
LOCAL = "tcp://127.0.0.1:*"
SWIFT = {"beat_s": 0.1, "suspect_s": 0.5, "dead_s": 1.5}
"""Silence ends a supplier soon, and ``canary`` tells that as much time has passed."""


class Market:
    """A broker and whoever a test adds; all leave in the reverse order."""

    def __init__(self, stack: ExitStack, settings: BrokerSettings) -> None:
        self._stack = stack
        self.broker = stack.enter_context(Broker(LOCAL, LOCAL, settings=settings))

    def client(self, slots: int = 8, **options: Any) -> Client:
        medium = ShmMedium.create(slot_nbytes=NBYTES, slots=slots)
        options = {"timeout_s": LIMIT_S} | options
        return self._stack.enter_context(Client(self.broker.frontend, medium, **options))

    def supplier(
        self, function: Callable[[str], bytes], *patterns: str, **options: Any
    ) -> Supplier:
        """One that the broker knows."""
        supplier = Supplier(self.broker.backend, dict.fromkeys(patterns, function), **options)
        self._stack.enter_context(supplier)
        if isinstance(function, Generator):
            self._stack.callback(function.release)
        supplier.start()
        supplier.wait_registered(LIMIT_S)
        return supplier

    def process(self) -> LineProcess:
        return self._stack.enter_context(LineProcess("tests.peer.ours"))

    def supplier_process(self, *patterns: str, **options: Any) -> LineProcess:
        process = self.process()
        backend = self.broker.backend
        process.ask("supplier", backend=backend, patterns=patterns, nbytes=NBYTES, **options)
        return process

    def raw_client(self) -> RawClient:
        client = self._stack.enter_context(RawClient(self.broker.frontend))
        client.hello()
        return client

    def raw_supplier(self, *patterns: str, **options: Any) -> RawSupplier:
        supplier = self._stack.enter_context(RawSupplier(self.broker.backend))
        return supplier.ready(*patterns, **options)

    def raw_v1(self, *, backend: bool = False) -> RawV1:
        endpoint = self.broker.backend if backend else self.broker.frontend
        return self._stack.enter_context(RawV1(endpoint))

    def stats(self) -> dict[str, Any]:
        return stats(self.broker.frontend)

    def canary(self) -> None:
        """Return when silence that began now has lasted for ``dead_s``."""
        canary(self.broker.frontend, self.broker.backend)


@pytest.fixture
def settings() -> BrokerSettings:
    """The broker's; ``given_settings`` changes them for a test."""
    return BrokerSettings()


def given_settings(**changed: Any) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("settings", [BrokerSettings(**changed)], ids=[""])


@pytest.fixture
def market(settings: BrokerSettings) -> Iterator[Market]:
    with ExitStack() as stack:
        yield Market(stack, settings)


def have(client: Client, product: str, timeout_s: float = 30.0) -> bytes:
    with client.order(product).result(timeout_s=timeout_s) as made:
        return made.bytes()
