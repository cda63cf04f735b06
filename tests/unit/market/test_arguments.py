"""Whoever calls with what cannot be is told at once, by a typed error with the value in it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from entrepot.errors import ConfigurationError, EntrepotError, OrderTimeout
from entrepot.market.broker import Broker
from entrepot.market.client import Client
from entrepot.market.supplier import Supplier
from entrepot.mediums import FilesystemMedium, ShmMedium, TCPMedium
from entrepot.settings import BrokerSettings

ABSENT = "tcp://127.0.0.1:9"
LIMIT_S = 30.0


def make(name: str) -> bytes:
    return name.encode()


def refused(call: Callable[[], object], name: str, value: object) -> None:
    """The error names the argument, and shows what it got."""
    with pytest.raises(ConfigurationError) as told:
        call()
    said = str(told.value)
    assert name in said
    assert repr(value)[:20] in said or type(value).__name__ in said, said


# --- a client ---------------------------------------------------------------------------

CLIENT: list[tuple[str, Any]] = [
    ("endpoint", 5555),
    ("endpoint", None),
    ("endpoint", b"tcp://127.0.0.1:9"),
    ("name", 7),
    ("name", "n" * 300),
    ("settings", "fast"),
    ("settings", BrokerSettings()),
    ("timeout_s", "x"),
    ("timeout_s", math.nan),
    ("timeout_s", 0),
    ("timeout_s", -1),
    ("timeout_s", True),
    ("contract", 7),
    ("session", "s" * 16),
    ("session", b"short"),
    ("clock", 0.0),
]


@pytest.mark.parametrize(("name", "value"), CLIENT)
def test_a_clients_arguments(name: str, value: Any) -> None:
    with ShmMedium.create(64, 1) as medium:
        given: dict[str, Any] = {"endpoint": ABSENT, name: value}
        with pytest.raises(ConfigurationError, match=name):
            Client(medium=medium, **given)
        Client(ABSENT, medium).close()  # nobody has taken it


@pytest.mark.parametrize("medium", [None, "shm", ShmMedium, 7])
def test_a_clients_medium(medium: Any) -> None:
    refused(lambda: Client(ABSENT, medium), "medium", medium)


@pytest.fixture
def client() -> Iterator[Client]:
    with Client(ABSENT, ShmMedium.create(64, 2), timeout_s=0.05) as client:
        yield client


CALLS: list[tuple[str, Any, Callable[[Client, Any], object]]] = [
    ("product id", 7, lambda c, v: c.order(v)),
    ("product id", None, lambda c, v: c.order(v)),
    ("product id", b"x", lambda c, v: c.order(v)),
    ("priority", "high", lambda c, v: c.order("x", priority=v)),
    ("priority", None, lambda c, v: c.order("x", priority=v)),
    ("priority", 1.5, lambda c, v: c.order("x", priority=v)),
    ("priority", True, lambda c, v: c.order("x", priority=v)),
    ("priority", 2**31, lambda c, v: c.order("x", priority=v)),
    ("deadline_s", "soon", lambda c, v: c.order("x", deadline_s=v)),
    ("deadline_s", math.nan, lambda c, v: c.order("x", deadline_s=v)),
    ("deadline_s", 0, lambda c, v: c.order("x", deadline_s=v)),
    ("timeout_s", "x", lambda c, v: c.order("x", timeout_s=v)),
    ("timeout_s", math.nan, lambda c, v: c.order("x", timeout_s=v)),
    ("orders", "abc", lambda c, v: c.orders(v)),
    ("product_ids", 7, lambda c, v: c.orders(v)),
    ("product id", 7, lambda c, v: c.orders(["x", v])),
    ("inputs", 7, lambda c, v: c.orders(["x"], inputs=v)),
    ("inputs", "x", lambda c, v: c.orders(["x"], inputs=v)),
    ("timeout_s", math.nan, lambda c, v: c.orders(["x"], timeout_s=v)),
    ("priority", "high", lambda c, v: c.orders(["x"], priority=v)),
    ("product_id", 7, lambda c, v: c.stream(v)),
    ("product_id", None, lambda c, v: c.stream(v)),
    ("product id", 7, lambda c, v: next(c.stream(iter([v])))),
    ("prefetch", 0, lambda c, v: c.stream("x", prefetch=v)),
    ("prefetch", "2", lambda c, v: c.stream("x", prefetch=v)),
    ("prefetch", 1.5, lambda c, v: c.stream("x", prefetch=v)),
    ("count", -1, lambda c, v: c.stream("x", count=v)),
    ("count", "3", lambda c, v: c.stream("x", count=v)),
    ("timeout_s", "x", lambda c, v: c.stream("x", timeout_s=v)),
    ("priority", [], lambda c, v: c.stream("x", priority=v)),
    ("order", "c1", lambda c, v: c.cancel(v)),
    ("order", None, lambda c, v: c.cancel(v)),
    ("timeout_s", math.nan, lambda c, v: c.stats(v)),
    ("timeout_s", "x", lambda c, v: c.stats(timeout_s=v)),
    ("timeout_s", "x", lambda c, v: c.drain("s", v)),
    ("name", 7, lambda c, v: c.drain(v)),
    ("name", "n" * 300, lambda c, v: c.drain(v)),
]


@pytest.mark.parametrize(("name", "value", "call"), CALLS)
def test_the_arguments_of_a_clients_methods(
    client: Client, name: str, value: Any, call: Callable[[Client, Any], object]
) -> None:
    with pytest.raises(ConfigurationError, match=name):
        call(client, value)
    assert client.figures()["free"] == 2, "nothing was ordered"


@pytest.fixture
def market() -> Iterator[tuple[Client, Supplier]]:
    with (
        Broker("tcp://127.0.0.1:*", "tcp://127.0.0.1:*") as broker,
        Supplier(broker.backend, {"made": make}).start() as supplier,
        Client(broker.frontend, ShmMedium.create(64, 8), timeout_s=LIMIT_S) as client,
    ):
        yield client, supplier


@pytest.mark.parametrize("value", [math.nan, "x", "1", True, [], np.nan])
def test_a_result_that_nobody_can_wait_for(market: tuple[Client, Supplier], value: Any) -> None:
    """With nan no deadline is ever over: the wait would have had no end."""
    client, _ = market
    order = client.order("made")
    refused(lambda: order.result(timeout_s=value), "timeout_s", value)
    with order.result(LIMIT_S) as product:  # it is still open
        assert product.bytes() == b"made"


@pytest.mark.parametrize("value", [0, -1, -0.5, np.float32(0)])
def test_what_is_left_of_a_deadline_may_be_nothing(
    market: tuple[Client, Supplier], value: Any
) -> None:
    client, _ = market
    with pytest.raises(OrderTimeout):
        client.order("nobody's").result(timeout_s=value)


def test_numbers_of_numpy_are_numbers(market: tuple[Client, Supplier]) -> None:
    client, _ = market
    three: Any = np.int64(3)
    limit_s: Any = np.float32(LIMIT_S)
    order = client.order("made", priority=three, deadline_s=limit_s)
    order.result(limit_s).release()
    some = client.stream("made", count=three, prefetch=np.uint8(2))  # type: ignore[arg-type]
    assert [product.bytes() for product in some] == [b"made"] * 3


# --- mediums ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [ShmMedium, FilesystemMedium, TCPMedium])
@pytest.mark.parametrize("value", ["x", "64", 1.5, None, True, 0, -1, math.nan])
def test_the_shape_of_a_medium(kind: Any, value: Any) -> None:
    with pytest.raises(ConfigurationError, match="slot_nbytes"):
        kind.create(value, 1)
    with pytest.raises(ConfigurationError, match="slots"):
        kind.create(64, value)


def test_a_medium_takes_numpys_numbers() -> None:
    slot_nbytes: Any = np.int64(64)
    slots: Any = np.int32(2)
    with ShmMedium.create(slot_nbytes, slots) as medium:
        assert medium.nbytes == 128
        assert {type(each) for each in (medium.slots, medium.slot_nbytes, medium.offset(1))} == {
            int
        }, "others could not be sent"


def test_all_of_these_are_the_librarys_errors() -> None:
    assert issubclass(ConfigurationError, EntrepotError)
    assert issubclass(ConfigurationError, ValueError)
