"""Many orders in one call: which are taken together, and what becomes of each."""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import entrepot
from entrepot.contract import Contract
from entrepot.demo.way import Loopback
from entrepot.errors import (
    ConfigurationError,
    NotBytes,
    OrderFailed,
    ProtocolError,
    WrongBatch,
)
from entrepot.market import connection as connection_module
from entrepot.market import protocol
from entrepot.market.batch import Batch, answers_of, is_full, together
from entrepot.market.broker import Broker
from entrepot.market.client import Client, Order
from entrepot.market.supplier import Supplier, Work
from entrepot.mediums import Medium, ShmMedium, TCPMedium
from entrepot.settings import BrokerSettings, SupplierSettings
from tests.peer.waiting import until
from tests.unit.market.fake_broker import LIMIT_S, Apart, FakeBroker

ANY = "tcp://127.0.0.1:*"
SLOT = 64
LONG_S = 50.0
"""A wait that a test never waits out."""


@pytest.fixture(autouse=True)
def _no_safety_net(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sleepers look at the clock once a second, which would hide that nobody woke them."""
    monkeypatch.setattr(connection_module, "MAX_SLEEP_S", 60.0)


@pytest.fixture
def apart() -> Iterator[Apart]:
    apart = Apart()
    yield apart
    apart.close()


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(ANY, ANY, settings=BrokerSettings(beat_s=0.1, reconnect_grace_s=0.1)) as broker:
        yield broker


@pytest.fixture(params=["shm", "tcp"])
def client(broker: Broker, request: pytest.FixtureRequest) -> Iterator[Client]:
    with make_client(broker, request.param) as client:
        yield client


@pytest.fixture
def shm_client(broker: Broker) -> Iterator[Client]:
    with make_client(broker, "shm") as client:
        yield client


def make_client(broker: Broker, medium: str) -> Client:
    kinds: dict[str, type[Medium]] = {"shm": ShmMedium, "tcp": TCPMedium}
    return Client(broker.frontend, kinds[medium].create(SLOT, 64), timeout_s=LIMIT_S)


def taken(orders: Sequence[Order]) -> list[bytes]:
    made = []
    for order in orders:
        with order.result(LIMIT_S) as product:
            made.append(product.bytes())
    return made


def failures(orders: Sequence[Order]) -> list[str]:
    """What the one supplier there is said of each order's first attempt."""
    said = []
    for order in orders:
        with pytest.raises(OrderFailed) as failed:
            order.result(LIMIT_S)
        said.append(failed.value.attempts[0].partition(": ")[2])
    return said


def until_waiting(supplier: Supplier, count: int) -> None:
    """Until so many orders have come to ``supplier`` and wait there."""
    until(lambda: len(supplier._worklist.queue), lambda waiting: waiting == count)


class Forward:
    """A function of many that notes what it gets, and goes on when it may."""

    def __init__(self, *, held: bool = False) -> None:
        self.calls: list[list[str]] = []
        self.called = threading.Event()
        self.go_on = threading.Event()
        if not held:
            self.go_on.set()

    def __call__(self, works: list[Work]) -> list[Any]:
        self.calls.append([work.product_id for work in works])
        self.called.set()
        assert self.go_on.wait(LIMIT_S)
        return [work.product_id.encode() for work in works]


# --- which orders are taken together ----------------------------------------------------


def items(*product_ids: str) -> deque[protocol.WorkItem]:
    return deque(
        protocol.WorkItem(f"o{number}", number, product_id, "nowhere", 0, SLOT)
        for number, product_id in enumerate(product_ids)
    )


def ids(some: Sequence[protocol.WorkItem] | deque[protocol.WorkItem]) -> str:
    return " ".join(item.product_id for item in some)


THREE, OTHER = Batch(len, 3), Batch(len, 2)


def by_letter(product_id: str) -> Batch | None:
    return {"t": THREE, "o": OTHER}.get(product_id[0])


@pytest.mark.parametrize(
    ("queue", "taken_first", "left"),
    [
        ("t1", "t1", ""),
        ("t1 t2 t3 t4", "t1 t2 t3", "t4"),
        ("t1 o1 t2 p t3 t4 o2", "t1 t2 t3", "o1 p t4 o2"),
        ("o1 t1 t2 o2 o3", "o1 o2", "t1 t2 o3"),
        ("p t1 t2", "p", "t1 t2"),
        ("p p", "p", "p"),
    ],
)
def test_the_oldest_is_taken_with_those_of_its_batch_and_the_rest_keeps_its_order(
    queue: str, taken_first: str, left: str
) -> None:
    waiting = items(*queue.split())
    assert ids(together(waiting, by_letter)) == taken_first
    assert ids(waiting) == left


@pytest.mark.parametrize(
    ("queue", "full"),
    [
        ("t1", False),
        ("t1 t2", False),
        ("t1 o1 o2", False),
        ("t1 o1 t2 o2 t3", True),
        ("t1 t2 t3", True),
        ("o1 o2", True),
        ("p", True),
        ("p t1", True),
    ],
)
def test_a_batch_is_full_with_its_size_and_a_plain_one_always(queue: str, full: bool) -> None:
    assert is_full(items(*queue.split()), by_letter) is full


def test_what_has_come_is_made_in_one_call(client: Client, broker: Broker) -> None:
    forward = Forward(held=True)
    with Supplier(broker.backend, {".*": forward}, batch=16).start() as supplier:
        first = client.order("first")
        assert forward.called.wait(LIMIT_S)
        rest = [client.order(f"p{number}") for number in range(9)]
        until_waiting(supplier, 9)
        forward.go_on.set()
        assert taken([first, *rest]) == [b"first", *(b"p%d" % number for number in range(9))]
    assert forward.calls == [["first"], [f"p{number}" for number in range(9)]]


def test_a_call_gets_no_more_than_the_size(shm_client: Client, broker: Broker) -> None:
    forward = Forward()
    with Supplier(broker.backend, {".*": forward}, batch=4, credit=16).start() as supplier:
        supplier.wait_registered(LIMIT_S)
        names = [f"p{number}" for number in range(10)]
        assert taken(shm_client.orders(names)) == [name.encode() for name in names]
    assert [len(call) for call in forward.calls] == [4, 4, 2]


def test_one_order_comes_as_a_list_of_one(shm_client: Client, broker: Broker) -> None:
    forward = Forward()
    with Supplier(broker.backend, {".*": forward}, batch=1).start():
        assert taken([shm_client.order("a"), shm_client.order("b")]) == [b"a", b"b"]
    assert forward.calls == [["a"], ["b"]]


def test_one_supplier_serves_both_and_patterns_of_one_batch_go_together(
    client: Client, broker: Broker
) -> None:
    forward, plain = Forward(held=True), []

    def clean(product_id: str) -> bytes:
        plain.append(product_id)
        return b"clean"

    products: dict[str, Any] = {
        "teacher_a": Batch(forward, 8),
        "teacher_b": Batch(forward, 8),
        "text": clean,
    }
    with Supplier(broker.backend, products).start() as supplier:
        names = ["teacher_a", "text", "teacher_b", "teacher_a", "text", "teacher_b"]
        first = client.order("teacher_a")
        assert forward.called.wait(LIMIT_S)
        rest = client.orders(names)
        until_waiting(supplier, 6)
        forward.go_on.set()
        made = taken([first, *rest])
    assert made[1:] == [b"clean" if name == "text" else name.encode() for name in names]
    assert forward.calls[1] == ["teacher_a", "teacher_b", "teacher_a", "teacher_b"]
    assert plain == ["text", "text"]


def test_a_function_of_two_batches_is_called_for_each(shm_client: Client, broker: Broker) -> None:
    forward = Forward()
    products = {"a": Batch(forward, 2), "b": Batch(forward, 3)}
    with Supplier(broker.backend, products, credit=8).start() as supplier:
        supplier.wait_registered(LIMIT_S)
        taken(shm_client.orders(["a", "b", "a", "b", "b"]))
    assert forward.calls == [["a", "a"], ["b", "b", "b"]]


# --- waiting for more -------------------------------------------------------------------


def test_an_order_waits_for_others_until_the_batch_is_full(client: Client, broker: Broker) -> None:
    forward = Forward()
    with Supplier(broker.backend, {".*": Batch(forward, 3, wait_s=LONG_S)}).start() as supplier:
        orders = [client.order("a")]
        until_waiting(supplier, 1)
        orders.append(client.order("b"))
        until_waiting(supplier, 2)
        orders.append(client.order("c"))
        assert taken(orders) == [b"a", b"b", b"c"]
    assert forward.calls == [["a", "b", "c"]]


def test_an_order_waits_no_longer_than_was_said(shm_client: Client, broker: Broker) -> None:
    forward = Forward()
    settings = SupplierSettings(batch_wait_s=0.15)
    with Supplier(broker.backend, {".*": forward}, batch=16, settings=settings).start() as supplier:
        supplier.wait_registered(LIMIT_S)
        began = time.monotonic()
        assert taken([shm_client.order("a")]) == [b"a"]
        assert time.monotonic() - began >= 0.15
    assert forward.calls == [["a"]]


def test_nothing_waits_for_what_the_credit_does_not_allow(
    shm_client: Client, broker: Broker
) -> None:
    """The broker gives no more than four, two of them another function's."""
    forward = Forward()
    products: dict[str, Any] = {"a": Batch(forward, 4, wait_s=LONG_S), "b": str.encode}
    with Supplier(broker.backend, products).start() as supplier:
        supplier.wait_registered(LIMIT_S)
        assert taken(shm_client.orders(["a", "b", "a", "b"])) == [b"a", b"b", b"a", b"b"]
    assert forward.calls == [["a", "a"]]


@pytest.mark.parametrize("how", ["stop", "stop_event", "drain"])
def test_the_end_does_not_wait_for_more(
    shm_client: Client, broker: Broker, apart: Apart, how: str
) -> None:
    forward = Forward()
    supplier = Supplier(broker.backend, {".*": Batch(forward, 16, wait_s=LONG_S)})
    stop_event = threading.Event()
    running = apart(supplier.run, stop_event)
    orders = shm_client.orders(["a", "b"])
    until_waiting(supplier, 2)
    if how == "stop":
        supplier.stop()
    elif how == "stop_event":
        stop_event.set()
    else:
        shm_client.drain()
    running.result(LIMIT_S)
    with Supplier(broker.backend, {".*": str.encode}).start():  # for those that were given back
        assert taken(orders) == [b"a", b"b"]


def test_a_batch_that_has_begun_is_finished_before_the_end(
    shm_client: Client, broker: Broker, apart: Apart
) -> None:
    forward = Forward(held=True)
    supplier = Supplier(broker.backend, {".*": Batch(forward, 4, wait_s=LONG_S)}, credit=7)
    running = apart(supplier.run)
    orders = shm_client.orders([f"p{number}" for number in range(8)])
    assert forward.called.wait(LIMIT_S)
    until_waiting(supplier, 3)
    supplier.stop()
    forward.go_on.set()
    running.result(LIMIT_S)
    with Supplier(broker.backend, {".*": str.encode}).start():
        assert taken(orders) == [b"p%d" % number for number in range(8)]
    assert forward.calls[0] == ["p0", "p1", "p2", "p3"]
    assert shm_client.figures()["retired"] == 0


# --- what a function answers ------------------------------------------------------------


def all_at_once(client: Client, supplier: Supplier, names: list[str]) -> list[Order]:
    """Ordered in one message, so that one call gets them all."""
    supplier.wait_registered(LIMIT_S)
    return client.orders(names)


CONTRACT = Contract([{"name": "x", "shape": [2], "dtype": "int16"}])


def test_a_result_is_whatever_a_plain_function_returns(client: Client, broker: Broker) -> None:
    def forward(works: list[Work]) -> list[Any]:
        made = {
            "bytes": b"abcd",
            "view": memoryview(b"abcd"),
            "array": np.frombuffer(b"abcd", np.uint16),
            "nothing": b"",
            "tensors": {"x": np.array([1, 2], np.int16)},
        }
        return [made[work.product_id] for work in works]

    batch = Batch(forward)
    products = {"bytes|view|array|nothing": batch, "tensors": batch}
    with Supplier(broker.backend, products, contracts={"tensors": CONTRACT}).start() as supplier:
        orders = all_at_once(client, supplier, ["bytes", "view", "array", "nothing", "tensors"])
        made = taken(orders)
    assert made[:4] == [b"abcd", b"abcd", b"abcd", b""]
    assert CONTRACT.decode(made[4])["x"].tolist() == [1, 2]


def test_the_rows_of_an_array_are_its_results(client: Client, broker: Broker) -> None:
    def forward(works: list[Work]) -> Any:
        return np.arange(len(works) * 4, dtype=np.uint8).reshape(len(works), 4)

    with Supplier(broker.backend, {".*": forward}, batch=8).start() as supplier:
        orders = all_at_once(client, supplier, ["a", "b"])
        assert taken(orders) == [bytes([0, 1, 2, 3]), bytes([4, 5, 6, 7])]


def test_a_function_of_two_fills_all_slots_in_place(client: Client, broker: Broker) -> None:
    seen = []

    def fill(works: list[Work], outs: list[memoryview]) -> list[int]:
        seen.append([(work.nbytes, len(out)) for work, out in zip(works, outs, strict=True)])
        for work, out in zip(works, outs, strict=True):
            out[:] = work.product_id.encode() * SLOT
        return [number + 1 for number in range(len(works))]

    with Supplier(broker.backend, {"[abc]": fill}, batch=8).start() as supplier:
        orders = all_at_once(client, supplier, ["a", "b", "c"])
        assert taken(orders) == [b"a", b"bb", b"ccc"]
    assert seen == [[(SLOT, SLOT)] * 3]


def test_windows_that_are_kept_cannot_be_written_later(client: Client, broker: Broker) -> None:
    kept: list[Any] = []

    def fill(works: list[Work], outs: list[memoryview]) -> list[int]:
        kept.extend(outs)
        kept.extend(work.input for work in works)
        return [0] * len(works)

    with Supplier(broker.backend, {".*": fill}, batch=8).start() as supplier:
        supplier.wait_registered(LIMIT_S)
        taken(client.orders(["a", "b"], inputs=[b"x", b"y"]))
    assert len(kept) == 4
    for view in kept:
        with pytest.raises(ValueError, match="released"):
            view[0]


def test_each_order_has_its_input(client: Client, broker: Broker) -> None:
    def double(works: list[Work]) -> list[bytes]:
        return [bytes(work.input or b"") * 2 for work in works]

    with Supplier(broker.backend, {".*": double}, batch=8).start() as supplier:
        supplier.wait_registered(LIMIT_S)
        orders = client.orders(["a", "b", "c"], inputs=[b"1", b"2", b"3"])
        assert taken(orders) == [b"11", b"22", b"33"]


def test_a_result_may_be_the_input_itself(client: Client, broker: Broker) -> None:
    with Supplier(broker.backend, {".*": lambda works: [w.input for w in works]}, batch=8).start():
        assert taken(client.orders(["a", "b"], inputs=[b"1", b"2"])) == [b"1", b"2"]


def test_clients_share_a_call_however_few_mediums_are_kept(broker: Broker) -> None:
    def fill(works: list[Work], outs: list[memoryview]) -> list[int]:
        for work, out in zip(works, outs, strict=True):
            out[:1] = work.product_id.encode()
        return [1] * len(works)

    forward = Forward(held=True)
    settings = SupplierSettings(max_attachments=1)
    products = {"first": Batch(forward, 16), ".": Batch(fill, 16)}
    with (
        make_client(broker, "shm") as one,
        make_client(broker, "shm") as two,
        make_client(broker, "tcp") as three,
        Supplier(broker.backend, products, settings=settings).start() as supplier,
    ):
        first = one.order("first")
        assert forward.called.wait(LIMIT_S)
        orders = [client.order(name) for name in "abc" for client in (one, two, three)]
        until_waiting(supplier, 9)
        forward.go_on.set()
        assert taken([first, *orders]) == [b"first", *(name.encode() for name in "aaabbbccc")]


@pytest.mark.parametrize("wait_s", [0.0, 0.05])
def test_a_client_that_cannot_be_reached_holds_up_no_batch_for_another(
    broker: Broker, shm_client: Client, wait_s: float
) -> None:
    """What was written to it is under way for a long time; nobody waits for that to be over."""
    settings = SupplierSettings(tcp_timeout_s=10 * LIMIT_S)
    forward = Forward()
    with Loopback("for this test") as line:
        away = Client(broker.frontend, line.medium(SLOT, 4), timeout_s=LIMIT_S)
        products = {".*": Batch(forward, 8, wait_s)}
        with away, Supplier(broker.backend, products, settings=settings).start() as supplier:
            supplier.wait_registered(LIMIT_S)
            assert taken([away.order("before")]) == [b"before"]
            line.cut()
            cut_off = away.order("cut off")
            until(lambda: supplier._maker.under_way)
            assert taken(shm_client.orders(["a", "b"])) == [b"a", b"b"]
            assert taken(shm_client.orders(["c", "d"])) == [b"c", b"d"]
            assert not cut_off.done
            line.mend()
            assert taken([cut_off]) == [b"cut off"]


# --- what a function may do wrong -------------------------------------------------------


def test_an_exception_that_is_returned_fails_its_order_alone(
    client: Client, broker: Broker
) -> None:
    def forward(works: list[Work]) -> list[Any]:
        return [KeyError("x") if work.product_id == "bad" else b"good" for work in works]

    with Supplier(broker.backend, {".*": forward}, batch=8).start() as supplier:
        orders = all_at_once(client, supplier, ["a", "bad", "b"])
        assert taken([orders[0], orders[2]]) == [b"good", b"good"]
        assert failures(orders[1:2]) == ["KeyError: 'x'"]
        until(lambda: (supplier.served, supplier.failed), lambda counts: counts == (2, 5))


def wrong(made: Any) -> Callable[[list[Work]], Any]:
    """``made`` for two orders that are called bad, and what is right for any other."""

    def forward(works: list[Work]) -> Any:
        bad = [work for work in works if work.product_id == "bad"]
        return made(works) if bad else [b"good" for _ in works]

    return forward


def raising(error: BaseException) -> Callable[[list[Work]], Any]:
    def forward(works: list[Work]) -> Any:
        raise error

    return forward


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (raising(ValueError("no")), "ValueError: no"),
        (raising(SystemExit(3)), "SystemExit: 3"),
        (lambda works: None, "NotBytes: wrong.<locals>.forward must return a list, .* NoneType"),
        (lambda works: b"ab", "NotBytes: .* returned bytes"),
        (lambda works: "ab", "NotBytes: .* returned str"),
        (lambda works: {0: b"a", 1: b"b"}, "NotBytes: .* returned dict"),
        (lambda works: {b"a", b"b"}, "NotBytes: .* returned set"),
        (lambda works: (b"a" for _ in works), "NotBytes: .* returned generator"),
        (lambda works: [b"a"] * (len(works) - 1), "WrongBatch: .* was given . orders and returned"),
        (lambda works: [b"a"] * (len(works) + 1), "WrongBatch: .* was given . orders and returned"),
        (lambda works: [], "WrongBatch: .* returned 0 results"),
    ],
)
def test_what_is_wrong_with_all_fails_each_with_the_reason(
    shm_client: Client, broker: Broker, made: Any, said: str
) -> None:
    with Supplier(broker.backend, {".*": wrong(made)}, batch=8).start() as supplier:
        orders = all_at_once(shm_client, supplier, ["bad", "bad"])
        for failure in failures(orders):
            assert re.match(said, failure), failure
        assert taken([shm_client.order("good")]) == [b"good"]
        until(lambda: (supplier.served, supplier.failed), lambda counts: counts == (1, 10))


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (None, "NotBytes: wrong.<locals>.forward must return bytes or an array, and returned None"),
        ("text", "NotBytes: .* returned str"),
        ({"x": 1}, "NotBytes: .* no contract says how"),
        (7, "NotBytes"),
        (ValueError, "NotBytes"),
        (bytes(SLOT + 1), "ProductTooLarge: .*65 bytes"),
    ],
)
def test_one_result_that_is_wrong_fails_its_order_alone(
    client: Client, broker: Broker, result: Any, said: str
) -> None:
    def made(works: list[Work]) -> list[Any]:
        return [result if work.product_id == "bad" else b"good" for work in works]

    with Supplier(broker.backend, {".*": wrong(made)}, batch=8).start() as supplier:
        orders = all_at_once(client, supplier, ["a", "bad", "b"])
        assert taken([orders[0], orders[2]]) == [b"good", b"good"]
        (failure,) = failures(orders[1:2])
        assert re.match(said, failure), failure


@pytest.mark.parametrize(
    ("size", "said"),
    [
        (SLOT + 1, "ProductTooLarge: .*says that it filled 65 bytes of a slot of 64"),
        (-1, "ProductTooLarge"),
        (None, "NotBytes: .*must return how many bytes"),
        (True, "NotBytes: .*returned bool"),
        (KeyError("x"), "KeyError: 'x'"),
    ],
)
def test_one_size_that_is_wrong_fails_its_order_alone(
    client: Client, broker: Broker, size: Any, said: str
) -> None:
    def fill(works: list[Work], outs: list[memoryview]) -> list[Any]:
        for out in outs:
            out[:2] = b"ok"
        return [size if work.product_id == "bad" else 2 for work in works]

    with Supplier(broker.backend, {".*": fill}, batch=8).start() as supplier:
        orders = all_at_once(client, supplier, ["a", "bad", "b"])
        assert taken([orders[0], orders[2]]) == [b"ok", b"ok"]
        (failure,) = failures(orders[1:2])
        assert re.match(said, failure), failure


def test_a_function_may_empty_the_list_it_was_given(shm_client: Client, broker: Broker) -> None:
    def forward(works: list[Work]) -> list[bytes]:
        return [works.pop(0).product_id.encode() for _ in range(len(works))]

    with Supplier(broker.backend, {".*": forward}, batch=8).start() as supplier:
        assert taken(all_at_once(shm_client, supplier, ["a", "b"])) == [b"a", b"b"]


def test_an_interrupt_fails_all_that_are_in_hand_and_passes(
    shm_client: Client, broker: Broker, apart: Apart
) -> None:
    supplier = Supplier(broker.backend, {".*": raising(KeyboardInterrupt())}, batch=8)
    running = apart(supplier.run)
    orders = shm_client.orders(["a", "b"])
    with pytest.raises(KeyboardInterrupt):
        running.result(LIMIT_S)
    with Supplier(broker.backend, {".*": str.encode}).start():
        assert taken(orders) == [b"a", b"b"]
    assert shm_client.figures()["retired"] == 0


def test_a_slow_call_does_not_make_its_supplier_suspect() -> None:
    settings = BrokerSettings(beat_s=0.05, suspect_s=0.3, dead_s=0.6)

    def slow(works: list[Work]) -> list[bytes]:
        time.sleep(1.5)
        return [b"slow"] * len(works)

    with (
        Broker(ANY, ANY, settings=settings) as broker,
        make_client(broker, "shm") as client,
        Supplier(broker.backend, {"a": slow}, batch=4).start() as supplier,
    ):
        assert taken(all_at_once(client, supplier, ["a"] * 4)) == [b"slow"] * 4
        assert client.figures()["retired"] == 0


@pytest.mark.parametrize(
    ("made", "error", "said"),
    [
        (7, NotBytes, "f must return a list, with a result for each of 2 orders, and returned int"),
        ([1], WrongBatch, "f was given 2 orders and returned 1 results"),
    ],
)
def test_answers_that_are_none_are_typed(made: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        answers_of("f", made, 2)


# --- settings ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("products", "options"),
    [
        ({"a": len}, {"batch": 0}),
        ({"a": len}, {"batch": 65_537}),
        ({"a": 7}, {"batch": 16}),
        ({"a": lambda: []}, {"batch": 16}),
        ({"a": lambda works, outs, more: []}, {"batch": 16}),
        ({"a": len}, {"batch": 16, "credit": 15}),
        ({"a": Batch(len, 16)}, {"credit": 15}),
    ],
)
def test_what_cannot_be_is_refused_at_once(products: Any, options: Any) -> None:
    with pytest.raises(ConfigurationError):
        Supplier("tcp://127.0.0.1:1", products, **options)


@pytest.mark.parametrize(
    "arguments", [(7,), (len, 0), (len, 65_537), (len, 2, -0.1), (len, 2, float("nan"))]
)
def test_a_batch_that_cannot_be_is_refused_at_once(arguments: Any) -> None:
    with pytest.raises(ConfigurationError):
        Batch(*arguments)


def test_it_is_to_be_had_where_all_else_is() -> None:
    assert entrepot.Batch is Batch


@pytest.mark.parametrize(
    ("products", "options", "credit", "batch"),
    [
        ({"a": len}, {"batch": 16}, 16, 16),
        ({"a": len}, {"batch": 16, "credit": 32}, 32, 16),
        ({"a": len, "b": Batch(len, 20)}, {"batch": 16}, 20, 20),
        ({"a": len, "b": Batch(len, 4)}, {"settings": SupplierSettings(credit=6)}, 6, 4),
        ({"a": len}, {}, 1, 1),
    ],
)
def test_the_broker_is_told_of_the_largest_batch_and_of_credit_for_it(
    products: Any, options: Any, credit: int, batch: int
) -> None:
    with FakeBroker() as broker, Supplier(broker.endpoint, products, **options).start():
        hello = broker.greet()
        assert (hello.get("credit", 1), hello.get("batch", 1)) == (credit, batch)


# --- connections that are lost, with a broker that says what the test wants --------------


class Shop:
    """A supplier of batches that registered with a fake broker."""

    def __init__(self, broker: FakeBroker, apart: Apart, batch: Batch) -> None:
        self.broker = broker
        self.medium = ShmMedium.create(SLOT, 16)
        self.supplier = Supplier(broker.endpoint, {".*": batch}, name="shop", credit=16)
        self.running = apart(self.supplier.run)
        broker.greet(beat_s=0.05)
        assert broker.expect(protocol.READY) == {}
        connection = self.supplier._connection
        # A connection that is given up sooner than this is made anew with a delay.
        until(lambda: connection.clock() - connection._opened_at > connection_module.FIRST_BEAT_S)

    def give(self, *leases: int, nowhere: Sequence[int] = ()) -> None:
        orders = []
        for lease in leases:
            address = "shm:entrepot-" + "0" * 32 if lease in nowhere else self.medium.address
            place = self.medium.offset(lease % 16)
            orders.append(protocol.WorkItem(f"o{lease}", lease, f"p{lease}", address, place, SLOT))
        self.broker.say(protocol.WORK, protocol.Work(orders))

    def until_queued(self, count: int) -> None:
        until_waiting(self.supplier, count)

    def done(self) -> list[tuple[int, bool]]:
        """Lease and success of the next message's results."""
        results = self.broker.expect(protocol.DONE)["results"]
        return [(result["lease"], result.get("success", True)) for result in results]


@pytest.fixture
def shop(apart: Apart) -> Iterator[Callable[[Batch], Shop]]:
    made: list[Shop] = []
    with FakeBroker() as broker:

        def make(batch: Batch) -> Shop:
            made.append(Shop(broker, apart, batch))
            return made[-1]

        yield make
        for each in made:
            each.supplier.stop()
            each.running.result(LIMIT_S)
            each.medium.close()


MakeShop = Callable[[Batch], Shop]


def test_what_is_made_together_goes_out_together(shop: MakeShop) -> None:
    one = shop(Batch(Forward(), 4))
    one.give(*range(1, 9))
    assert one.done() == [(lease, True) for lease in range(1, 5)]
    assert one.done() == [(lease, True) for lease in range(5, 9)]


def test_what_is_made_goes_out_before_others_are_waited_for(apart: Apart) -> None:
    """Not with the next beat, which is far away: who waits for it may be who orders next."""
    with FakeBroker() as broker, ShmMedium.create(SLOT, 2) as medium:
        products: dict[str, Any] = {"plain": str.encode, "slow": Batch(Forward(), 4, LONG_S)}
        supplier = Supplier(broker.endpoint, products, credit=64)
        running = apart(supplier.run)
        broker.greet(beat_s=2 * LIMIT_S)
        assert broker.expect(protocol.READY) == {}
        orders = [
            protocol.WorkItem(name, lease, name, medium.address, medium.offset(lease), SLOT)
            for lease, name in enumerate(("plain", "slow"))
        ]
        broker.say(protocol.WORK, protocol.Work(orders))
        results = broker.expect(protocol.DONE)["results"]
        assert [result["order_id"] for result in results] == ["plain"]
        supplier.stop()
        running.result(LIMIT_S)


def test_an_order_whose_client_has_gone_leaves_the_batch_before_the_call(shop: MakeShop) -> None:
    forward = Forward()
    one = shop(Batch(forward, 4))
    one.give(1, 2, 3, nowhere=[2])
    assert one.done() == [(1, True), (2, False), (3, True)]
    one.give(4, nowhere=[4])
    assert one.done() == [(4, False)]
    assert forward.calls == [["p1", "p3"]]


def test_an_order_that_the_broker_has_no_more_leaves_the_batch_before_the_call(
    shop: MakeShop,
) -> None:
    forward = Forward()
    one = shop(Batch(forward, 4, wait_s=LONG_S))
    one.give(1, 2, 3)
    one.until_queued(3)
    one.broker.refuse("hello_first")
    assert sorted(one.broker.greet(resumed=True, missing=("2",), beat_s=0.05)["holds"]) == [1, 2, 3]
    assert one.broker.expect(protocol.READY) == {}
    one.give(4, 5)
    assert one.done() == [(1, True), (3, True), (4, True), (5, True)]
    assert forward.calls == [["p1", "p3", "p4", "p5"]]


def test_another_broker_has_nothing_of_what_was_gathered(shop: MakeShop) -> None:
    forward = Forward()
    one = shop(Batch(forward, 2, wait_s=LONG_S))
    one.give(1)
    one.until_queued(1)
    one.broker.refuse("hello_first")
    one.broker.instance = b"another!"
    one.broker.greet(beat_s=0.05)
    assert one.broker.expect(protocol.READY) == {}
    one.give(2, 3)
    assert one.done() == [(2, True), (3, True)]
    assert forward.calls == [["p2", "p3"]]


def test_what_is_in_hand_is_named_and_answered_but_for_what_the_broker_has_no_more(
    shop: MakeShop,
) -> None:
    """READY comes when the hand is empty: not before, or there would be more than the credit."""
    forward = Forward(held=True)
    one = shop(Batch(forward, 4))
    one.give(1, 2, 3)
    assert forward.called.wait(LIMIT_S)
    one.broker.refuse("hello_first")
    assert sorted(one.broker.greet(resumed=True, missing=("2",), beat_s=0.05)["holds"]) == [1, 2, 3]
    try:
        heard = one.broker.receive(0.1)
    except TimeoutError:
        pass
    else:  # on a slow machine it may connect once more by itself; it is READY that must not come
        assert heard.command == protocol.HELLO, heard
        one.broker.peer = heard.peer
    one.broker.refuse("hello_first")
    assert sorted(one.broker.greet(resumed=True, beat_s=0.05)["holds"]) == [1, 3]
    forward.go_on.set()
    assert one.done() == [(1, True), (3, True)]
    assert one.broker.expect(protocol.READY) == {}


def test_a_broker_of_version_1_is_said_to_be_one(apart: Apart) -> None:
    """As to a supplier of plain functions: leases are what it lacks, not batches."""
    with FakeBroker() as broker:
        running = apart(Supplier(broker.endpoint, {".*": Batch(len)}).run)
        broker.greet(version=1)
        with pytest.raises(ProtocolError, match="upgrade the broker"):
            running.result(LIMIT_S)
