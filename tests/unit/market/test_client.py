"""The client with a real broker: whatever else happens, each order gets its own product, once."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import xxhash

from entrepot.errors import (
    BrokerUnavailable,
    Closed,
    ConfigurationError,
    CorruptProduct,
    MediumError,
    NoFreeSlot,
    OrderCancelled,
    OrderFailed,
    OrderTimeout,
    ProductTooLarge,
    Refused,
    SharedMemoryTooSmall,
    UsedAfterFork,
)
from entrepot.market import connection as connection_module
from entrepot.market import placing
from entrepot.market.broker import Broker
from entrepot.market.client import Client
from entrepot.market.slots import MAX_ARENAS
from entrepot.market.supplier import Supplier, Work
from entrepot.mediums import Medium, ShmMedium, TCPMedium, attach
from entrepot.settings import BrokerSettings, ClientSettings
from tests.peer.raw import RawClient, RawSupplier
from tests.peer.waiting import until
from tests.ports import Ports
from tests.unit.market.fake_broker import LIMIT_S, Apart, fork_under

ANY = "tcp://127.0.0.1:*"
SLOT = 64


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
    # Quick to beat and to take a supplier for lost; nothing here depends on how quick.
    with Broker(ANY, ANY, settings=BrokerSettings(beat_s=0.1, reconnect_grace_s=0.1)) as broker:
        yield broker


Connect = Callable[..., Client]


@pytest.fixture
def connect(broker: Broker) -> Iterator[Connect]:
    """Clients of the broker that are closed in the end."""
    made: list[Client] = []

    def make(slots: int = 8, *, poison: bool = False, **options: Any) -> Client:
        endpoint = options.pop("endpoint", broker.frontend)
        options.setdefault("timeout_s", LIMIT_S)
        medium = ShmMedium.create(SLOT, slots, poison=poison, token=options.pop("token", Tokens()))
        client = Client(endpoint, medium, **options)
        made.append(client)
        return client

    yield make
    for client in made:
        client.close()


@pytest.fixture
def echo(broker: Broker) -> Iterator[Supplier]:
    """Makes of any id its own bytes."""
    with Supplier(broker.backend, {".*": str.encode}, credit=4) as supplier:
        supplier.start()
        yield supplier


@pytest.fixture
def raw(broker: Broker) -> Iterator[RawSupplier]:
    """Says what the test wants said, right or wrong."""
    with RawSupplier(broker.backend) as supplier:
        yield supplier.ready(".*", credit=16)


def write(work: dict[str, Any], data: bytes) -> None:
    with attach(work["address"]) as medium:
        medium.write(work["offset"], data, work["nbytes"], lease=work["lease"])


def deliver(supplier: RawSupplier, work: dict[str, Any], data: bytes) -> None:
    """What a supplier should do with an order."""
    write(work, data)
    supplier.done(work, nbytes=len(data), checksum=xxhash.xxh3_64_intdigest(data))


def taken(client: Client, product_id: str) -> bytes:
    with client.order(product_id).result(LIMIT_S) as product:
        return product.bytes()


def settled(client: Client, **figures: int) -> None:
    """Wait until the client counts that, which it does when messages come by."""

    def look() -> dict[str, int]:
        client.stats()
        return client.figures()

    until(look, lambda seen: {name: seen[name] for name in figures} == figures)


class Tokens:
    """Names for segments, so that those of one client are told from the machine's others."""

    def __init__(self) -> None:
        self.given: list[str] = []

    def __call__(self) -> str:
        self.given.append(os.urandom(16).hex())
        return self.given[-1]

    @property
    def alive(self) -> list[str]:
        return [token for token in self.given if Path(f"/dev/shm/entrepot-{token}").exists()]


# --- the ordinary course ----------------------------------------------------------------


def test_a_product_is_what_was_ordered(connect: Connect, echo: Supplier) -> None:
    client = connect()
    with client.order("layer_3").result(LIMIT_S) as product:
        assert bytes(product.data) == product.bytes() == b"layer_3"
        assert product.nbytes == len(product) == 7
        assert product.product_id == "layer_3"
        assert product.data.readonly
        assert client.figures()["lent"] == 1
    settled(client, free=8, lent=0)


def test_an_empty_product_is_a_product(connect: Connect, echo: Supplier) -> None:
    assert taken(connect(), "") == b""


def test_a_product_as_large_as_the_slot_fits(connect: Connect, echo: Supplier) -> None:
    client = connect()
    assert taken(client, "x" * SLOT) == b"x" * SLOT
    with pytest.raises(OrderFailed, match="ProductTooLarge"):
        client.order("x" * (SLOT + 1)).result(LIMIT_S)


def test_the_product_of_one_order_is_never_given_to_another(
    connect: Connect, raw: RawSupplier
) -> None:
    """Whatever the order in which they arrive, and are asked for."""
    client = connect()
    first, second = client.order("a"), client.order("b")
    works = {work["product_id"]: work for work in (raw.work(), raw.work())}
    deliver(raw, works["b"], b"data of b")
    with second.result(LIMIT_S) as product:
        assert product.bytes() == b"data of b"
    assert not first.done
    deliver(raw, works["a"], b"data of a")
    with first.result(LIMIT_S) as product:
        assert product.bytes() == b"data of a"


def test_many_orders_are_all_or_none(connect: Connect, echo: Supplier) -> None:
    client = connect(slots=4)
    orders = client.orders(f"p{n}" for n in range(4))
    assert [order.result(LIMIT_S).bytes() for order in orders] == [b"p0", b"p1", b"p2", b"p3"]
    settled(client, free=4)
    with pytest.raises(NoFreeSlot, match="5 slots were wanted"):
        client.orders(["p"] * 5)
    assert client.figures()["free"] == 4
    assert client.orders([]) == []


def test_an_input_reaches_the_supplier(connect: Connect, broker: Broker) -> None:
    def double(work: Work, out: memoryview) -> int:
        assert work.input is not None
        assert work.input.readonly
        data = bytes(work.input) * 2
        out[: len(data)] = data
        return len(data)

    client = connect(slots=4)
    with Supplier(broker.backend, {"double": double}).start():
        for text in (b"ab", b"cd", b"ef"):
            with client.order("double", input=text).result(LIMIT_S) as product:
                assert product.bytes() == text * 2
        settled(client, free=4)
        with pytest.raises(ProductTooLarge):
            client.order("double", input=b"x" * (SLOT + 1))
        settled(client, free=4)
        with pytest.raises(ProductTooLarge):
            client.orders(["double"] * 2, inputs=[b"a", b"x" * (SLOT + 1)])
        settled(client, free=4)
        with pytest.raises(NoFreeSlot):
            client.orders(["double"] * 3, inputs=[b""] * 3, timeout_s=0.05)


def test_higher_priority_goes_first(connect: Connect, broker: Broker) -> None:
    client = connect()
    orders = [client.order("a"), client.order("b", priority=1), client.order("c", priority=-1)]
    assert client.stats()["orders"]["queued"] == 3  # it is asked after them
    with RawSupplier(broker.backend) as supplier:
        supplier.ready(".*", credit=3)
        assert [supplier.work()["product_id"] for _ in range(3)] == ["b", "a", "c"]
    assert not any(order.done for order in orders)


def test_a_deadline_ends_an_order_that_nobody_makes(connect: Connect) -> None:
    with pytest.raises(OrderFailed) as failed:
        connect().order("a", deadline_s=0.05).result(LIMIT_S)
    assert failed.value.reason == "deadline"


def test_a_failed_order_says_who_tried_and_what_happened(connect: Connect, broker: Broker) -> None:
    def broken(product_id: str) -> bytes:
        raise RuntimeError(f"no {product_id} today")

    client = connect(slots=1)
    with Supplier(broker.backend, {"a": broken}, name="teacher").start():
        with pytest.raises(OrderFailed) as failed:
            client.order("a").result(LIMIT_S)
        assert failed.value.reason == "attempts"
        assert failed.value.attempts == ("teacher: RuntimeError: no a today",) * 5
        settled(client, free=1)


def test_statistics_are_the_brokers(connect: Connect, echo: Supplier) -> None:
    client = connect(name="student")
    taken(client, "a")
    stats = client.stats()
    assert stats["orders"]["fulfilled"] == 1
    assert [each["name"] for each in stats["clients"]["list"]] == ["student"]


def test_drain_ends_the_suppliers_of_a_name(connect: Connect, broker: Broker) -> None:
    client = connect()
    suppliers = [Supplier(broker.backend, {"a": str.encode}, name=name) for name in "xxy"]
    with suppliers[0].start(), suppliers[1].start(), suppliers[2].start():
        for supplier in suppliers:
            supplier.wait_registered(LIMIT_S)
        assert client.drain("x") == 2
        until(lambda: client.stats()["suppliers"]["connected"], lambda count: count == 1)
        assert taken(client, "a") == b"a"


@pytest.mark.parametrize(
    "wrong",
    [
        lambda client: client.order(7),
        lambda client: client.order("x" * 5000),
        lambda client: client.order("\ud800"),
        lambda client: client.order("a", priority=2**31),
        lambda client: client.order("a", deadline_s=0),
        lambda client: client.orders("abc"),
        lambda client: client.orders(["a", "b"], inputs=[b""]),
        lambda client: client.stream("a", prefetch=0),
        lambda client: client.stream("a", count=-1),
        lambda client: Client("tcp://x:1", attach(client.medium.address)),
        lambda client: Client("tcp://x:1", client.medium, session=b"short"),
        lambda client: Client("tcp://x:1", client.medium, timeout_s=0),
        lambda client: Client("tcp://x:1", client.medium, name="x" * 257),
        lambda client: Client("tcp://x:1", client.medium, name="\ud800"),
    ],
)
def test_what_cannot_work_is_refused_before_it_is_sent(
    connect: Connect, wrong: Callable[[Client], object]
) -> None:
    client = connect(timeout_s=0.2, endpoint="tcp://127.0.0.1:1")
    with pytest.raises(ConfigurationError):
        wrong(client)
    assert client.figures()["free"] == 8


# --- slots ------------------------------------------------------------------------------


def test_no_free_slot_is_said_in_time_and_is_no_end(connect: Connect, echo: Supplier) -> None:
    client = connect(slots=2)
    held = [client.order("a").result(LIMIT_S) for _ in range(2)]
    with pytest.raises(NoFreeSlot, match="2 not released"):
        client.order("b", timeout_s=0.05)
    held[0].release()
    held[0].release()
    assert taken(client, "b") == b"b"


def test_who_waits_for_a_slot_gets_the_one_that_is_released(
    connect: Connect, echo: Supplier, apart: Apart
) -> None:
    client = connect(slots=1)
    product = client.order("a").result(LIMIT_S)
    waiting = apart(taken, client, "b")
    until(lambda: client._book.slot_waiters)
    product.release()
    assert waiting.result(LIMIT_S) == b"b"


def test_a_product_that_is_dropped_is_released(connect: Connect, echo: Supplier) -> None:
    client = connect(slots=1)
    for n in range(5):
        assert client.order(f"p{n}").result(LIMIT_S).bytes() == f"p{n}".encode()


def test_an_order_that_is_dropped_is_cancelled(connect: Connect, raw: RawSupplier) -> None:
    client = connect(slots=2)
    raw.settled()  # it is ready: what nobody has is cancelled at once
    client.order("arrives")
    deliver(raw, raw.work(), b"never looked at")
    order = client.order("never made")
    work = raw.work()
    del order
    gc.collect()
    settled(client, free=1, quarantined=1)
    deliver(raw, work, b"too late")
    settled(client, free=2)


def test_released_data_cannot_be_read_by_mistake(connect: Connect, echo: Supplier) -> None:
    product = connect().order("a").result(LIMIT_S)
    view = product.data
    product.release()
    with pytest.raises(ValueError, match="released"):
        bytes(view)
    with pytest.raises(Closed, match="copy"):
        product.bytes()


def test_poison_shows_late_readers_nonsense(connect: Connect, echo: Supplier) -> None:
    numpy = pytest.importorskip("numpy")
    with connect(poison=True).order("abc").result(LIMIT_S) as product:
        kept = numpy.frombuffer(product.data, numpy.uint8)
        assert kept.tobytes() == b"abc"
    assert kept.tobytes() == b"\xdb" * 3


def test_the_last_product_stays_good_after_close(connect: Connect, echo: Supplier) -> None:
    client = connect()
    product = client.order("abc").result(LIMIT_S)
    view = product.data
    client.close()
    assert bytes(view) == b"abc"
    product.release()


# --- waiting ----------------------------------------------------------------------------


def test_an_order_that_is_late_stays_open(connect: Connect, raw: RawSupplier) -> None:
    order = connect().order("a")
    with pytest.raises(OrderTimeout, match="stays open"):
        order.result(0.05)
    deliver(raw, raw.work(), b"at last")
    assert order.result(LIMIT_S).bytes() == b"at last"


def test_a_product_is_taken_once(connect: Connect, echo: Supplier) -> None:
    order = connect().order("a")
    order.result(LIMIT_S).release()
    with pytest.raises(Closed, match="taken before"):
        order.result(LIMIT_S)
    assert order.done


def test_eight_threads_share_a_client(connect: Connect, echo: Supplier, apart: Apart) -> None:
    client = connect(slots=4)

    def use(thread: int) -> int:
        wrong = 0
        for n in range(60):
            name = f"{thread}/{n}"
            wrong += taken(client, name) != name.encode()
        return wrong

    assert sum(each.result(60) for each in [apart(use, n) for n in range(8)]) == 0
    settled(client, free=4)


def test_close_ends_who_waits(connect: Connect, apart: Apart) -> None:
    client = connect()
    order = client.order("nobody makes it")
    waiting = apart(order.result)
    until(lambda: client._book.connection._turns.led)
    client.close()
    with pytest.raises(Closed):
        waiting.result(LIMIT_S)
    with pytest.raises(Closed):
        client.order("a")
    client.close()


def test_a_forked_child_is_told_and_does_no_harm(connect: Connect, echo: Supplier) -> None:
    client = connect(poison=True)
    held = client.order("held").result(LIMIT_S)
    stream = client.stream("a")
    next(stream)
    child = fork_under(client._book.lock)
    if child == 0:
        told = 0
        for use in (
            lambda: client.order("a"),
            lambda: client.stream("a"),
            lambda: next(stream),
            client.stats,
            client.discard,
            client.figures,
        ):
            try:
                use()
            except UsedAfterFork:
                told += 1
        client.close()
        held.release()
        os._exit(told)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 6
    assert held.bytes() == b"held"
    assert taken(client, "b") == b"b"


def test_a_forked_child_may_end_like_any_process(broker: Broker, echo: Supplier) -> None:
    """Its interpreter tidies up what it has of the client, which is the parent's."""
    program = (
        "import os, sys\n"
        "from entrepot import Client, ShmMedium\n"
        "from entrepot.mediums import attach\n"
        "client = Client(sys.argv[1], ShmMedium.create(64, 2, poison=True))\n"
        "held = client.order('held').result(20)\n"
        "if os.fork() == 0:\n"
        "    sys.exit(0)\n"
        "assert os.waitstatus_to_exitcode(os.wait()[1]) == 0\n"
        "assert held.bytes() == b'held'\n"
        "assert client.order('b').result(20).bytes() == b'b'\n"
        "attach(client.medium.address).close()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, broker.frontend], timeout=60, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


# --- cancelling and discarding ----------------------------------------------------------


def test_an_order_that_nobody_has_is_cancelled_at_once(connect: Connect) -> None:
    client = connect(slots=1)
    order = client.order("a")
    assert client.cancel(order)
    assert not client.cancel(order)
    with pytest.raises(OrderCancelled):
        order.result(LIMIT_S)
    settled(client, free=1)


def test_a_cancelled_order_keeps_its_slot_while_a_supplier_has_it(
    connect: Connect, raw: RawSupplier
) -> None:
    client = connect(slots=1)
    order = client.order("a")
    work = raw.work()
    assert order.cancel()
    settled(client, quarantined=1)
    with pytest.raises(NoFreeSlot, match="1 cancelled but still with a supplier"):
        client.order("b", timeout_s=0.05)
    deliver(raw, work, b"of a")
    fresh = client.order("b")
    deliver(raw, raw.work(), b"of b")
    assert fresh.result(LIMIT_S).bytes() == b"of b"


def test_a_product_that_arrived_can_still_be_cancelled(connect: Connect, echo: Supplier) -> None:
    client = connect(slots=1)
    order = client.order("a")
    until(lambda: order.done)
    assert order.cancel()
    with pytest.raises(OrderCancelled):
        order.result(LIMIT_S)
    assert taken(client, "b") == b"b"


def test_nothing_that_was_ordered_before_a_discard_is_served(
    connect: Connect, raw: RawSupplier
) -> None:
    client = connect(slots=4)
    lent, full, dispatched = (client.order(name) for name in ("lent", "full", "dispatched"))
    works = [raw.work() for _ in range(3)]
    for work in works[:2]:
        deliver(raw, work, b"old " + work["product_id"].encode())
    product = lent.result(LIMIT_S)
    until(lambda: full.done)
    assert client.discard() == 2
    for order in (full, dispatched):
        with pytest.raises(OrderCancelled, match="discarded"):
            order.result(LIMIT_S)
    fresh = client.order("dispatched")
    deliver(raw, works[2], b"old model")
    deliver(raw, raw.work(), b"new model")
    assert fresh.result(LIMIT_S).bytes() == b"new model"
    assert product.bytes() == b"old lent"
    product.release()
    settled(client, free=4)


def test_a_discard_ends_who_waits(connect: Connect, apart: Apart) -> None:
    client = connect()
    waiting = apart(client.order("a").result)
    until(lambda: client._book.connection._turns.led)
    assert client.discard() == 1
    with pytest.raises(OrderCancelled):
        waiting.result(LIMIT_S)


def test_a_discard_needs_no_broker(apart: Apart) -> None:
    with Broker(ANY, ANY) as broker:
        client = Client(broker.frontend, ShmMedium.create(SLOT, 2), timeout_s=LIMIT_S)
        order = client.order("a")
    with client:
        assert client.discard() == 1
        with pytest.raises(OrderCancelled):
            order.result(LIMIT_S)


# --- streams ----------------------------------------------------------------------------


def test_a_stream_yields_so_many_and_releases_each(connect: Connect, echo: Supplier) -> None:
    client = connect(slots=4)
    products = []
    for product in client.stream("a", prefetch=4, count=50, timeout_s=LIMIT_S):
        assert product.bytes() == b"a"
        products.append(product)
    assert len(products) == 50
    settled(client, free=4)


def test_several_ids_come_in_their_order(connect: Connect, raw: RawSupplier) -> None:
    client = connect(slots=4)
    stream = client.stream((f"p{n}" for n in range(3)), prefetch=3, timeout_s=LIMIT_S)
    apart = threading.Thread(target=lambda: results.extend(p.bytes() for p in stream))
    results: list[bytes] = []
    apart.start()
    works = [raw.work() for _ in range(3)]
    for work in reversed(works):
        deliver(raw, work, work["product_id"].encode())
    apart.join(LIMIT_S)
    assert results == [b"p0", b"p1", b"p2"]


def test_of_one_id_the_first_to_arrive_is_next(
    connect: Connect, raw: RawSupplier, apart: Apart
) -> None:
    client = connect(slots=4)
    stream = client.stream("a", prefetch=3, count=3, timeout_s=LIMIT_S)
    first = apart(lambda: next(stream).bytes())
    works = [raw.work() for _ in range(3)]
    deliver(raw, works[2], b"quick")
    assert first.result(LIMIT_S) == b"quick"
    deliver(raw, works[1], b"slow")
    assert next(stream).bytes() == b"slow"
    stream.close()  # type: ignore[attr-defined]


def test_products_are_made_while_one_is_looked_at(
    connect: Connect, raw: RawSupplier, apart: Apart
) -> None:
    """By what is open, not by the clock: while the user has one, the supplier has the next."""
    client = connect(slots=8)
    stream = client.stream("a", prefetch=4, timeout_s=LIMIT_S)
    product = apart(next, stream)
    for step in range(10):
        work = raw.work()
        deliver(raw, work, b"%d" % step)
        assert product.result(LIMIT_S).bytes() == b"%d" % step
        assert client.stats()["orders"]["open"] == 3
        product = apart(next, stream)
    deliver(raw, raw.work(), b"last")
    product.result(LIMIT_S)
    del stream, product


def test_a_stream_that_is_left_cancels_what_is_open(
    connect: Connect, raw: RawSupplier, apart: Apart
) -> None:
    client = connect(slots=8)
    stream = client.stream("a", prefetch=4, timeout_s=LIMIT_S)
    first = apart(next, stream)
    deliver(raw, raw.work(), b"a")
    first.result(LIMIT_S)
    stream.close()  # type: ignore[attr-defined]
    until(lambda: client.stats()["orders"]["open"], lambda count: count == 3)
    for _ in range(3):
        deliver(raw, raw.work(), b"too late")
    settled(client, free=8)
    assert client.stats()["orders"]["open"] == 0


def test_a_stream_ends_with_the_error_of_an_order(connect: Connect, broker: Broker) -> None:
    def third_fails(product_id: str) -> bytes:
        if product_id == "p2":
            raise KeyError("gone")
        return product_id.encode()

    client = connect()
    seen: list[bytes] = []
    with Supplier(broker.backend, {"p.*": third_fails}).start():
        products = client.stream(f"p{n}" for n in range(5))
        with pytest.raises(OrderFailed, match="KeyError"):
            seen.extend(product.bytes() for product in products)
        assert seen == [b"p0", b"p1"]
        settled(client, free=8)


def test_a_stream_that_waits_too_long_says_so(connect: Connect) -> None:
    client = connect()
    with pytest.raises(OrderTimeout, match="has a product"):
        next(client.stream("a", timeout_s=0.05))
    settled(client, free=8)


def test_a_discard_ends_a_stream(connect: Connect, raw: RawSupplier) -> None:
    client = connect(slots=4)
    stream = client.stream("a", prefetch=2, timeout_s=LIMIT_S)
    feeder = threading.Thread(target=lambda: deliver(raw, raw.work(), b"old"))
    feeder.start()
    product = next(stream)
    feeder.join(LIMIT_S)
    client.discard()
    assert product.bytes() == b"old"
    with pytest.raises(OrderCancelled):
        next(stream)


# --- suppliers that are lost, and what they may still write -----------------------------


def test_an_order_whose_supplier_is_lost_moves_to_another_slot(
    connect: Connect, broker: Broker
) -> None:
    """And what the lost one writes late shows nowhere."""
    client = connect(slots=2)
    order = client.order("a")
    with RawSupplier(broker.backend) as lost:
        lost_work = lost.ready("a").work()
    with RawSupplier(broker.backend) as second:
        second.ready("a")
        work = second.work()
        assert work["order_id"] == lost_work["order_id"]
        assert work["offset"] != lost_work["offset"]
        deliver(second, work, b"right")
        product = order.result(LIMIT_S)
        write(lost_work, b"wrong, and late")
        assert product.bytes() == b"right"
        assert client.figures()["retired"] == 1


def test_an_order_moves_while_nobody_waits_for_it(connect: Connect, broker: Broker) -> None:
    client = connect(slots=2)
    order = client.order("a")
    with RawSupplier(broker.backend) as lost:
        lost.ready("a").work()
    with Supplier(broker.backend, {"a": str.encode}).start() as supplier:
        until(lambda: supplier.served)
    until(lambda: order.done)  # what it has sent is on its way


def test_new_memory_replaces_what_lost_suppliers_may_write(
    connect: Connect, broker: Broker
) -> None:
    """Again and again, with no more segments than arenas, and none that nobody looks at."""
    tokens = Tokens()
    client = connect(slots=2, token=tokens)
    for round_ in range(2 * MAX_ARENAS):
        order = client.order(f"p{round_}")
        with RawSupplier(broker.backend) as lost:
            lost.ready(".*").work()
        with RawSupplier(broker.backend) as second:
            second.ready(".*")
            deliver(second, second.work(), b"%d" % round_)
            with order.result(LIMIT_S) as product:
                assert product.bytes() == b"%d" % round_
        settled(client, lent=0)
        assert len(tokens.alive) <= 2
    assert client.figures()["arenas"] == len(tokens.given) > 2
    client.close()
    assert tokens.alive == []


def test_an_old_arena_lives_as_long_as_its_product(connect: Connect, broker: Broker) -> None:
    client = connect(slots=2)
    first = client.order("first")
    with RawSupplier(broker.backend) as supplier:
        supplier.ready(".*")
        deliver(supplier, supplier.work(), b"first")
        kept = first.result(LIMIT_S)
    old = client.medium
    order = client.order("second")
    with RawSupplier(broker.backend) as lost:
        lost.ready(".*").work()
    with Supplier(broker.backend, {".*": str.encode}).start():
        with order.result(LIMIT_S) as product:
            assert product.bytes() == b"second"
        assert client.medium is not old
        assert not old.closed
        assert kept.bytes() == b"first"
        kept.release()
        client.discard()
        until(lambda: old.closed)
        assert old.gone()


def test_no_memory_for_another_arena_is_no_crash(
    connect: Connect, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order waits until there is room."""
    monkeypatch.setattr(placing, "RENEW_AGAIN_S", 0.05)
    client = connect(slots=1)
    refusals = []

    def full(medium: Medium) -> Medium:
        refusals.append(medium)
        raise SharedMemoryTooSmall("no room")

    with monkeypatch.context() as patch:
        patch.setattr(ShmMedium, "renew", full)
        order = client.order("a")
        with RawSupplier(broker.backend) as lost:
            lost.ready("a").work()
        until(lambda: len(refusals) > 1)
    with Supplier(broker.backend, {"a": str.encode}).start():
        assert order.result(LIMIT_S).bytes() == b"a"


def test_an_order_that_loses_every_supplier_fails_and_its_slots_are_not_used(
    connect: Connect, broker: Broker
) -> None:
    client = connect(slots=8)
    order = client.order("a")
    offsets = set()
    for _ in range(3):
        with RawSupplier(broker.backend) as lost:
            offsets.add(lost.ready("a").work()["offset"])
    with pytest.raises(OrderFailed) as failed:
        order.result(LIMIT_S)
    assert failed.value.reason == "lost"
    assert len(offsets) == 3
    assert client.figures()["retired"] == 3


# --- mediums that can refuse a supplier --------------------------------------------------


@pytest.fixture
def fenced(broker: Broker) -> Iterator[Client]:
    with Client(broker.frontend, TCPMedium.create(SLOT, 2), timeout_s=LIMIT_S) as client:
        yield client


def test_products_and_inputs_go_over_tcp(fenced: Client, broker: Broker) -> None:
    def double(work: Work, out: memoryview) -> int:
        data = bytes(work.input or b"") * 2
        out[: len(data)] = data
        return len(data)

    with Supplier(broker.backend, {"double": double, ".*": str.encode}).start() as supplier:
        for n in range(20):
            assert taken(fenced, f"p{n}") == f"p{n}".encode()
            with fenced.order("double", input=b"%d" % n).result(LIMIT_S) as product:
                assert product.bytes() == b"%d" % n * 2
        with pytest.raises(OrderFailed, match="ProductTooLarge"):
            fenced.order("x" * (SLOT + 1)).result(LIMIT_S)
        assert len(supplier._attachments) == 1


def test_a_fenced_slot_is_free_as_soon_as_its_order_is_not_wanted(
    fenced: Client, raw: RawSupplier
) -> None:
    """And what was under way to it is refused."""
    orders = fenced.orders(["a", "b"])
    works = [raw.work(), raw.work()]
    assert fenced.discard() == 2
    assert fenced.figures()["free"] == 2
    fresh = fenced.order("c")
    for work in works:
        with pytest.raises(MediumError):
            write(work, b"of the old model")
        raw.done(work, nbytes=5, checksum=1)
    deliver(raw, raw.work(), b"of c")
    assert fresh.result(LIMIT_S).bytes() == b"of c"
    assert not any(order.cancel() for order in orders)


def test_a_lost_supplier_is_refused_and_its_slot_used_again(fenced: Client, broker: Broker) -> None:
    order = fenced.order("a")
    with RawSupplier(broker.backend) as lost:
        lost_work = lost.ready("a").work()
    with RawSupplier(broker.backend) as second:
        work = second.ready("a").work()
        assert work["address"] != lost_work["address"]
        deliver(second, work, b"right")
        product = order.result(LIMIT_S)
        for told in (lost_work, work):
            with pytest.raises(MediumError):
                write(told, b"wrong")
        assert product.bytes() == b"right"
        figures = fenced.figures()
        assert (figures["retired"], figures["arenas"]) == (0, 1)


def test_what_another_lease_wrote_is_not_served(
    fenced: Client, raw: RawSupplier, apart: Apart
) -> None:
    order = fenced.order("a")
    waiting = apart(order.result)
    work = raw.work()
    write(work | {"lease": work["lease"] ^ 1}, b"whose?")
    raw.done(work, nbytes=6, checksum=xxhash.xxh3_64_intdigest(b"whose?"))
    deliver(raw, raw.work(), b"right")
    assert waiting.result(LIMIT_S).bytes() == b"right"
    assert fenced.figures()["corrupt"] == 1


# --- what is not what was sent ----------------------------------------------------------


def test_a_product_that_does_not_match_its_checksum_is_ordered_anew(
    connect: Connect, raw: RawSupplier, apart: Apart
) -> None:
    client = connect(slots=4)
    order = client.order("a")
    waiting = apart(order.result)
    first = raw.work()
    write(first, b"spoilt")
    raw.done(first, nbytes=6, checksum=xxhash.xxh3_64_intdigest(b"intact"))
    second = raw.work()
    assert second["offset"] != first["offset"]
    deliver(raw, second, b"intact")
    assert waiting.result(LIMIT_S).bytes() == b"intact"
    assert client.figures()["corrupt"] == 1


@pytest.mark.parametrize("nbytes", [4, SLOT])
def test_the_third_corrupt_product_in_a_row_is_an_error(
    connect: Connect, raw: RawSupplier, apart: Apart, nbytes: int
) -> None:
    order = connect(slots=8).order("a")
    waiting = apart(order.result)
    for _ in range(3):
        raw.done(raw.work(), nbytes=nbytes, checksum=1)
    with pytest.raises(CorruptProduct, match="3 times in a row"):
        waiting.result(LIMIT_S)
    with pytest.raises(CorruptProduct):
        order.result(LIMIT_S)


def test_corruption_is_met_also_when_no_slot_is_left(
    connect: Connect, raw: RawSupplier, apart: Apart
) -> None:
    client = connect(slots=1)
    waiting = apart(client.order("a").result)
    raw.done(raw.work(), nbytes=1, checksum=1)
    deliver(raw, raw.work(), b"intact")
    assert waiting.result(LIMIT_S).bytes() == b"intact"
    assert client.figures()["arenas"] == 2


# --- refusals ---------------------------------------------------------------------------


def test_an_order_that_the_broker_does_not_take_says_why(apart: Apart) -> None:
    settings = BrokerSettings(max_open_orders=2)
    with (
        Broker(ANY, ANY, settings=settings) as broker,
        Client(broker.frontend, ShmMedium.create(SLOT, 8), timeout_s=LIMIT_S) as client,
    ):
        orders = client.orders(["a"] * 3)
        with pytest.raises(Refused, match="too_many_orders") as refused:
            orders[2].result(LIMIT_S)
        assert refused.value.code == "too_many_orders"
        settled(client, waiting=2, free=6)


def test_suppliers_under_another_contract_do_not_get_the_order(broker: Broker) -> None:
    contract = pytest.importorskip("entrepot.contract").Contract
    ours = contract([{"name": "x", "shape": [2], "dtype": "float32"}])
    theirs = contract([{"name": "x", "shape": [3], "dtype": "float32"}])
    with (
        Client(
            broker.frontend, ShmMedium.create(SLOT, 2), contract=ours, timeout_s=LIMIT_S
        ) as client,
        Supplier(broker.backend, {"a": str.encode}, contracts={"a": theirs}).start() as supplier,
    ):
        supplier.wait_registered(LIMIT_S)
        with pytest.raises(Refused) as refused:
            client.order("a").result(LIMIT_S)
    assert refused.value.code == "contract_mismatch"
    for said in (repr(ours.digest), repr(theirs.digest), "x: shape [2] here, [3] there"):
        assert said in str(refused.value)


def test_draining_may_be_forbidden() -> None:
    settings = BrokerSettings(allow_drain=False)
    with (
        Broker(ANY, ANY, settings=settings) as broker,
        Client(broker.frontend, ShmMedium.create(SLOT, 1), timeout_s=LIMIT_S) as client,
        pytest.raises(Refused, match="forbidden"),
    ):
        client.drain()


def test_a_session_has_one_contract(broker: Broker, connect: Connect) -> None:
    session = os.urandom(16)
    connect(session=session, contract="x").order("a")
    with pytest.raises(Refused, match="'x' and cannot go on under 'y'") as refused:
        connect(session=session, contract="y").order("a")
    assert refused.value.code == "contract_mismatch"


def test_two_clients_of_one_session_are_both_served(connect: Connect, echo: Supplier) -> None:
    """They take it from each other until one of them has had enough, and takes another."""
    session = os.urandom(16)
    clients = [connect(session=session) for _ in range(2)]
    for number in range(3):
        for client in clients:
            assert taken(client, f"p{number}") == b"p%d" % number


# --- readers that are slow, or only fast ------------------------------------------------


def test_a_client_that_is_only_fast_is_not_dropped() -> None:
    """With the smallest outbox that there is, and as much under way to it as there can be.

    It has read as many messages as it may without saying so, and then as many come at once as it
    may have orders open.
    """
    settings = BrokerSettings(
        max_outbox=2048, max_open_orders=1024, beat_s=60, suspect_s=3600, dead_s=3600
    )
    empty = xxhash.xxh3_64_intdigest(b"")
    with (
        Broker(ANY, ANY, settings=settings) as broker,
        Client(broker.frontend, ShmMedium.create(SLOT, 1024), timeout_s=LIMIT_S) as client,
        RawClient(broker.frontend) as watcher,
        RawSupplier(broker.backend) as supplier,
    ):
        watcher.hello()
        supplier.ready(".*")
        served = 0
        most = 0
        for count in (1023, 1024, 1024, 1024):
            orders = client.orders(["p"] * count)
            for _ in orders:
                supplier.done(supplier.work(), checksum=empty)
                supplier.settled()  # a message each: of those that it reads at once it makes one
            served += count
            stats = until(
                lambda: watcher.ask(b"STATS")["stats"],
                lambda stats: stats["orders"]["fulfilled"] == served,  # noqa: B023
            )
            most = max(most, stats["unacknowledged"])
            for order in orders:
                order.result(LIMIT_S).release()
        assert 2000 < most < 2048
        assert stats["dropped"] == {}
        figures = client.figures()
        assert (figures["reconnects"], figures["restarted"]) == (0, 0)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"max_outbox": 2047}, "2048"),
        ({"max_outbox": 66_559}, "max_outbox at least that, or max_open_orders at most 65,535"),
        ({"max_open_orders": 130_049}, "owed 131,073 messages, and 131,072 are kept"),
        ({"max_outbox_nbytes": 1 << 20}, "16777216"),
    ],
)
def test_an_outbox_in_which_a_fast_client_has_no_room_is_refused(
    settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        BrokerSettings(**settings)


# --- in whatever order they start, and start again --------------------------------------


@pytest.fixture
def ends() -> Iterator[list[str]]:
    """Where a broker comes back to."""
    with closing(Ports(2)) as ports:
        yield ports.endpoints


def test_a_broker_that_is_not_there_is_named_in_time(connect: Connect, ends: list[str]) -> None:
    frontend, _ = ends
    client = connect(endpoint=frontend, timeout_s=0.2)
    for use in (lambda: client.order("a"), client.stats, lambda: next(client.stream("a"))):
        with pytest.raises(BrokerUnavailable, match=frontend):
            use()
    assert client.figures()["free"] == 8


@pytest.mark.parametrize(
    "order_of_start", ["client supplier broker", "supplier client broker", "client broker supplier"]
)
def test_nothing_needs_an_order_of_start(
    connect: Connect, apart: Apart, order_of_start: str, ends: list[str]
) -> None:
    frontend, backend = ends
    broker = Broker(frontend, backend)
    supplier = Supplier(backend, {".*": str.encode})
    client = connect(endpoint=frontend)
    waiting = []
    start = {
        "client": lambda: waiting.append(apart(taken, client, "a")),
        "supplier": supplier.start,
        "broker": broker.start,
    }
    try:
        for party in order_of_start.split():
            start[party]()
        assert waiting[0].result(LIMIT_S) == b"a"
    finally:
        supplier.stop()
        broker.stop()


def test_who_waits_is_told_when_the_broker_goes_and_the_order_survives(
    connect: Connect, apart: Apart, ends: list[str]
) -> None:
    frontend, backend = ends
    client = connect(endpoint=frontend, timeout_s=0.5)
    with Broker(frontend, backend):
        order = client.order("a", timeout_s=LIMIT_S)
    with pytest.raises(BrokerUnavailable, match="connecting again"):
        order.result()
    with Broker(frontend, backend), Supplier(backend, {".*": str.encode}).start():
        assert until(lambda: order.done)
        assert order.result(LIMIT_S).bytes() == b"a"


def test_a_broker_that_restarts_under_load_loses_and_doubles_nothing(
    connect: Connect, apart: Apart, ends: list[str]
) -> None:
    """Orders in progress may be made twice; each is served once, and as what it is."""
    frontend, backend = ends
    made: Counter[str] = Counter()

    def make(product_id: str) -> bytes:
        made[product_id] += 1
        time.sleep(0.002)
        return product_id.encode()

    tokens = Tokens()
    client = connect(slots=8, endpoint=frontend, token=tokens)
    served: Counter[str] = Counter()
    stop = threading.Event()

    def use(thread: int) -> None:
        number = 0
        while not stop.is_set() or number < 20:
            name = f"{thread}/{number}"
            number += 1
            assert taken(client, name) == name.encode()
            served[name] += 1

    with Supplier(backend, {".*": make}, credit=2).start():
        broker = Broker(frontend, backend)
        broker.start()
        users = [apart(use, n) for n in range(4)]
        for _ in range(3):
            count = sum(served.values())
            until(lambda count=count: sum(served.values()) > count + 10)  # type: ignore[misc]
            broker.stop()
            broker = Broker(frontend, backend)
            broker.start()
        stop.set()
        for user in users:
            user.result(60)
        broker.stop()
    assert set(served.values()) == {1}
    assert set(served) <= set(made)
    figures = client.figures()
    assert figures["reconnects"] >= 3
    assert figures["corrupt"] == 0
    assert len(tokens.alive) <= MAX_ARENAS


def test_orders_open_at_a_restart_are_placed_in_slots_that_nobody_was_told_of(
    connect: Connect,
    ends: list[str],
) -> None:
    frontend, backend = ends
    client = connect(slots=4, endpoint=frontend)
    with Broker(frontend, backend), RawSupplier(backend) as old:
        old.ready(".*", credit=4)
        orders = client.orders(["a", "b", "c"])
        told = {(work["address"], work["offset"]) for work in (old.work(), old.work(), old.work())}
    with Broker(frontend, backend), RawSupplier(backend) as new:
        new.ready(".*", credit=4)
        for _ in orders:
            work = new.work()
            assert (work["address"], work["offset"]) not in told
            deliver(new, work, work["product_id"].encode())
        assert [order.result(LIMIT_S).bytes() for order in orders] == [b"a", b"b", b"c"]


def test_a_client_that_is_killed_leaves_no_orders(broker: Broker, connect: Connect) -> None:
    settings = ClientSettings(timeout_s=LIMIT_S)
    client = Client(broker.frontend, ShmMedium.create(SLOT, 2), settings=settings)
    other = connect()
    order = client.order("a")
    until(lambda: other.stats()["orders"]["open"], lambda count: count == 1)
    client.close()
    until(lambda: other.stats()["orders"]["open"], lambda count: count == 0)
    assert order.order_id
