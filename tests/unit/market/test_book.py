"""The client with a broker that misbehaves: numbered pushes, lost messages, resumed sessions."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import xxhash

from entrepot.errors import CorruptProduct, OrderCancelled, OrderFailed, Refused
from entrepot.market import book as book_module
from entrepot.market import connection as connection_module
from entrepot.market import protocol
from entrepot.market.client import Client
from entrepot.market.connection import OPEN
from entrepot.market.order import Order
from entrepot.mediums import ShmMedium
from entrepot.settings import UNACKNOWLEDGED, ClientSettings
from tests.peer.waiting import until
from tests.unit.market.fake_broker import LIMIT_S, Apart, FakeBroker

SLOT = 64
QUESTION = 1 << 40
EMPTY = xxhash.xxh3_64_intdigest(b"")


@pytest.fixture(autouse=True)
def _no_safety_net(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sleepers look at the clock once a second, which would hide that nobody woke them."""
    monkeypatch.setattr(connection_module, "MAX_SLEEP_S", 60.0)


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as broker:
        yield broker


@pytest.fixture
def apart() -> Iterator[Apart]:
    apart = Apart()
    yield apart
    apart.close()


class Pair:
    """A client that said HELLO to a fake broker, and both of them."""

    def __init__(self, broker: FakeBroker, apart: Apart, slots: int) -> None:
        self.broker = broker
        self.apart = apart
        medium = ShmMedium.create(SLOT, slots)
        # Nothing is to happen because of the silence of a broker that never beats.
        settings = ClientSettings(silence_s=600.0)
        self.client = Client(broker.endpoint, medium, settings=settings, timeout_s=LIMIT_S)
        first = apart(self.client.order, "first")
        self.session = broker.greet()["session"]
        self.first: Order = first.result(LIMIT_S)
        self.placed = broker.expect(protocol.ORDERS)["orders"]
        # A connection that is given up sooner than this is made anew with a delay.
        until(self.is_old_enough)

    def is_old_enough(self) -> bool:
        connection = self.client._book.connection
        return connection.clock() - connection._opened_at > connection_module.FIRST_BEAT_S

    def order(self, product_id: str) -> tuple[Order, dict[str, Any]]:
        order = self.client.order(product_id)
        (placed,) = self.broker.expect(protocol.ORDERS)["orders"]
        return order, placed

    def fulfil(self, order: Order, **fields: Any) -> None:
        self.broker.fulfil(order.order_id, **({"checksum": EMPTY} | fields))

    def reconnect(self) -> dict[str, Any]:
        """Have the client connect again, and return its HELLO, which is not answered yet."""
        before = self.client.figures()["reconnects"]
        self.broker.refuse("hello_first")
        until(lambda: self.look()["reconnects"] > before)
        heard = self.broker.receive()
        assert heard.command == protocol.HELLO, heard
        self.hello = heard
        return heard.fields

    def answer(self, *, resumed: bool, missing: tuple[str, ...] = ()) -> None:
        """Answer the HELLO of :meth:`reconnect`, and see to it that the client reads that."""
        broker = self.broker
        broker.peer = self.hello.peer
        hello = protocol.HelloReply(
            protocol=2,
            instance=broker.instance,
            resumed=resumed,
            missing=list(missing),
            beat_s=30.0,
            suspect_s=5.0,
            dead_s=30.0,
            limits=protocol.Limits(4 << 20, 4096, 256, 65_536, 1024),
        )
        if not resumed:
            broker.push = 0
        reply = protocol.Reply(seq=self.hello.fields["seq"], hello=hello)
        broker.say(protocol.REPLY, reply)
        self.until_read()

    def look(self) -> dict[str, int]:
        """Let the client read what has come."""
        book = self.client._book
        with book.lock:
            if book.connection.drain():
                book.connection.changed()
        return self.client.figures()

    def until_read(self) -> None:
        """Let the client read all that was said to it: up to an answer to a made-up question."""
        answers = self.client._book._answers
        answers[QUESTION] = None
        self.broker.say(protocol.REPLY, protocol.Reply(seq=QUESTION))
        until(lambda: self.look() and answers[QUESTION])
        del answers[QUESTION]

    def figures(self) -> dict[str, int]:
        self.until_read()
        return self.client.figures()


@pytest.fixture
def pair(broker: FakeBroker, apart: Apart) -> Iterator[Callable[..., Pair]]:
    made: list[Pair] = []

    def make(slots: int = 4) -> Pair:
        made.append(Pair(broker, apart, slots))
        return made[-1]

    yield make
    for each in made:
        each.client.close()


MakePair = Callable[..., Pair]


# --- orders -----------------------------------------------------------------------------


def test_an_order_names_its_place(pair: MakePair) -> None:
    both = pair()
    client = both.client
    (order,) = both.placed
    assert order == {
        "order_id": both.first.order_id,
        "product_id": "first",
        "address": client.medium.address,
        "offset": 0,
        "nbytes": SLOT,
    }
    client.order("x", priority=3, deadline_s=9.5, input=b"abc")
    (order,) = both.broker.expect(protocol.ORDERS)["orders"]
    assert order["priority"] == 3
    assert 9 < order["deadline_s"] <= 9.5
    assert order["input"] == {"address": client.medium.address, "offset": 64, "nbytes": 3}
    assert order["offset"] == 128


def test_many_orders_go_out_in_one_message(pair: MakePair) -> None:
    both = pair(slots=64)
    orders = both.client.orders(f"p{n}" for n in range(63))
    placed = both.broker.expect(protocol.ORDERS)["orders"]
    assert [each["order_id"] for each in placed] == [each.order_id for each in orders]


def test_orders_too_large_for_a_message_go_out_in_several(
    pair: MakePair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(book_module, "ORDERS_NBYTES", 1000)
    both = pair(slots=16)
    both.client.orders(["x" * 100] * 10)
    sizes: list[int] = []
    while sum(sizes) < 10:
        sizes.append(len(both.broker.expect(protocol.ORDERS)["orders"]))
    assert sizes == [2, 2, 2, 2, 2]


def test_a_stream_refills_in_few_messages(pair: MakePair, apart: Apart) -> None:
    both = pair(slots=33)
    stream = both.client.stream("a", prefetch=32, count=64)
    step = apart(next, stream)
    messages: list[int] = []
    while sum(messages) < 64:
        placed = both.broker.expect(protocol.ORDERS)["orders"]
        messages.append(len(placed))
        for order in placed:
            both.broker.fulfil(order["order_id"], checksum=EMPTY)
            step.result(LIMIT_S)
            step = apart(next, stream, None)
    assert messages[0] == 32
    assert len(messages) <= 7
    assert step.result(LIMIT_S) is None


# --- pushes -----------------------------------------------------------------------------


def test_a_push_that_comes_twice_counts_once(pair: MakePair) -> None:
    both = pair(slots=2)
    second, _ = both.order("second")
    both.fulfil(both.first, push=1, lease=7)
    both.fulfil(both.first, push=1, lease=7)
    both.broker.push = 1
    assert both.figures()["unexpected"] == 1
    with both.first.result(LIMIT_S) as product:
        both.fulfil(both.first, push=1, lease=7)
        both.fulfil(both.first, push=2, lease=8)  # another number, and an order that is over
        assert both.figures()["lent"] == 1
        assert product.lease == 7
    assert not second.done


def test_what_was_never_ordered_changes_nothing(pair: MakePair) -> None:
    both = pair()
    broker = both.broker
    broker.fulfil("never", checksum=EMPTY)
    broker.say(protocol.FAILED, protocol.Failed(broker.next_push(), "never", "lost", lease=4))
    broker.say(protocol.LOST, protocol.Lost(broker.next_push(), "never", 4))
    broker.say(protocol.REPLY, protocol.Reply(untouched=["never", both.first.order_id]))
    figures = both.figures()
    assert (figures["waiting"], figures["free"], figures["retired"]) == (1, 3, 0)
    assert not both.first.done


def test_a_missing_push_is_asked_for_again(pair: MakePair) -> None:
    both = pair()
    second, _ = both.order("second")
    both.fulfil(second, push=3)
    both.look()
    until(lambda: both.look()["reconnects"])
    hello = both.broker.greet(resumed=True)
    assert hello["session"] == both.session
    assert hello.get("last_push", 0) == 0
    assert set(hello["open_orders"]) == {both.first.order_id, second.order_id}
    both.fulfil(both.first, push=1)
    both.fulfil(second, push=2)
    both.until_read()
    assert both.first.done
    assert second.done


def test_a_heartbeat_tells_of_a_missing_push(pair: MakePair) -> None:
    both = pair()
    both.broker.say(protocol.HEARTBEAT, {"push": 1})
    until(lambda: both.look()["reconnects"])
    both.broker.greet(resumed=True)
    both.fulfil(both.first, push=1)
    both.until_read()
    assert both.first.done


def test_a_push_that_stays_missing_ends_the_session_not_the_orders(pair: MakePair) -> None:
    both = pair()
    for _ in range(2):
        both.fulfil(both.first, push=3)
        until(lambda: both.look()["reconnects"] and both.client._book.connection.state != OPEN)
        hello = both.broker.greet(resumed=True)
        both.until_read()
    assert hello["session"] != both.session


def test_pushes_are_acknowledged_long_before_a_beat_when_there_are_many(
    pair: MakePair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(book_module, "ACKNOWLEDGE_AFTER", 8)
    both = pair()
    for _ in range(8):
        both.broker.fulfil("anything")
    both.until_read()
    assert both.broker.receive(beats=True).fields == {"last_push": 8}


def test_pushes_are_acknowledged_long_before_a_beat_when_they_are_long(
    pair: MakePair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Failures of which each supplier had much to say, for one."""
    monkeypatch.setattr(book_module, "ACKNOWLEDGE_NBYTES", 10_000)
    both = pair()
    said = protocol.Attempt("supplier", "ValueError", "v" * 1000)
    for _ in range(6):
        failed = protocol.Failed(both.broker.next_push(), "anything", "attempts", [said] * 3)
        both.broker.say(protocol.FAILED, failed)
    both.until_read()
    assert both.broker.receive(beats=True).fields == {"last_push": 4}
    with pytest.raises(TimeoutError):
        both.broker.receive(0.1, beats=True)


def test_a_broker_keeps_what_a_client_may_have_read_without_saying_so() -> None:
    assert book_module.ACKNOWLEDGE_AFTER <= UNACKNOWLEDGED


# --- what wakes whom: this broker says nothing by itself ---------------------------------


def test_a_released_slot_wakes_who_waits_for_one(pair: MakePair, apart: Apart) -> None:
    both = pair(slots=1)
    both.fulfil(both.first)
    product = both.first.result(LIMIT_S)
    waiting = apart(both.client.order, "second")
    until(lambda: both.client._book.connection._turns.led)
    product.release()
    assert waiting.result(LIMIT_S).product_id == "second"


@pytest.mark.parametrize("how", ["cancel", "discard"])
def test_who_waits_for_an_order_is_told_of_its_end(pair: MakePair, apart: Apart, how: str) -> None:
    both = pair()
    waiting = apart(both.first.result)
    until(lambda: both.client._book.connection._turns.led)
    follower = apart(both.first.result)
    until(lambda: both.client._book.connection._turns._followers)
    if how == "cancel":
        both.first.cancel()
    else:
        both.client.discard()
    for each in (waiting, follower):
        with pytest.raises(OrderCancelled):
            each.result(LIMIT_S)


def test_a_discard_is_told_and_frees_what_the_broker_names(pair: MakePair) -> None:
    both = pair(slots=4)
    others = both.client.orders(["b", "c"])
    both.broker.expect(protocol.ORDERS)
    assert both.client.discard() == 3
    seq = both.broker.expect(protocol.DISCARD)["seq"]
    assert both.figures()["quarantined"] == 3
    both.broker.say(
        protocol.REPLY,
        protocol.Reply(
            seq=seq,
            untouched=[both.first.order_id],
            touched=[others[0].order_id],
            held=[others[1].order_id],
        ),
    )
    figures = both.figures()
    assert (figures["free"], figures["quarantined"]) == (3, 1)


def test_a_product_that_is_discarded_while_it_is_verified_is_not_served(
    pair: MakePair, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = pair()
    both.fulfil(both.first)
    verify = ShmMedium.checksum

    def slowly(medium: ShmMedium, offset: int, nbytes: int) -> int:
        both.client.discard()
        return verify(medium, offset, nbytes)

    monkeypatch.setattr(ShmMedium, "checksum", slowly)
    with pytest.raises(OrderCancelled):
        both.first.result(LIMIT_S)
    assert both.client.figures()["free"] == 4


# --- lost and moved ---------------------------------------------------------------------


def test_a_parked_order_is_moved_to_a_slot_that_was_not_told_of(pair: MakePair) -> None:
    both = pair(slots=2)
    broker = both.broker
    broker.say(protocol.LOST, protocol.Lost(broker.next_push(), both.first.order_id, 5))
    both.until_read()
    move = broker.expect(protocol.MOVE)
    assert move["order_id"] == both.first.order_id
    assert (move["address"], move["offset"]) == (both.client.medium.address, 64)
    both.fulfil(both.first, lease=5)  # the lease that was given up cannot fulfil it
    assert both.figures()["waiting"] == 1
    both.fulfil(both.first, lease=6)
    assert both.first.result(LIMIT_S).lease == 6


def test_a_move_that_was_lost_is_said_again_once_nothing_contradicts_it(pair: MakePair) -> None:
    """After a resume: a LOST that is sent again may say that the new slot is lost as well."""
    both = pair(slots=4)
    broker = both.broker
    broker.say(protocol.LOST, protocol.Lost(broker.next_push(), both.first.order_id, 5))
    both.until_read()
    assert broker.expect(protocol.MOVE)["offset"] == 64
    both.reconnect()
    both.answer(resumed=True)
    with pytest.raises(TimeoutError):
        broker.receive(timeout_s=0.1)
    broker.say(protocol.HEARTBEAT, {"push": broker.push})
    both.until_read()
    assert broker.expect(protocol.MOVE)["offset"] == 64


def test_a_move_that_is_overtaken_by_another_loss_is_not_said_again(pair: MakePair) -> None:
    both = pair(slots=4)
    broker = both.broker
    broker.say(protocol.LOST, protocol.Lost(broker.next_push(), both.first.order_id, 5))
    both.until_read()
    assert broker.expect(protocol.MOVE)["offset"] == 64
    both.reconnect()
    both.answer(resumed=True)
    broker.say(protocol.LOST, protocol.Lost(broker.next_push(), both.first.order_id, 6))
    both.until_read()
    assert broker.expect(protocol.MOVE)["offset"] == 128
    assert both.client.figures()["retired"] == 2


def test_a_move_that_is_refused_is_no_refused_order(pair: MakePair) -> None:
    both = pair()
    broker = both.broker
    broker.say(protocol.LOST, protocol.Lost(broker.next_push(), both.first.order_id, 5))
    both.until_read()
    seq = broker.expect(protocol.MOVE)["seq"]
    broker.refuse("unknown_order", seq=seq)
    assert both.figures()["waiting"] == 1
    both.fulfil(both.first, lease=6)
    both.first.result(LIMIT_S)


# --- sessions ---------------------------------------------------------------------------


def test_a_resumed_session_places_what_is_missing_where_it_was(pair: MakePair) -> None:
    """The broker never heard of it, so nobody was told of its slot."""
    both = pair()
    second, placed = both.order("second")
    hello = both.reconnect()
    assert hello["session"] == both.session
    both.answer(resumed=True, missing=(second.order_id,))
    (again,) = both.broker.expect(protocol.ORDERS)["orders"]
    assert again == placed
    both.fulfil(second)
    second.result(LIMIT_S)
    assert not both.first.done


def test_what_was_cancelled_stays_cancelled_over_a_resume(pair: MakePair) -> None:
    """The CANCEL may have been lost; or its answer, and then the order is missing."""
    both = pair()
    second, _ = both.order("second")
    both.first.cancel()
    second.cancel()
    for _ in range(2):
        both.broker.expect(protocol.CANCEL)
    hello = both.reconnect()
    assert set(hello["open_orders"]) == {both.first.order_id, second.order_id}
    both.answer(resumed=True, missing=(second.order_id,))
    assert both.broker.expect(protocol.CANCEL)["order_id"] == both.first.order_id
    figures = both.client.figures()
    assert (figures["quarantined"], figures["free"]) == (1, 3)


def test_an_order_cancelled_while_hello_was_under_way_is_cancelled_there(pair: MakePair) -> None:
    both = pair()
    both.reconnect()
    both.first.cancel()
    both.answer(resumed=True)
    assert both.broker.expect(protocol.CANCEL)["order_id"] == both.first.order_id


def test_an_order_begun_while_hello_was_under_way_is_placed(pair: MakePair, apart: Apart) -> None:
    """A corrupt product was found meanwhile, and is not in that HELLO's list."""
    both = pair()
    both.fulfil(both.first, checksum=EMPTY + 1)
    both.until_read()
    both.reconnect()
    waiting = apart(both.first.result, LIMIT_S)
    until(lambda: both.client.figures()["corrupt"])
    both.answer(resumed=True)
    (again,) = both.broker.expect(protocol.ORDERS)["orders"]
    assert again["product_id"] == "first"
    both.broker.fulfil(again["order_id"], checksum=EMPTY)
    assert waiting.result(LIMIT_S).nbytes == 0


def test_another_broker_gets_all_orders_under_other_names_in_other_slots(
    pair: MakePair,
) -> None:
    both = pair()
    second, placed = both.order("second")
    cancelled, _ = both.order("cancelled")
    cancelled.cancel()
    both.broker.expect(protocol.CANCEL)
    both.reconnect()
    both.broker.instance = os.urandom(8)
    both.answer(resumed=False)
    orders = both.broker.pass_over(protocol.ORDERS)["orders"]
    assert [order["product_id"] for order in orders] == ["first", "second"]
    told = {(order["address"], order["offset"]) for order in [*both.placed, placed]}
    assert not told & {(order["address"], order["offset"]) for order in orders}
    both.fulfil(second, push=1)  # its old name means nothing any more
    assert both.figures()["waiting"] == 2
    both.broker.push = 1
    for order in orders:
        both.broker.fulfil(order["order_id"], checksum=EMPTY)
    assert both.first.result(LIMIT_S).product_id == "first"
    assert second.result(LIMIT_S).product_id == "second"


def test_a_dropped_session_is_followed_by_another_with_the_same_orders(pair: MakePair) -> None:
    both = pair()
    both.broker.refuse("session_dropped", "read faster")
    until(lambda: both.look()["reconnects"])
    assert both.broker.greet()["session"] != both.session
    both.until_read()
    (again,) = both.broker.expect(protocol.ORDERS)["orders"]
    assert again["product_id"] == "first"
    assert again["order_id"] != both.first.order_id


def test_a_request_is_asked_again_on_a_new_connection(pair: MakePair, apart: Apart) -> None:
    both = pair()
    asking = apart(both.client.stats)
    both.broker.expect(protocol.STATS)
    both.broker.refuse("hello_first")
    both.broker.greet(resumed=True)
    seq = both.broker.expect(protocol.STATS)["seq"]
    both.broker.say(protocol.REPLY, protocol.Reply(seq=seq, stats={"a": 1}))
    assert asking.result(LIMIT_S) == {"a": 1}


# --- what makes no sense, or is refused -------------------------------------------------


def test_orders_that_are_refused_as_a_whole_are_all_told(pair: MakePair) -> None:
    both = pair()
    orders = both.client.orders(["a", "b"])
    seq = both.broker.expect(protocol.ORDERS)["seq"]
    both.broker.refuse("malformed", "that makes no sense", seq=seq)
    for order in orders:
        with pytest.raises(Refused, match="that makes no sense"):
            order.result(LIMIT_S)
    assert both.figures()["free"] == 3
    assert not both.first.done


def test_a_product_larger_than_its_slot_is_never_looked_at(pair: MakePair, apart: Apart) -> None:
    both = pair(slots=8)
    waiting = apart(both.first.result, LIMIT_S)
    name = both.first.order_id
    for attempt in range(3):
        both.broker.fulfil(
            name,
            nbytes=SLOT + 1,
            lease=attempt,
            checksum=xxhash.xxh3_64_intdigest(bytes(SLOT + 1)),  # it is what is there
        )
        if attempt < 2:
            (again,) = both.broker.expect(protocol.ORDERS)["orders"]
            name = again["order_id"]
    with pytest.raises(CorruptProduct):
        waiting.result(LIMIT_S)


@pytest.mark.parametrize("fields", [{"push": 1}, {"push": "x", "orders": []}, {"orders": [3]}, 7])
def test_a_malformed_push_ends_nothing(pair: MakePair, fields: object) -> None:
    both = pair()
    both.broker.say(protocol.FULFILLED, fields)
    both.fulfil(both.first, push=1)
    both.until_read()
    assert both.first.done
    assert both.client.figures()["malformed"] == 1


def test_a_failure_with_an_open_lease_retires_the_slot(pair: MakePair) -> None:
    both = pair()
    push = both.broker.next_push()
    failed = protocol.Failed(push, both.first.order_id, "lost", lease=9)
    both.broker.say(protocol.FAILED, failed)
    with pytest.raises(OrderFailed, match="lost"):
        both.first.result(LIMIT_S)
    assert both.client.figures()["retired"] == 1


def test_an_order_that_the_broker_cancels_is_told(pair: MakePair) -> None:
    both = pair()
    push = both.broker.next_push()
    failed = protocol.Failed(push, both.first.order_id, "cancelled")
    both.broker.say(protocol.FAILED, failed)
    with pytest.raises(OrderCancelled):
        both.first.result(LIMIT_S)
    assert both.client.figures()["free"] == 4
