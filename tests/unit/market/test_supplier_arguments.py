"""A supplier or a broker that is made with what cannot be says so at once."""

from __future__ import annotations

import math
from typing import Any

import pytest

from entrepot.errors import ConfigurationError
from entrepot.market.broker import Broker
from entrepot.market.supplier import Supplier
from entrepot.settings import ClientSettings, SupplierSettings

ABSENT = "tcp://127.0.0.1:9"


def make(name: str) -> bytes:
    return name.encode()


SUPPLIER: list[tuple[str, Any]] = [
    ("endpoint", 5556),
    ("name", 7),
    ("credit", 0),
    ("credit", "many"),
    ("credit", 1.5),
    ("credit", 65_537),
    ("batch", 0),
    ("batch", "x"),
    ("exclusive", "no"),
    ("exclusive", 1),
    ("contracts", "c"),
    ("contracts", {"x": 7}),
    ("settings", ClientSettings()),
    ("clock", 5),
]


@pytest.mark.parametrize(("name", "value"), SUPPLIER)
def test_a_suppliers_arguments(name: str, value: Any) -> None:
    given: dict[str, Any] = {"endpoint": ABSENT, name: value}
    with pytest.raises(ConfigurationError, match=name):
        Supplier(products={"x": make}, **given)


async def later(name: str) -> bytes:
    return name.encode()


@pytest.mark.parametrize(
    ("products", "said"),
    [
        (None, "products"),
        (make, "products"),
        ([("x", make)], "products"),
        ("x", "products"),
        ({}, "at least one pattern"),
        ((make,), "products"),
        ((make, "x"), "patterns are a list"),
        ((make, 7), "patterns"),
        ((make, [7]), "pattern"),
        ({7: make}, "pattern"),
        ({"x": "make"}, "callable"),
        ({"x": None}, "callable"),
        ({"x": later}, "is async"),
        ((later, ["x"]), "is async"),
        ({"x": lambda: b""}, "takes 0 arguments"),
    ],
)
def test_a_suppliers_products(products: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Supplier(ABSENT, products)


@pytest.mark.parametrize("value", [math.nan, "x", True])
def test_the_times_of_a_suppliers_methods(value: Any) -> None:
    with Supplier(ABSENT, {"x": make}, settings=SupplierSettings(timeout_s=0.05)) as supplier:
        with pytest.raises(ConfigurationError, match="timeout_s"):
            supplier.wait_registered(value)
        with pytest.raises(ConfigurationError, match="timeout_s"):
            supplier.stop(value)
        with pytest.raises(ConfigurationError, match="timeout_s"):
            supplier.run(timeout_s=value)
        with pytest.raises(ConfigurationError, match="stop_event"):
            supplier.run("now")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("frontend", 5555),
        ("backend", b"tcp://127.0.0.1:9"),
        ("settings", ClientSettings()),
        ("clock", 5),
        ("entropy", b"random"),
    ],
)
def test_a_brokers_arguments(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=name):
        Broker(**{name: value})
