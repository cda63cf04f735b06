"""What a supplier says of a function that raises, to who runs it with logs set up and without."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest

from entrepot import logs
from entrepot.errors import OrderFailed
from entrepot.market.batch import Batch
from entrepot.market.broker import Broker
from entrepot.market.client import Client
from entrepot.market.supplier import Supplier
from entrepot.market.work import Products
from entrepot.mediums import ShmMedium
from entrepot.settings import BrokerSettings
from tests.unit.market.fake_broker import LIMIT_S

ANY = "tcp://127.0.0.1:*"

SCRIPT = r"""
from entrepot import Broker, Client, ShmMedium, Supplier
from entrepot.errors import OrderFailed

def deeper(product_id):
    raise ValueError("my\x1b[31m bad\n" + product_id)

def make(product_id):
    return deeper(product_id)

with Broker("tcp://127.0.0.1:*", "tcp://127.0.0.1:*") as broker:
    with Client(broker.frontend, ShmMedium.create(64, 4)) as client:
        with Supplier(broker.backend, {"sms/.*": make}).start() as supplier:
            try:
                client.order("sms/x").result(30)
            except OrderFailed:
                supplier.stop()
"""


@pytest.fixture
def client() -> Iterator[tuple[Broker, Client]]:
    with (
        Broker(ANY, ANY, settings=BrokerSettings(beat_s=0.1, reconnect_grace_s=0.1)) as broker,
        Client(broker.frontend, ShmMedium.create(64, 16), timeout_s=LIMIT_S) as client,
    ):
        yield broker, client


def fail(there: tuple[Broker, Client], products: Products, *product_ids: str) -> None:
    """Order these of a supplier that fails them all."""
    broker, client = there
    with Supplier(broker.backend, products, name="poor") as supplier:
        supplier.start()
        for product_id in product_ids:
            with pytest.raises(OrderFailed):
                client.order(product_id).result(LIMIT_S)


def bad(product_id: str) -> bytes:
    raise ValueError(f"my bad {product_id}")


def worse(product_id: str) -> bytes:
    return bad(product_id)


def told(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [each for each in caplog.records if each.name == "entrepot.market.supplier"]


def test_a_script_without_logs_is_told_which_order_failed_of_what_and_where() -> None:
    """Python's last resort shows the message alone: it has the product, the error and its place."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("order ")]
    assert len(lines) == 5
    assert all(
        line.endswith(r"for 'sms/x' failed: ValueError: my\x1b[31m bad sms/x") for line in lines
    )
    assert done.stderr.count("Traceback") == 1
    assert "in deeper" in done.stderr
    assert "entrepot/market" not in done.stderr
    assert "\x1b" not in done.stderr


def test_the_message_has_the_why_and_programs_have_fields(
    client: tuple[Broker, Client], caplog: pytest.LogCaptureFixture
) -> None:
    fail(client, {"x": bad}, "x")
    record = told(caplog)[0]
    fields = vars(record)
    assert record.getMessage() == f"order {fields['order_id']} for 'x' failed: ValueError: my bad x"
    assert (fields["supplier"], fields["product_id"]) == ("poor", "x")
    assert (fields["type"], fields["why"]) == ("ValueError", "my bad x")


def test_a_message_is_bounded(
    client: tuple[Broker, Client], caplog: pytest.LogCaptureFixture
) -> None:
    def long(product_id: str) -> bytes:
        raise ValueError("long" * 10_000)

    name = "x" * 3000
    fail(client, {".*": long}, name)
    assert len(told(caplog)[0].getMessage()) < 1000


def test_each_place_is_shown_once_whatever_the_order(
    client: tuple[Broker, Client], caplog: pytest.LogCaptureFixture
) -> None:
    """Five attempts and two products of one place are one traceback; another place is another."""
    fail(client, {"[ab]": bad, "other": worse}, "a", "b", "other")
    traced = [each.exc_info for each in told(caplog) if each.exc_info]
    assert len(told(caplog)) == 15
    assert [str(each[1]) for each in traced] == ["my bad a", "my bad other"]
    assert all(each[2] is not None for each in traced)


def test_a_batch_that_fails_shows_its_place_once(
    client: tuple[Broker, Client], caplog: pytest.LogCaptureFixture
) -> None:
    def many(works: list[object]) -> list[bytes]:
        raise RuntimeError("no GPU")

    fail(client, {".*": Batch(many, 4)}, "a", "b")
    assert [each.exc_info is not None for each in told(caplog)].count(True) == 1
    assert all("RuntimeError: no GPU" in each.getMessage() for each in told(caplog))


def test_what_is_wrong_with_a_result_has_a_sentence_and_no_frames_of_ours(
    client: tuple[Broker, Client], caplog: pytest.LogCaptureFixture
) -> None:
    fail(client, {"x": lambda product_id: bytes(100)}, "x")
    assert "ProductTooLarge" in told(caplog)[0].getMessage()
    assert not any(each.exc_info for each in told(caplog))


def test_a_function_that_exits_is_shown_where(
    client: tuple[Broker, Client], caplog: pytest.LogCaptureFixture
) -> None:
    fail(client, {"x": lambda product_id: sys.exit(3)}, "x")
    assert "SystemExit: 3" in told(caplog)[0].getMessage()
    assert told(caplog)[0].exc_info


@pytest.mark.parametrize("terminal", [True, False])
def test_both_forms_of_logs_show_the_users_lines_and_none_of_ours(
    client: tuple[Broker, Client], terminal: bool
) -> None:
    stream = io.StringIO()
    stream.isatty = lambda: terminal  # type: ignore[method-assign]
    package = logging.getLogger("entrepot")
    before = package.handlers[:], package.level, package.propagate
    try:
        logs.setup("warning", stream)
        fail(client, {"x": worse}, "x")
    finally:
        package.handlers[:], package.level, package.propagate = before
    first, *others = stream.getvalue().strip().split("\n") if not terminal else [stream.getvalue()]
    shown = first if terminal else json.loads(first)["exception"]
    assert shown.count("Traceback") == 1
    assert ", in worse\n" in shown
    assert ", in bad\n" in shown
    assert "entrepot/market" not in shown
    assert not any("exception" in json.loads(each) for each in others)
