"""The supplier with a real broker: what functions may do wrong, and how serving ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

from entrepot.contract import Contract
from entrepot.errors import (
    BrokerUnavailable,
    Closed,
    ConfigurationError,
    OrderFailed,
    PatternRefused,
    UsedAfterFork,
)
from entrepot.market import connection as connection_module
from entrepot.market import protocol
from entrepot.market.broker import Broker
from entrepot.market.client import Client
from entrepot.market.connection import GREETING
from entrepot.market.supplier import Supplier, Work
from entrepot.mediums import ShmMedium, attach
from entrepot.settings import BrokerSettings, SupplierSettings
from tests.peer.raw import RawClient
from tests.peer.waiting import until
from tests.unit.market.fake_broker import LIMIT_S, Apart, FakeBroker, fork_under

ANY = "tcp://127.0.0.1:*"
SLOT = 64
CHECKOUT = Path(__file__).parents[3]


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


@pytest.fixture
def client(broker: Broker) -> Iterator[Client]:
    medium = ShmMedium.create(SLOT, 16)
    with Client(broker.frontend, medium, timeout_s=LIMIT_S) as client:
        yield client


def taken(client: Client, product_id: str, **options: Any) -> bytes:
    with client.order(product_id, **options).result(LIMIT_S) as product:
        return product.bytes()


def failure(client: Client, product_id: str) -> str:
    """What the one supplier there is said of the order's first attempt."""
    with pytest.raises(OrderFailed) as failed:
        client.order(product_id).result(LIMIT_S)
    return failed.value.attempts[0].partition(": ")[2]


def registered(client: Client) -> int:
    connected: int = client.stats()["suppliers"]["connected"]
    return connected


# --- functions --------------------------------------------------------------------------


def test_a_function_that_exits_fails_its_order_and_no_other(broker: Broker, client: Client) -> None:
    def make(product_id: str) -> bytes:
        if product_id == "exits":
            sys.exit(3)
        return b"made"

    with Supplier(broker.backend, {".*": make}) as supplier:
        supplier.start()
        assert failure(client, "exits") == "SystemExit: 3"
        assert taken(client, "other") == b"made"


def test_a_child_that_the_function_left_behind_does_not_serve(tmp_path: Path) -> None:
    """It ends with UsedAfterFork, and its parent serves on."""
    script = (
        "import os, sys\n"
        "from entrepot import Broker, Client, ShmMedium, Supplier\n"
        "from entrepot.errors import UsedAfterFork\n"
        "def make(name):\n"
        "    child = os.fork() if name == 'forks' else 1\n"
        "    if child == 0:\n"
        "        return b'child'\n"
        "    if name == 'forks':\n"
        "        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])\n"
        "        return str(code).encode()\n"
        "    return b'parent'\n"
        "import threading\n"
        "with Broker('tcp://127.0.0.1:*', 'tcp://127.0.0.1:*') as broker:\n"
        "    supplier = Supplier(broker.backend, {'.*': make})\n"
        "    def ask():\n"
        "        with Client(broker.frontend, ShmMedium.create(64, 2)) as client:\n"
        "            for name in ('forks', 'other'):\n"
        "                with client.order(name).result(20) as product:\n"
        "                    print(name, product.bytes().decode(), flush=True)\n"
        "        supplier.stop()\n"
        "    asking = threading.Thread(target=ask)\n"
        "    asking.start()\n"
        "    try:\n"
        "        supplier.run()\n"
        "    except UsedAfterFork:\n"
        "        os._exit(7)\n"
        "    asking.join()\n"
    )
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.stdout.splitlines() == ["forks 7", "other parent"], ran.stderr


def test_the_first_pattern_that_matches_all_of_the_id_chooses_the_function(
    client: Client, broker: Broker
) -> None:
    products: dict[str, Callable[[str], bytes]] = {
        r"layer_\d": lambda _: b"one digit",
        r"layer_\d+": lambda _: b"digits",
        r".*": lambda _: b"anything",
    }
    with Supplier(broker.backend, products).start():
        assert taken(client, "layer_7") == b"one digit"
        assert taken(client, "layer_77") == b"digits"
        assert taken(client, "a layer_7") == b"anything"


def test_one_function_may_have_several_patterns(client: Client, broker: Broker) -> None:
    with Supplier(broker.backend, (str.encode, ["a", "b"])).start() as supplier:
        assert taken(client, "a") + taken(client, "b") == b"ab"
        until(lambda: (supplier.served, supplier.failed), lambda counts: counts == (2, 0))


@pytest.mark.parametrize(
    "made",
    [
        b"abcd",
        bytearray(b"abcd"),
        memoryview(b"abcd"),
        np.frombuffer(b"abcd", np.uint16),
        np.frombuffer(b"abcd", np.uint8).reshape(2, 2),
    ],
)
def test_a_function_returns_any_buffer(client: Client, broker: Broker, made: object) -> None:
    with Supplier(broker.backend, {"a": lambda _: made}).start():
        assert taken(client, "a") == b"abcd"


def test_a_mapping_is_laid_out_by_the_contract(client: Client, broker: Broker) -> None:
    contract = Contract([{"name": "x", "shape": [2], "dtype": "int16"}])
    products = {"a": lambda _: {"x": np.array([1, 2], np.int16)}}
    with (
        Supplier(broker.backend, products, contracts={"a": contract}).start(),
        client.order("a").result(LIMIT_S) as product,
    ):
        assert contract.decode(product)["x"].tolist() == [1, 2]


def test_a_function_of_two_fills_the_slot_in_place(client: Client, broker: Broker) -> None:
    seen = []

    def fill(work: Work, out: memoryview) -> int:
        seen.append((work.order_id, work.product_id, work.nbytes, len(out), work.input))
        out[:3] = b"abc"
        return 3

    with Supplier(broker.backend, {"a": fill}).start():
        order = client.order("a")
        with order.result(LIMIT_S) as product:
            assert product.bytes() == b"abc"
    assert seen == [(order.order_id, "a", SLOT, SLOT, None)]


def test_a_function_that_keeps_its_window_cannot_write_later(
    client: Client, broker: Broker
) -> None:
    kept: list[memoryview] = []

    def fill(work: Work, out: memoryview) -> int:
        kept.append(out)
        return 0

    with Supplier(broker.backend, {"a": fill}).start():
        taken(client, "a")
        with pytest.raises(ValueError, match="released"):
            kept[0][0] = 1


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("cannot be said")


def raiser(error: Exception) -> Callable[[str], bytes]:
    def function(product_id: str) -> bytes:
        raise error

    return function


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (raiser(KeyError("x")), "KeyError: 'x'"),
        (raiser(ValueError("v" * 5000)), "ValueError: " + "v" * 1024),
        (raiser(ValueError("\ud800")), "ValueError: ?"),
        (raiser(Unspeakable()), "Unspeakable: .its message could not be read"),
        (lambda _: None, "NotBytes: .* must return bytes or an array, and returned NoneType"),
        (lambda _: "text", "NotBytes: .* returned str"),
        (lambda _: {"x": 1}, "NotBytes: .* no contract says how"),
        (lambda _: 7, "NotBytes"),
        (lambda _: np.zeros((4, 4))[:, 0], "NotBytes: .*C-contiguous"),
        (lambda _: bytes(SLOT + 1), "ProductTooLarge: .*65 bytes"),
        (lambda work, out: SLOT + 1, "ProductTooLarge: .*says that it filled 65"),
        (lambda work, out: -1, "ProductTooLarge"),
        (lambda work, out: None, "NotBytes: .*must return how many bytes"),
        (lambda work, out: True, "NotBytes: .*returned bool"),
    ],
)
def test_what_a_function_does_wrong_is_said_and_is_no_end(
    client: Client, broker: Broker, function: Callable[..., Any], said: str
) -> None:
    with Supplier(broker.backend, {"bad": function, "good": str.encode}).start() as supplier:
        message = failure(client, "bad")
        assert re.match(said, message), message
        assert len(message) < 1100
        assert taken(client, "good") == b"good"
        until(lambda: (supplier.served, supplier.failed), lambda counts: counts == (1, 5))


def test_an_address_that_is_not_there_fails_the_order(broker: Broker) -> None:
    with (
        RawClient(broker.frontend) as raw,
        Supplier(broker.backend, {".*": str.encode}).start() as supplier,
    ):
        raw.hello()
        for number, address in enumerate(
            ("shm:entrepot-" + "0" * 32, "nowhere", "shm:../../etc/passwd")
        ):
            raw.order(str(number), "a", address=address)
            failed = raw.wait_for(b"FAILED")
            assert failed["attempts"][0]["type"] in ("MediumGone", "BadAddress")
        until(lambda: supplier.failed == 15)


@pytest.mark.parametrize(("offset", "nbytes"), [(0, 1 << 40), (SLOT, 1), (1 << 62, 1)])
@pytest.mark.parametrize("in_place", [False, True])
def test_a_place_outside_the_medium_fails_the_order(
    broker: Broker, offset: int, nbytes: int, in_place: bool
) -> None:
    """A stranger chose the numbers."""

    def fill(work: Work, out: memoryview) -> int:
        raise AssertionError("it was called")

    products = {"a": fill if in_place else str.encode}
    with (
        ShmMedium.create(SLOT, 1) as medium,
        RawClient(broker.frontend) as raw,
        Supplier(broker.backend, products).start(),
    ):
        raw.hello()
        raw.order("o", "a", address=medium.address, offset=offset, nbytes=nbytes)
        assert raw.wait_for(b"FAILED")["attempts"][0]["type"] == "SlotOutOfRange"


@pytest.mark.parametrize(
    "products",
    [
        {},
        {"a": 7},
        {"a": lambda: b""},
        {"a": lambda x, y, z: b""},
        (str.encode, "ab"),
        (str.encode, []),
    ],
)
def test_products_that_cannot_be_are_refused_at_once(products: Any) -> None:
    with pytest.raises(ConfigurationError):
        Supplier("tcp://127.0.0.1:1", products)


@pytest.mark.parametrize("options", [{"credit": 0}, {"batch": 0}, {"contracts": {"b": None}}])
def test_options_that_cannot_be_are_refused_at_once(options: Any) -> None:
    with pytest.raises(ConfigurationError):
        Supplier("tcp://127.0.0.1:1", {"a": str.encode}, **options)


# --- credit -----------------------------------------------------------------------------


def test_a_supplier_with_credit_has_its_next_orders_at_hand(client: Client, broker: Broker) -> None:
    go_on = threading.Event()

    def slow(product_id: str) -> bytes:
        go_on.wait(LIMIT_S)
        return b""

    with Supplier(broker.backend, {".*": slow}, credit=4).start():
        orders = client.orders(["a"] * 6)
        until(lambda: client.stats()["orders"]["in_flight"], lambda count: count == 4)
        go_on.set()
        assert [order.result(LIMIT_S).nbytes for order in orders] == [0] * 6


def test_a_result_does_not_wait_for_a_slow_one(client: Client, broker: Broker) -> None:
    go_on = threading.Event()

    def make(product_id: str) -> bytes:
        if product_id == "slow":
            go_on.wait(LIMIT_S)
        elif product_id == "some time":
            time.sleep(0.01)
        return product_id.encode()

    with Supplier(broker.backend, {".*": make}, credit=16).start() as supplier:
        supplier.wait_registered(LIMIT_S)
        first, slow = client.orders(["some time", "slow"])
        assert first.result(LIMIT_S).bytes() == b"some time"
        assert not slow.done
        go_on.set()
        assert slow.result(LIMIT_S).bytes() == b"slow"


# --- slow functions ---------------------------------------------------------------------


def test_a_slow_function_does_not_make_its_supplier_suspect() -> None:
    settings = BrokerSettings(beat_s=0.05, suspect_s=0.3, dead_s=0.6)

    def slow(product_id: str) -> bytes:
        time.sleep(1.5)
        return b"slow"

    with (
        Broker(ANY, ANY, settings=settings) as broker,
        Client(broker.frontend, ShmMedium.create(SLOT, 1), timeout_s=LIMIT_S) as own,
        Supplier(broker.backend, {"a": slow}).start(),
    ):
        assert taken(own, "a") == b"slow"
        assert own.figures()["retired"] == 0


def test_a_function_that_holds_the_interpreter_is_suspect_and_not_lost() -> None:
    """No thread of its process can beat meanwhile; a call into C may take that long."""
    program = (
        "import sys, ctypes; from entrepot import Supplier\n"
        "hold = ctypes.PyDLL(None).read\n"  # unlike one of CDLL it keeps the lock
        "def make(_): hold(0, ctypes.create_string_buffer(1), 1); return b'held'\n"
        "Supplier(sys.argv[1], {'a': make}).run()"
    )
    settings = BrokerSettings(beat_s=0.05, suspect_s=0.2, dead_s=30)
    with (
        Broker(ANY, ANY, settings=settings) as broker,
        Client(broker.frontend, ShmMedium.create(SLOT, 1), timeout_s=LIMIT_S) as client,
    ):
        process = subprocess.Popen(
            [sys.executable, "-c", program, broker.backend], stdin=subprocess.PIPE
        )
        assert process.stdin is not None
        order = client.order("a")
        until(lambda: client.stats()["suppliers"]["suspect"])
        process.stdin.write(b"g")
        process.stdin.flush()
        assert order.result(LIMIT_S).bytes() == b"held"
        assert client.figures()["retired"] == 0
        process.stdin.close()
        assert taken(client, "a") == b"held"  # and it is given work again
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == 0


def test_a_supplier_that_stood_still_too_long_is_replaced_and_does_no_harm(
    tmp_path: Path,
) -> None:
    """Its order moves to another slot; what it writes when it wakes up shows nowhere."""
    flag = tmp_path / "writes"
    program = (
        "import sys, os, signal; from entrepot import Supplier\n"
        "def make(work, out):\n"
        "    out[:] = b'z' * len(out)\n"
        "    os.kill(os.getpid(), signal.SIGSTOP)\n"
        "    out[:] = b'Z' * len(out)\n"
        "    open(sys.argv[2], 'w').close()\n"
        "    return len(out)\n"
        "Supplier(sys.argv[1], {'a': make}, name='zombie').run()"
    )
    settings = BrokerSettings(beat_s=0.05, suspect_s=0.2, dead_s=0.5)
    with (
        Broker(ANY, ANY, settings=settings) as broker,
        Client(broker.frontend, ShmMedium.create(SLOT, 2), timeout_s=LIMIT_S) as client,
    ):
        zombie = subprocess.Popen([sys.executable, "-c", program, broker.backend, str(flag)])
        try:
            order = client.order("a")
            until(lambda: client.figures()["retired"])
            with Supplier(broker.backend, {"a": lambda _: b"right" * 12}).start():
                product = order.result(LIMIT_S)
                zombie.send_signal(signal.SIGCONT)
                until(flag.exists)
                assert product.bytes() == b"right" * 12
                for _ in range(4):
                    assert taken(client, "a") in (b"right" * 12, b"Z" * SLOT)
        finally:
            zombie.kill()
            zombie.wait()


# --- registering ------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", ["(", r"(?=a)b", r"(a)\1", "a{1,2000}"])
def test_a_pattern_that_no_broker_takes_is_refused_at_once(pattern: str) -> None:
    with pytest.raises(PatternRefused):
        Supplier("tcp://127.0.0.1:1", {pattern: str.encode})


def test_a_pattern_that_this_broker_does_not_take_ends_run() -> None:
    settings = BrokerSettings(max_pattern_program=64)
    with Broker(ANY, ANY, settings=settings) as broker:
        supplier = Supplier(broker.backend, {"a{900}": str.encode})
        with pytest.raises(PatternRefused, match="instructions"):
            supplier.run(timeout_s=LIMIT_S)
        apart = Supplier(broker.backend, {"a{900}": str.encode}).start()
        with pytest.raises(PatternRefused, match="instructions"):
            apart.wait_registered(LIMIT_S)
        with pytest.raises(PatternRefused):
            apart.stop()
        apart.close()


def test_a_pattern_that_is_taken_is_waited_for_and_then_refused(
    client: Client, broker: Broker
) -> None:
    first = Supplier(broker.backend, {"a": lambda _: b"first"}, exclusive=True).start()
    first.wait_registered(LIMIT_S)
    settings = SupplierSettings(timeout_s=0.1)
    with pytest.raises(PatternRefused, match="pattern_taken"):
        Supplier(broker.backend, {"a": str.encode}, settings=settings).run(timeout_s=LIMIT_S)
    second = Supplier(broker.backend, {"a": lambda _: b"second"}, exclusive=True).start()
    assert taken(client, "a") == b"first"
    first.stop()
    second.wait_registered(LIMIT_S)
    assert taken(client, "a") == b"second"
    second.stop()


def test_no_broker_is_waited_for_no_longer_than_was_said() -> None:
    with Broker(ANY, ANY) as gone:
        backend = gone.backend
    with pytest.raises(BrokerUnavailable, match=backend):
        Supplier(backend, {"a": str.encode}).run(timeout_s=0.2)
    with (
        Supplier(backend, {"a": str.encode}).start() as supplier,
        pytest.raises(BrokerUnavailable),
    ):
        supplier.wait_registered(0.1)


# --- the end ----------------------------------------------------------------------------


class Slow:
    """A function that says when it is called, and goes on when it is told."""

    def __init__(self) -> None:
        self.called = threading.Event()
        self.go_on = threading.Event()

    def __call__(self, product_id: str) -> bytes:
        self.called.set()
        assert self.go_on.wait(LIMIT_S)
        return product_id.encode()


@pytest.mark.parametrize("how", ["stop", "stop_event", "drain"])
def test_what_has_begun_is_finished_and_the_rest_goes_to_others(
    client: Client, broker: Broker, apart: Apart, how: str
) -> None:
    """At once, while the function is still at work, in the slots that they have."""
    slow = Slow()
    supplier = Supplier(broker.backend, {".*": slow}, credit=3)
    stop_event = threading.Event()
    running = apart(supplier.run, stop_event)
    orders = client.orders(["a", "b", "c", "d"])
    assert slow.called.wait(LIMIT_S)
    until(lambda: client.stats()["orders"]["in_flight"], lambda count: count == 3)
    if how == "stop":
        supplier.stop()
    elif how == "stop_event":
        stop_event.set()
    else:
        client.drain(supplier.name)
    with Supplier(broker.backend, {".*": lambda _: b"other's"}, name="other").start():
        assert [order.result(LIMIT_S).bytes() for order in orders[1:]] == [b"other's"] * 3
        assert not running.done()
        slow.go_on.set()
        running.result(LIMIT_S)
        assert orders[0].result(LIMIT_S).bytes() == b"a"
        stats = until(  # its GOODBYE is on its way
            client.stats,
            lambda stats: [one["name"] for one in stats["suppliers"]["list"]] == ["other"],
        )
        assert (stats["orders"]["failed"], stats["orders"]["fulfilled"]) == (0, 4)
    assert client.figures()["retired"] == 0
    assert supplier.served == 1
    with pytest.raises(Closed):
        supplier.run()


def test_a_close_loses_only_what_is_being_made(
    client: Client, broker: Broker, apart: Apart
) -> None:
    """Its slot may be written to for a while yet; those of the others are as they were."""
    slow = Slow()
    supplier = Supplier(broker.backend, {".*": slow}, credit=3)
    running = apart(supplier.run)
    orders = client.orders(["a", "b", "c"])
    assert slow.called.wait(LIMIT_S)
    until(lambda: client.stats()["orders"]["in_flight"], lambda count: count == 3)
    supplier.close()
    with Supplier(broker.backend, {".*": lambda _: b"other's"}).start():
        assert [order.result(LIMIT_S).bytes() for order in orders] == [b"other's"] * 3
    assert client.figures()["retired"] == 1
    slow.go_on.set()
    running.result(LIMIT_S)


def test_stop_says_when_a_function_does_not_come_back(client: Client, broker: Broker) -> None:
    slow = Slow()
    supplier = Supplier(broker.backend, {"a": slow}).start()
    order = client.order("a")
    assert slow.called.wait(LIMIT_S)
    with pytest.raises(TimeoutError, match="still making a product"):
        supplier.stop(0.05)
    slow.go_on.set()
    supplier.stop()
    assert order.result(LIMIT_S).bytes() == b"a"


def test_stop_from_within_a_function_ends_after_it(client: Client, broker: Broker) -> None:
    def last(product_id: str) -> bytes:
        supplier.stop()
        return b"last"

    supplier = Supplier(broker.backend, {"a": last}).start()
    assert taken(client, "a") == b"last"
    until(lambda: registered(client), lambda count: count == 0)
    supplier.stop()


def test_an_interrupt_in_a_function_fails_the_order_and_passes(
    client: Client, broker: Broker, apart: Apart
) -> None:
    def interrupted(product_id: str) -> bytes:
        raise KeyboardInterrupt

    running = apart(Supplier(broker.backend, {"a": interrupted}).run)
    order = client.order("a")
    with pytest.raises(KeyboardInterrupt):
        running.result(LIMIT_S)
    until(lambda: registered(client) == 0)
    with Supplier(broker.backend, {"a": str.encode}).start():
        assert order.result(LIMIT_S).bytes() == b"a"


PROGRAM = """
import sys, time; from entrepot import Supplier
def make(product_id):
    print("making", flush=True)
    time.sleep(float(product_id))
    return product_id.encode()
Supplier(sys.argv[1], {".*": make}).run()
print("drained", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains(client: Client, broker: Broker, number: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, broker.backend], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    order = client.order("0.5")
    assert process.stdout.readline() == "making\n"
    process.send_signal(number)
    assert order.result(LIMIT_S).bytes() == b"0.5"
    assert process.communicate(timeout=LIMIT_S)[0] == "drained\n"
    assert process.returncode == 0
    until(lambda: registered(client) == 0)


def test_a_second_signal_does_not_wait(client: Client, broker: Broker) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, broker.backend],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    order = client.order("100")
    assert process.stdout.readline() == "making\n"
    process.send_signal(signal.SIGINT)
    # Two signals at once would be one.
    until(lambda: client.stats()["suppliers"]["draining"], lambda count: count == 1)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=LIMIT_S)
    assert "KeyboardInterrupt" in said
    assert not order.done


def test_the_handlers_are_those_from_before(broker: Broker) -> None:
    def own(_number: int, _frame: object) -> None:
        raise AssertionError

    before = signal.signal(signal.SIGTERM, own)
    try:
        stop = threading.Event()
        stop.set()
        Supplier(broker.backend, {"a": str.encode}).run(stop)
        assert signal.getsignal(signal.SIGTERM) is own
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_forked_child_is_told_and_does_no_harm(client: Client, broker: Broker) -> None:
    with Supplier(broker.backend, {"a": str.encode}).start() as supplier:
        assert taken(client, "a") == b"a"
        child = fork_under(supplier._connection.lock)
        if child == 0:
            told = 0
            for use in (supplier.run, supplier.start, supplier.wait_registered):
                try:
                    use()
                except UsedAfterFork:
                    told += 1
            supplier.stop()
            supplier.close()
            os._exit(told)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
        assert taken(client, "a") == b"a"


def test_mediums_of_owners_that_left_are_let_go(broker: Broker) -> None:
    with Supplier(broker.backend, {"a": str.encode}).start() as supplier:
        for _ in range(3):
            medium = ShmMedium.create(SLOT, 1)
            with Client(broker.frontend, medium, timeout_s=LIMIT_S) as client:
                assert taken(client, "a") == b"a"
        until(lambda: len(supplier._attachments), lambda count: count == 0)


# --- connections that are lost, with a broker that says what the test wants --------------


class Shop:
    """A supplier that registered with a fake broker, and works on what the test gives it."""

    def __init__(
        self, broker: FakeBroker, apart: Apart, *, credit: int = 1, beat_s: float = 0.05
    ) -> None:
        self.broker = broker
        self.slow = Slow()
        self.medium = ShmMedium.create(SLOT, 8)
        self.supplier = Supplier(broker.endpoint, {".*": self.slow}, credit=credit, name="shop")
        self.running: Future[None] = apart(self.supplier.run)
        self.hello = broker.greet(beat_s=beat_s)
        assert broker.expect(protocol.READY) == {}
        connection = self.supplier._connection
        # A connection that is given up sooner than this is made anew with a delay.
        until(lambda: connection.clock() - connection._opened_at > connection_module.FIRST_BEAT_S)

    def give(self, *leases: int) -> None:
        self.broker.say(
            protocol.WORK,
            protocol.Work(
                [
                    protocol.WorkItem(f"o{lease}", lease, f"p{lease}", self.medium.address, 0, SLOT)
                    for lease in leases
                ]
            ),
        )

    def close(self) -> None:
        self.slow.go_on.set()
        self.supplier.stop()
        self.running.result(LIMIT_S)
        self.medium.close()


@pytest.fixture
def shop(apart: Apart) -> Iterator[Callable[..., Shop]]:
    made: list[Shop] = []
    with FakeBroker() as broker:

        def make(**options: Any) -> Shop:
            made.append(Shop(broker, apart, **options))
            return made[-1]

        yield make
        for each in made:
            each.close()


MakeShop = Callable[..., Shop]


def test_a_result_says_what_was_written(shop: MakeShop) -> None:
    one = shop()
    one.slow.go_on.set()
    one.give(5)
    assert one.broker.expect(protocol.DONE)["results"] == [
        {
            "order_id": "o5",
            "lease": 5,
            "nbytes": 2,
            "checksum": xxhash.xxh3_64_intdigest(b"p5"),
        }
    ]
    with attach(one.medium.address) as medium:
        assert medium.read(0, 2) == b"p5"


def test_results_go_out_together_and_ready_is_said_once(shop: MakeShop) -> None:
    one = shop(credit=16)
    one.slow.go_on.set()
    one.give(*range(1, 17))
    sizes: list[int] = []
    while sum(sizes) < 16:
        sizes.append(len(one.broker.expect(protocol.DONE)["results"]))
    assert len(sizes) < 16


def test_what_is_in_hand_is_named_and_answered_over_a_resume(shop: MakeShop) -> None:
    one = shop(credit=2)
    one.give(5, 6)
    assert one.slow.called.wait(LIMIT_S)
    until(lambda: len(one.supplier._worklist.queue), lambda count: count == 1)
    one.broker.refuse("hello_first")
    hello = one.broker.greet(resumed=True)
    assert hello["session"] == one.hello["session"]
    assert sorted(hello["holds"]) == [5, 6]
    assert one.broker.expect(protocol.READY) == {}
    one.slow.go_on.set()
    leases: list[int] = []
    while len(leases) < 2:
        leases += [r["lease"] for r in one.broker.expect(protocol.DONE)["results"]]
    assert leases == [5, 6]


def test_a_result_that_may_have_been_lost_is_sent_again(shop: MakeShop) -> None:
    one = shop()
    one.slow.go_on.set()
    one.give(5)
    first = one.broker.expect(protocol.DONE)
    one.broker.refuse("hello_first")
    assert one.broker.greet(resumed=True)["holds"] == [5]
    assert one.broker.expect(protocol.DONE) == first
    assert one.broker.expect(protocol.READY) == {}


def test_a_result_that_the_broker_has_is_not_sent_again(shop: MakeShop) -> None:
    one = shop()
    one.slow.go_on.set()
    one.give(5)
    one.broker.expect(protocol.DONE)
    one.broker.refuse("hello_first")
    one.broker.greet(resumed=True, missing=("5",))
    assert one.broker.expect(protocol.READY) == {}


def test_another_broker_gets_ready_when_the_hand_is_empty(shop: MakeShop) -> None:
    """And no result of what the one before had ordered."""
    one = shop(credit=2)
    one.give(5, 6)
    assert one.slow.called.wait(LIMIT_S)
    until(lambda: len(one.supplier._worklist.queue), lambda count: count == 1)
    one.broker.refuse("hello_first")
    one.broker.instance = os.urandom(8)
    one.broker.greet()
    with pytest.raises(TimeoutError):
        one.broker.receive(0.1)
    one.slow.go_on.set()
    assert one.broker.expect(protocol.READY) == {}
    one.give(7)
    assert [r["lease"] for r in one.broker.expect(protocol.DONE)["results"]] == [7]


def test_a_dropped_session_is_followed_by_another(shop: MakeShop) -> None:
    one = shop()
    one.broker.refuse("session_dropped")
    assert one.broker.greet()["session"] != one.hello["session"]
    assert one.broker.expect(protocol.READY) == {}


@pytest.mark.parametrize("fields", [b"\xc1", 7, {"orders": [{}]}, {"orders": 3}])
def test_malformed_work_is_no_end(shop: MakeShop, fields: object) -> None:
    one = shop()
    one.slow.go_on.set()
    if isinstance(fields, bytes):
        one.broker.frames(protocol.WORK, fields)
    else:
        one.broker.say(protocol.WORK, fields)
    one.give(5)
    assert [r["lease"] for r in one.broker.expect(protocol.DONE)["results"]] == [5]


def leases_of(done: dict[str, Any]) -> list[int]:
    return [result["lease"] for result in done["results"]]


def test_terminate_drains(shop: MakeShop) -> None:
    one = shop(credit=2)
    one.give(5, 6)
    assert one.slow.called.wait(LIMIT_S)
    one.broker.say(protocol.TERMINATE)
    assert one.broker.expect(protocol.DRAIN) == {"leases": [6]}
    one.slow.go_on.set()
    assert leases_of(one.broker.expect(protocol.DONE)) == [5]
    assert one.broker.expect(protocol.GOODBYE) == {}
    one.running.result(LIMIT_S)


def test_a_stop_is_told_at_once(shop: MakeShop) -> None:
    """While the function is at work, and long before the next beat."""
    one = shop(credit=2, beat_s=60.0)
    one.give(5, 6)
    assert one.slow.called.wait(LIMIT_S)
    one.supplier.stop()
    assert one.broker.expect(protocol.DRAIN) == {"leases": [6]}


def test_work_that_crosses_a_drain_is_given_back(shop: MakeShop) -> None:
    """What was begun is finished; what comes after is neither made nor kept."""
    one = shop(credit=3)
    one.give(5)
    assert one.slow.called.wait(LIMIT_S)
    one.supplier.stop()
    assert one.broker.expect(protocol.DRAIN) == {}
    one.give(6, 7)
    assert one.broker.expect(protocol.DRAIN) == {"leases": [6, 7]}
    one.slow.go_on.set()
    assert leases_of(one.broker.expect(protocol.DONE)) == [5]
    assert one.broker.expect(protocol.GOODBYE) == {}


def test_draining_goes_on_over_a_resume(shop: MakeShop) -> None:
    """It is said again in place of READY, also to a broker that knows nothing of it."""
    one = shop(credit=2)
    one.give(5, 6)
    assert one.slow.called.wait(LIMIT_S)
    one.supplier.stop()
    assert one.broker.expect(protocol.DRAIN) == {"leases": [6]}
    one.broker.refuse("hello_first")
    assert one.broker.greet(resumed=True)["holds"] == [5]
    assert one.broker.expect(protocol.DRAIN) == {}
    one.slow.go_on.set()
    assert leases_of(one.broker.expect(protocol.DONE)) == [5]
    assert one.broker.expect(protocol.GOODBYE) == {}


def test_draining_that_begins_without_a_connection(shop: MakeShop) -> None:
    """HELLO, on its way, names what is held; it is given back when the answer comes."""
    one = shop(credit=2)
    one.give(5, 6)
    assert one.slow.called.wait(LIMIT_S)
    until(lambda: len(one.supplier._worklist.queue), lambda count: count == 1)
    one.broker.refuse("hello_first")
    until(lambda: one.supplier._connection.state, lambda state: state == GREETING)
    one.supplier.stop()
    until(lambda: one.supplier._worklist.draining)
    assert sorted(one.broker.greet(resumed=True)["holds"]) == [5, 6]
    assert one.broker.expect(protocol.DRAIN) == {"leases": [6]}
    one.slow.go_on.set()
    assert leases_of(one.broker.expect(protocol.DONE)) == [5]


def test_a_session_that_another_has_is_given_up(shop: MakeShop) -> None:
    one = shop()
    one.broker.refuse("hello_first")
    heard = one.broker.receive()
    one.broker.peer = heard.peer
    one.broker.refuse("stale_hello", seq=heard.fields["seq"])
    assert heard.fields["session"] == one.hello["session"]
    assert one.broker.greet()["session"] != one.hello["session"]
    assert one.broker.expect(protocol.READY) == {}
