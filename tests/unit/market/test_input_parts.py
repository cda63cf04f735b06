"""What is given in parts lies in its slot as one, and an input may come after its order."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from entrepot.errors import Closed, ConfigurationError, NotBytes, OrderFailed, ProductTooLarge
from entrepot.market.broker import Broker
from entrepot.market.client import Client
from entrepot.market.inputs import Input
from entrepot.market.supplier import Supplier, Work
from entrepot.mediums import FilesystemMedium, Medium, ShmMedium, TCPMedium, shm
from entrepot.settings import BrokerSettings, SupplierSettings
from tests.peer.waiting import LIMIT_S, until

ANY = "tcp://127.0.0.1:*"
SLOT = 64


@pytest.fixture(params=["shm", "file", "tcp"])
def medium(request: pytest.FixtureRequest) -> Medium:
    if request.param == "file":
        return FilesystemMedium.create(SLOT, 4, root=str(shm.DIRECTORY))
    kind: type[ShmMedium] | type[TCPMedium] = ShmMedium if request.param == "shm" else TCPMedium
    return kind.create(SLOT, 4)


@pytest.fixture
def client(medium: Medium) -> Iterator[Client]:
    def echo(work: Work, out: memoryview) -> int:
        assert work.input is not None
        out[: len(work.input)] = work.input
        return len(work.input)

    settings = SupplierSettings(file_root=str(shm.DIRECTORY))
    with (
        Broker(ANY, ANY) as broker,
        Supplier(broker.backend, {"echo": echo}, settings=settings) as supplier,
        Client(broker.frontend, medium) as client,
    ):
        supplier.start()
        yield client


class Ahead(Input):
    """An input that is not written before something has happened.

    :param before: returns when it has, or raises.
    """

    def __init__(self, data: bytes, before: Callable[[], object]) -> None:
        super().__init__([data])
        self._before = before

    def write(self, medium: Medium, offset: int) -> None:
        self._before()
        super().write(medium, offset)


def reading(medium: TCPMedium) -> bool:
    """Whether a supplier is at an input."""
    return any(line.busy.locked() for line in list(medium._owner_end._lines))


@pytest.mark.parametrize("medium", ["tcp"], indirect=True)
def test_an_input_is_written_while_its_order_is_on_the_way(client: Client) -> None:
    medium = client.medium
    assert isinstance(medium, TCPMedium)
    for text in (b"first", b"second"):
        given = Ahead(text, lambda: until(lambda: reading(medium)))
        with client.order("echo", input=given).result(LIMIT_S) as product:
            assert product.bytes() == text


@pytest.mark.parametrize("medium", ["tcp"], indirect=True)
def test_an_order_whose_input_was_interrupted_is_none(client: Client) -> None:
    medium = client.medium
    assert isinstance(medium, TCPMedium)

    def ctrl_c() -> None:
        until(lambda: reading(medium))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        client.orders(["echo"] * 2, inputs=[b"whole", Ahead(b"half", ctrl_c)])
    with client.order("echo", input=b"next").result(LIMIT_S) as product:
        assert product.bytes() == b"next"
    until(lambda: client.figures()["free"] == medium.slots)


def test_a_product_may_come_into_memory_that_was_given_with_its_order(
    client: Client, medium: Medium
) -> None:
    """But from a file, and with another size, it comes into its slot alone."""
    text = b"x" * SLOT
    for into, there in ((bytearray(SLOT), True), (bytearray(SLOT - 1), False), (None, False)):
        order = client.order("echo", input=text, into=into)
        with order.result(LIMIT_S) as product:
            assert product.bytes() == text
            landed = product.landed
            assert (landed is not None) == (there and medium.aims)
            if landed is not None:
                assert (landed.obj is into, landed.readonly) == (True, False)
                landed[0] = 0
                assert product.data[0] == 0
        if landed is not None:
            assert landed[1:] == text[1:]  # it may be kept
        with pytest.raises(Closed):
            _ = product.landed
    with pytest.raises(ConfigurationError, match="this bytes is read-only"):
        client.order("echo", input=text, into=bytes(SLOT))
    with pytest.raises(NotBytes):
        client.order("echo", input=text, into="text")
    until(lambda: client.figures()["free"] == medium.slots)


def returned(parts: list[Any]) -> Any:
    """A function that returns them."""

    def function(work: Work, out: memoryview) -> Any:
        del work, out
        return parts

    return function


LARGE = (1 << 20) + 5000


@pytest.mark.parametrize("kind", [ShmMedium, FilesystemMedium, TCPMedium])
@pytest.mark.parametrize("credit", [1, 4])
def test_a_function_may_return_buffers_that_are_written_one_after_the_other(
    kind: Any, credit: int
) -> None:
    numbers = array("i", range(250_000))
    products = {
        "none": returned([]),
        "small": returned([b"head", bytearray(b""), memoryview(b"body")]),
        "large": returned([b"head", numbers, b"tail"]),
        "full": returned([b"x" * LARGE]),
        "longer": returned([b"x" * LARGE, b"x"]),
        "text": returned([b"x", "text"]),
        "tuple": returned((b"x",)),  # type: ignore[arg-type]  # is no list
    }
    options = {"root": str(shm.DIRECTORY)} if kind is FilesystemMedium else {}
    settings = SupplierSettings(file_root=str(shm.DIRECTORY))
    with (
        Broker(ANY, ANY, settings=BrokerSettings(max_order_attempts=1)) as broker,
        Supplier(broker.backend, products, settings=settings, credit=credit) as supplier,
        Client(broker.frontend, kind.create(LARGE, 4, **options)) as client,
    ):
        supplier.start()
        made = {"none": b"", "small": b"headbody", "full": b"x" * LARGE}
        made["large"] = b"head" + numbers.tobytes() + b"tail"
        for name, whole in [*made.items()] * 2:
            with client.order(name).result(LIMIT_S) as product:
                assert product.bytes() == whole, name
        said = {
            "longer": rf"ProductTooLarge: .*{LARGE + 1} bytes in 2 buffers, for a slot of {LARGE}",
            "text": "NotBytes: a str cannot be put in a slot",
            "tuple": "NotBytes: .*or a list of buffers, and returned tuple",
        }
        for name, sentence in said.items():
            with pytest.raises(OrderFailed, match=sentence):
                client.order(name).result(LIMIT_S)


def test_parts_are_written_one_after_the_other(client: Client) -> None:
    parts = [b"head", memoryview(b""), bytearray(b"body" * 15)]
    with client.order("echo", input=parts).result(LIMIT_S) as product:
        assert product.bytes() == b"head" + b"body" * 15
    with client.order("echo", input=[]).result(LIMIT_S) as product:
        assert product.bytes() == b""


def test_parts_that_are_too_large_together_take_no_slot(client: Client) -> None:
    for _ in range(5):
        with pytest.raises(ProductTooLarge):
            client.order("echo", input=[b"x" * SLOT, b"x"])
    with client.order("echo", input=[b"x"] * SLOT).result(LIMIT_S) as product:
        assert product.bytes() == b"x" * SLOT
