"""The broker over real sockets: sessions, replay, lost connections, refusals, garbage."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
from pydantic import ValidationError

from entrepot.errors import Closed, ConfigurationError, EndpointInUse, Refused, UsedAfterFork
from entrepot.market.broker import Broker, random_leases
from entrepot.market.supplier import Supplier
from entrepot.settings import BrokerSettings
from tests.peer.raw import RawClient, RawSupplier, RawV1, RawV2
from tests.ports import Ports

ANY = "tcp://127.0.0.1:*"
Start = Callable[..., Broker]


@pytest.fixture
def start() -> Iterator[Start]:
    """Brokers with the settings that a test wants."""
    brokers: list[Broker] = []

    def make(**settings: Any) -> Broker:
        broker = Broker(ANY, ANY, settings=BrokerSettings(**settings))
        broker.start()
        brokers.append(broker)
        return broker

    yield make
    for broker in brokers:
        broker.stop()


def serve_one(supplier: RawSupplier, **fields: object) -> dict[str, Any]:
    work = supplier.work()
    supplier.done(work, **({"nbytes": 5, "checksum": 7} | fields))
    return work


def wait_stats(client: RawClient, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """STATS, asked for until something holds that happens by itself."""
    for _ in range(400):
        stats: dict[str, Any] = client.ask(b"STATS")["stats"]
        if holds(stats):
            return stats
        client.socket.poll(25)
    raise AssertionError(f"it never came about: {stats}")


def other_lease(broker: Broker, order_id: str) -> int:
    """The lease under which an order is with a supplier now."""
    held = [
        (order.order_id, lease)
        for supplier in list(broker._ledger.suppliers.values())
        for lease, order in list(supplier.held.items())
    ]
    return dict(held)[order_id]


# --- the ordinary course ----------------------------------------------------------------


def test_an_order_meets_its_supplier(start: Start) -> None:
    broker = start()
    with RawClient(broker.frontend) as client, RawSupplier(broker.backend) as supplier:
        hello = client.hello()["hello"]
        assert hello["protocol"] == 2
        assert hello["instance"] == broker.instance
        supplier.ready(r"layer_\d+", name="teacher")
        region = {"address": "shm:x", "offset": 3, "nbytes": 4}
        client.order("o1", "layer_3", address="shm:there", offset=128, nbytes=64, input=region)
        work = serve_one(supplier)
        lease = work.pop("lease")
        assert work == {
            "order_id": "o1",
            "product_id": "layer_3",
            "address": "shm:there",
            "offset": 128,
            "nbytes": 64,
            "input": region,
        }
        assert client.fulfilled("o1") == {
            "order_id": "o1",
            "lease": lease,
            "nbytes": 5,
            "checksum": 7,
        }


def test_a_version_that_is_yet_to_come_is_answered_with_ours(start: Start) -> None:
    broker = start()
    with RawClient(broker.frontend) as client, RawSupplier(broker.backend) as supplier:
        assert client.hello(protocol=9)["hello"]["protocol"] == 2
        assert supplier.hello(protocol=9, product_ids=["a"])["hello"]["protocol"] == 2


def test_orders_of_many_clients_are_told_apart_by_session(start: Start) -> None:
    """Two clients may use the same ids: each gets its own product."""
    broker = start()
    with (
        RawClient(broker.frontend) as one,
        RawClient(broker.frontend) as two,
        RawSupplier(broker.backend) as supplier,
    ):
        one.hello()
        two.hello()
        supplier.ready("a|b")
        one.order("same", "a")
        first = serve_one(supplier, checksum=1)
        two.order("same", "b")
        second = serve_one(supplier, checksum=2)
        assert (first["product_id"], second["product_id"]) == ("a", "b")
        assert one.fulfilled("same")["checksum"] == 1
        assert two.fulfilled("same")["checksum"] == 2


def test_an_answer_for_another_lease_changes_nothing(start: Start) -> None:
    broker = start()
    with (
        RawClient(broker.frontend) as client,
        RawSupplier(broker.backend) as supplier,
        RawSupplier(broker.backend) as forger,
    ):
        client.hello()
        supplier.ready("a")
        forger.ready("b")
        client.order("o1", "a")
        work = supplier.work()
        supplier.done(work | {"lease": work["lease"] ^ 1})
        forger.done(work)
        forger.settled()
        supplier.settled()
        assert client.ask(b"STATS")["stats"]["stale_answers"] == 2
        assert client.passed == []
        supplier.done(work, checksum=9)
        assert client.fulfilled("o1")["checksum"] == 9


def test_a_second_hello_of_version_1_names_new_patterns(start: Start) -> None:
    """It stays ready, and what it holds stays with it; patterns that are refused change nothing."""
    broker = start()
    with RawV1(broker.frontend) as client, RawV1(broker.backend) as supplier:
        first = supplier.ask(b"HELLO", {"product_ids": ["old"]})
        supplier.send(b"READY")
        assert supplier.ask(b"HELLO", {"product_ids": ["new"]}) == first
        client.order("o1", "old")
        client.order("o2", "new")
        assert supplier.wait_for(b"WORK")["order_id"] == "o2"
        assert supplier.ask(b"HELLO", {"product_ids": ["old"]}) == first
        assert supplier.ask(b"HELLO", {"product_ids": ["(?=no)"]})["ok"] is False
        assert supplier.ask(b"DONE", {"order_id": "o2"}) == {"ok": True}
        assert client.wait_for(b"FULFILLED") == {"order_id": "o2"}
        supplier.send(b"READY")
        assert supplier.wait_for(b"WORK")["order_id"] == "o1"


# --- sessions ---------------------------------------------------------------------------


def test_pushes_are_sent_again_to_a_client_that_comes_back(start: Start) -> None:
    """What ended while the client was away is told when it is back, and only what it missed."""
    broker = start()
    session = os.urandom(16)
    with RawSupplier(broker.backend).ready("a", credit=9) as supplier:
        with RawClient(broker.frontend, session=session) as client:
            client.hello()
            for name in ("o1", "o2"):
                client.order(name, "a")
                supplier.done(supplier.work())
                client.fulfilled(name)
            client.order("o3", "a")
            held = supplier.work()
        supplier.done(held)
        supplier.settled()
        with RawClient(broker.frontend, session=session) as again:
            answer = again.hello(last_push=1, open_orders=["o3", "never-arrived"])
            assert answer["hello"]["resumed"] is True
            assert answer["hello"]["missing"] == ["never-arrived"]
            pushes = [again.wait_for(b"FULFILLED") for _ in range(2)]
            assert [(each["push"], each["orders"][0]["order_id"]) for each in pushes] == [
                (2, "o2"),
                (3, "o3"),
            ]


def test_acknowledged_pushes_are_not_kept(start: Start) -> None:
    broker = start()
    with RawClient(broker.frontend) as client, RawSupplier(broker.backend) as supplier:
        client.hello()
        supplier.ready("a")
        for n in range(5):
            client.order(f"o{n}", "a")
            serve_one(supplier)
            client.fulfilled(f"o{n}")
        assert client.ask(b"STATS")["stats"]["unacknowledged"] == 5
        client.send(b"HEARTBEAT", {"last_push": 4})
        assert client.ask(b"STATS")["stats"]["unacknowledged"] == 1


def test_orders_that_a_returning_client_does_not_name_are_cancelled(start: Start) -> None:
    broker = start()
    session = os.urandom(16)
    with RawClient(broker.frontend, session=session) as client:
        client.hello()
        client.order("kept", "a")
        client.order("forgotten", "a")
        client.settled()
    with RawClient(broker.frontend, session=session) as again:
        again.hello(open_orders=["kept"])
        stats = again.ask(b"STATS")["stats"]["orders"]
        assert (stats["queued"], stats["cancelled"]) == (1, 1)


def test_a_supplier_whose_connection_breaks_goes_on(start: Start) -> None:
    """It comes back within its grace, still holding the order, and its answer counts."""
    broker = start(reconnect_grace_s=30)
    session = os.urandom(16)
    with RawClient(broker.frontend) as client:
        client.hello()
        with RawSupplier(broker.backend, session=session).ready("a") as supplier:
            client.order("o1", "a")
            work = supplier.work()
        wait_stats(client, lambda stats: stats["suppliers"]["suspect"] == 1)
        with RawSupplier(broker.backend, session=session) as again:
            again.ready("a", holds=[work["lease"]])
            again.done(work, checksum=4)
            assert client.fulfilled("o1")["checksum"] == 4
            client.order("o2", "a")
            serve_one(again)
            client.fulfilled("o2")


def test_work_that_was_lost_with_the_connection_is_given_again(start: Start) -> None:
    """The supplier does not name the lease: nobody works on the order, and nobody writes."""
    broker = start(reconnect_grace_s=30)
    session = os.urandom(16)
    with RawClient(broker.frontend) as client:
        client.hello()
        with RawSupplier(broker.backend, session=session).ready("a") as supplier:
            client.order("o1", "a")
            lost = supplier.work()
        with RawSupplier(broker.backend, session=session).ready("a") as again:
            work = serve_one(again)
            assert work["order_id"] == "o1"
            assert work["lease"] != lost["lease"]
            assert client.fulfilled("o1")["lease"] == work["lease"]
        assert [command for command, _ in client.passed if command == b"LOST"] == []


def test_a_lost_supplier_parks_its_order_until_it_is_moved(start: Start) -> None:
    broker = start(reconnect_grace_s=0)
    with RawClient(broker.frontend) as client, RawSupplier(broker.backend) as other:
        client.hello()
        with RawSupplier(broker.backend).ready("a", name="doomed") as supplier:
            client.order("o1", "a", offset=0)
            work = supplier.work()
        lost = client.wait_for(b"LOST")
        assert (lost["order_id"], lost["lease"]) == ("o1", work["lease"])
        other.ready("a")
        assert [command for command, _ in other.settled() if command == b"WORK"] == []
        client.send(b"MOVE", {"order_id": "o1", "address": "elsewhere", "offset": 640})
        moved = serve_one(other)
        assert (moved["address"], moved["offset"]) == ("elsewhere", 640)
        client.fulfilled("o1")


def test_orders_that_lose_every_supplier_fail_and_say_who(start: Start) -> None:
    broker = start(reconnect_grace_s=0, max_order_losses=2)
    with RawClient(broker.frontend) as client:
        client.hello()
        client.order("poison", "a")
        for name in ("first", "second"):
            with RawSupplier(broker.backend).ready("a", name=name) as supplier:
                work = supplier.work()
            if name == "first":
                client.wait_for(b"LOST")
                client.send(b"MOVE", {"order_id": "poison", "address": "x", "offset": 1})
        failed = client.wait_for(b"FAILED")
        assert (failed["reason"], failed["lease"]) == ("lost", work["lease"])
        assert [each["supplier"] for each in failed["attempts"]] == ["first", "second"]


def test_goodbye_gives_orders_back_without_losing_them(start: Start) -> None:
    broker = start()
    with RawClient(broker.frontend) as client, RawSupplier(broker.backend) as other:
        client.hello()
        with RawSupplier(broker.backend).ready("a") as supplier:
            client.order("o1", "a")
            supplier.work()
            supplier.send(b"GOODBYE")
            other.ready("a")
            serve_one(other)
        client.fulfilled("o1")
        assert all(command != b"LOST" for command, _ in client.settled())


def test_goodbye_is_heard_although_the_connection_closes_with_it(start: Start) -> None:
    """What was sent before a connection closed is read before its end is taken note of."""
    broker = start(reconnect_grace_s=30)
    with RawClient(broker.frontend) as client:
        client.hello()
        for _ in range(20):
            supplier = RawSupplier(broker.backend).ready("a")
            supplier.socket.setsockopt(zmq.LINGER, 1000)
            supplier.send(b"GOODBYE")
            supplier.close()
        wait_stats(client, lambda stats: stats["suppliers"]["connected"] == 0)


def test_a_client_that_left_has_no_orders(start: Start) -> None:
    broker = start(client_grace_s=0.05)
    with RawClient(broker.frontend) as watcher:
        watcher.hello()
        for farewell in (True, False):
            with RawClient(broker.frontend) as client:
                client.hello()
                client.order("o1", "a")
                client.settled()
                if farewell:
                    client.send(b"GOODBYE")
            stats = wait_stats(watcher, lambda stats: stats["clients"]["connected"] == 1)
            assert stats["orders"]["open"] == 0


def test_the_newest_connection_has_the_session(start: Start) -> None:
    broker = start()
    session = os.urandom(16)
    with (
        RawClient(broker.frontend, session=session) as old,
        RawClient(broker.frontend, session=session) as new,
    ):
        old.hello()
        old.send(b"HEARTBEAT")
        old.settled()
        assert new.hello()["hello"]["resumed"] is True
        assert old.ask(b"STATS")["code"] == "hello_first"
        assert "stats" in new.ask(b"STATS")


def test_a_hello_that_comes_late_does_not_take_the_session_back(start: Start) -> None:
    """The older connection is told so; what the newer one holds, nobody else is given."""
    broker = start()
    session = os.urandom(16)
    with (
        RawClient(broker.frontend) as client,
        RawSupplier(broker.backend, session=session) as old,
        RawSupplier(broker.backend, session=session) as new,
        RawSupplier(broker.backend) as other,
    ):
        client.hello()
        for _ in range(2):
            new.ready("a")
        client.order("o1", "a")
        work = new.work()
        other.ready("a")
        answer = old.hello(product_ids=["a"])
        assert answer["code"] == "stale_hello"
        assert "HELLO 1 of this session came after its HELLO 2" in answer["error"]
        assert old.ask(b"NO SUCH COMMAND")["code"] == "hello_first"
        assert [command for command, _ in other.settled() if command == b"WORK"] == []
        new.done(work, checksum=4)
        assert client.fulfilled("o1")["checksum"] == 4
        # One that has counted on takes it all the same.
        assert old.hello(product_ids=["a"])["hello"]["resumed"] is True


def test_a_clients_hello_that_comes_late_cancels_nothing(start: Start) -> None:
    broker = start()
    session = os.urandom(16)
    with (
        RawClient(broker.frontend, session=session) as old,
        RawClient(broker.frontend, session=session) as new,
    ):
        for _ in range(2):
            new.hello()
        new.order("o1", "a")
        new.settled()
        assert old.hello(open_orders=[])["code"] == "stale_hello"
        stats = new.ask(b"STATS")["stats"]
        assert (stats["orders"]["queued"], stats["orders"]["cancelled"]) == (1, 0)
        assert stats["refused"]["stale_hello"] == 1


def test_a_session_whose_beginning_may_not_have_been_heard_is_not_resumed(start: Start) -> None:
    """Its client was told on a connection that went, and would wait for orders of the one before.

    It was silent for too long, was forgotten, and said HELLO twice: numbered pushes begin at 1.
    """
    broker = start()
    session = os.urandom(16)
    with RawClient(broker.frontend, session=session) as unheard:
        assert unheard.hello(last_push=7, open_orders=["o1"])["hello"]["resumed"] is False
    with RawClient(broker.frontend, session=session) as again:
        answer = again.hello(last_push=7, open_orders=["o1"])["hello"]
        assert (answer["resumed"], answer["missing"]) == (False, ["o1"])
        again.order("o2", "a")
        again.settled()
    with RawClient(broker.frontend, session=session) as last:
        answer = last.hello(open_orders=["o2"])["hello"]
        assert (answer["resumed"], answer.get("missing", [])) == (True, [])


def test_a_session_has_one_contract(start: Start) -> None:
    """Another is refused in words, and the session goes on as before."""
    broker = start()
    with RawClient(broker.frontend) as client:
        client.hello(contract="x")
        client.order("o1", "a")
        answer = client.hello(contract="y", open_orders=["o1"])
        assert (answer["code"], "'x'" in answer["error"]) == ("contract_mismatch", True)
        assert client.ask(b"STATS")["stats"]["orders"]["queued"] == 1
        assert client.hello(contract="x", open_orders=["o1"])["hello"]["resumed"] is True


def test_a_draining_suppliers_orders_go_to_others(start: Start) -> None:
    """In the slots that they have; WORK that crossed its DRAIN it gives back as well."""
    broker = start()
    with (
        RawClient(broker.frontend) as client,
        RawSupplier(broker.backend) as leaving,
        RawSupplier(broker.backend) as other,
    ):
        client.hello()
        leaving.ready("a", credit=3)
        for name in ("begun", "o1", "crossing"):
            client.order(name, "a")
        works = [leaving.work() for _ in range(3)]
        other.ready("a", credit=2)
        leaving.send(b"DRAIN", {"leases": [works[1]["lease"]]})
        assert other.work() == works[1] | {"lease": other_lease(broker, "o1")}
        leaving.send(b"DRAIN", {"leases": [works[2]["lease"]]})
        assert other.work()["order_id"] == "crossing"
        leaving.done(works[0], checksum=1)
        client.fulfilled("begun")
        client.order("new", "a")
        leaving.send(b"READY")
        assert [command for command, _ in leaving.settled() if command == b"WORK"] == []
        stats = client.ask(b"STATS")["stats"]
        assert (stats["suppliers"]["draining"], stats["orders"]["queued"]) == (1, 1)
        assert (stats["orders"]["failed"], stats["stale_answers"]) == (0, 0)


def test_a_failed_order_does_not_wait_for_ever_for_who_never_asks(start: Start) -> None:
    """There is nobody else who takes it: who failed it has it again, after a while."""
    broker = start(elsewhere_s=0.2)
    with (
        RawClient(broker.frontend) as client,
        RawSupplier(broker.backend) as bad,
        RawSupplier(broker.backend) as never,
    ):
        client.hello()
        bad.ready("a")
        never.hello(product_ids=["a"])
        client.order("o1", "a")
        bad.done(bad.work(), success=False)
        serve_one(bad)
        client.fulfilled("o1")


def test_a_session_is_not_shared_by_the_two_ports(start: Start) -> None:
    """A client that says GOODBYE with a supplier's session ends only itself."""
    broker = start()
    session = os.urandom(16)
    with (
        RawClient(broker.frontend, session=session) as client,
        RawSupplier(broker.backend, session=session) as supplier,
        RawClient(broker.frontend) as watcher,
    ):
        watcher.hello()
        client.hello()
        supplier.ready("a")
        client.send(b"GOODBYE")
        wait_stats(watcher, lambda stats: stats["clients"]["connected"] == 1)
        watcher.order("o1", "a")
        serve_one(supplier)
        watcher.fulfilled("o1")


def test_another_instance_answers_after_a_restart() -> None:
    with closing(Ports(2)) as ports:
        with Broker(*ports.endpoints) as first:
            client = RawClient(first.frontend)
            client.hello()
        _said_by_another(Broker(*ports.endpoints), client, first.instance)


def _said_by_another(broker: Broker, client: RawClient, instance: bytes) -> None:
    with broker as second, client:
        assert second.instance != instance
        assert client.ask(b"STATS")["code"] == "hello_first"
        answer = client.hello(open_orders=["o1"])["hello"]
        assert (answer["instance"], answer["resumed"]) == (second.instance, False)
        assert answer["missing"] == ["o1"]


# --- liveness ---------------------------------------------------------------------------


def test_a_silent_supplier_is_suspect_and_then_lost(start: Start) -> None:
    broker = start(beat_s=0.05, suspect_s=0.2, dead_s=3600)
    with RawClient(broker.frontend) as client, RawSupplier(broker.backend) as supplier:
        client.hello()
        supplier.ready("a")
        stats = wait_stats(client, lambda stats: stats["suppliers"]["suspect"] == 1)
        assert stats["suppliers"]["ready"] == 0
        client.order("o1", "a")
        client.settled()
        supplier.send(b"HEARTBEAT")
        serve_one(supplier)
        client.fulfilled("o1")
    with RawClient(start(beat_s=0.05, dead_s=0.2).frontend) as client:
        client.hello()
        while True:
            if client.ask(b"STATS").get("code") == "hello_first":
                break
            client.socket.poll(250)


def test_version_2_peers_are_beaten_to_and_version_1_peers_never(start: Start) -> None:
    broker = start(beat_s=0.02)
    with (
        RawClient(broker.frontend) as client,
        RawSupplier(broker.backend) as supplier,
        RawV1(broker.frontend) as v1,
    ):
        v1.ask(b"HELLO")
        client.hello()
        supplier.ready("a")
        for _ in range(3):
            assert client.wait_for(b"HEARTBEAT") == {}
            supplier.wait_for(b"HEARTBEAT")
        v1.ask(b"STATS")
        assert v1.passed == []


def test_a_client_that_orders_on_and_never_reads_is_dropped(start: Start) -> None:
    """Its outbox is bounded; the others are served, and it is told when it comes back."""
    broker = start(max_outbox=2048, max_open_orders=1024)
    with (
        RawClient(broker.frontend) as deaf,
        RawClient(broker.frontend) as good,
        RawSupplier(broker.backend) as supplier,
    ):
        deaf.hello()
        good.hello()
        for turn in range(1, 4):
            deaf.orders(
                {"order_id": f"{turn}/{n}", "product_id": "nobody's", "deadline_s": 1e-3}
                for n in range(1024)
            )
            stats = wait_stats(
                good,
                lambda stats: stats["orders"]["failed"] >= min(1024 * turn, 2049),  # noqa: B023
            )
            assert stats["unacknowledged"] <= 2049
        assert stats["dropped"] == {"slow": 1}
        assert stats["clients"]["connected"] == 1
        supplier.ready("a")
        good.order("mine", "a")
        serve_one(supplier)
        good.fulfilled("mine")
        assert deaf.wait_for(b"REPLY", lambda said: said.get("code") == "session_dropped")


# --- bad input --------------------------------------------------------------------------


def test_what_is_refused_has_a_code_and_a_sentence(start: Start) -> None:
    broker = start(max_open_orders=2, max_pattern_program=1000)
    with RawClient(broker.frontend) as client, RawSupplier(broker.backend) as supplier:
        assert client.ask(b"STATS")["code"] == "hello_first"
        assert client.hello(session=bytes(16))["code"] == "malformed"
        assert client.hello(session=b"short")["code"] == "malformed"
        client.hello()
        cases: list[tuple[bytes, dict[str, object], str, str]] = [
            (b"NONSENSE", {}, "unknown_command", "NONSENSE"),
            (b"CANCEL", {"order_id": "who"}, "unknown_order", "'who'"),
            (b"MOVE", {"order_id": "who", "address": "x", "offset": 0}, "unknown_order", "'who'"),
            (b"CANCEL", {"order_id": 7}, "malformed", "order_id"),
            (b"ORDERS", {"orders": 7}, "malformed", "orders"),
            (b"ORDERS", {"orders": [{"order_id": "x" * 5000}]}, "malformed", "4096"),
            (b"DISCARD", {"seq": "x"}, "malformed", "seq"),
        ]
        for command, fields, code, said in cases:
            if fields.get("seq") == "x":
                client.send(command, fields)
                answer = client.wait_for(b"REPLY")
            else:
                answer = client.ask(command, **fields)
            assert answer["code"] == code, answer
            assert said in answer["error"], answer
        client.orders({"order_id": f"o{n}", "product_id": "z"} for n in range(4))
        answer = client.wait_for(b"REPLY")
        assert (answer["code"], answer["refused"]) == ("too_many_orders", ["o2", "o3"])
        for patterns, code, said in (
            (["(a+)+$", r"(?=x)"], "pattern_refused", "(?=x)"),
            (["x{2000}"], "pattern_refused", "{2000}"),
            (["|".join(map(str, range(10_000)))], "pattern_refused", "instructions"),
            ([], "pattern_refused", "at least one"),
            (["a"] * 257, "too_many_patterns", "257"),
        ):
            answer = supplier.hello(product_ids=patterns)
            assert answer["code"] == code, answer
            assert said in answer["error"], answer
        counted = client.ask(b"STATS")["stats"]["refused"]
        assert counted["malformed"] == 6
        assert counted["pattern_refused"] == 4


def test_a_party_at_the_wrong_endpoint_is_told_so(start: Start) -> None:
    broker = start()
    with (
        RawSupplier(broker.frontend) as supplier,
        RawClient(broker.backend) as client,
        RawV1(broker.frontend) as v1,
    ):
        answer = supplier.hello(product_ids=["a"])
        assert (answer["code"], "clients connect" in answer["error"]) == ("wrong_endpoint", True)
        answer = client.hello()
        assert (answer["code"], "suppliers connect" in answer["error"]) == ("wrong_endpoint", True)
        assert v1.ask(b"HELLO", {"product_ids": ["a"]})["code"] == "wrong_endpoint"
    with (
        Supplier(broker.frontend, {"a": lambda _: b""}) as lost,
        pytest.raises(Refused, match="other endpoint"),
    ):
        lost.run(timeout_s=10)


def test_an_exclusive_pattern_belongs_to_one_session(start: Start) -> None:
    broker = start(reconnect_grace_s=0)
    with RawSupplier(broker.backend) as second:
        with RawSupplier(broker.backend).ready("mine", exclusive=True, name="owner"):
            answer = second.hello(product_ids=["mine", "other"])
            assert answer["code"] == "pattern_taken"
            assert "'owner'" in answer["error"]
        while second.hello(product_ids=["mine"]).get("code") == "pattern_taken":
            second.socket.poll(10)


def test_peers_are_bounded(start: Start) -> None:
    broker = start(max_peers=2)
    with (
        RawClient(broker.frontend) as one,
        RawSupplier(broker.backend) as two,
        RawClient(broker.frontend) as three,
        RawV1(broker.frontend) as four,
    ):
        one.hello()
        two.ready("a")
        assert three.hello()["code"] == "too_many_peers"
        assert four.ask(b"HELLO")["ok"] is False
        one.ask(b"STATS")


def test_garbage_on_both_ports_leaves_the_good_served(start: Start) -> None:
    """Random frames, half messages, 64 MB frames, another protocol: a good client is served."""
    broker = start()
    ports = [int(endpoint.rsplit(":", 1)[1]) for endpoint in (broker.frontend, broker.backend)]
    stop = threading.Event()

    def rubbish(port: int) -> None:
        while not stop.is_set():
            for blob in (
                b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
                os.urandom(3000),
                b"\xff\0\0\0\0\0\0\0\x01\x7f",
                b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\0NULL" + bytes(48) + b"\x04\xff" * 50,
            ):
                with socket.create_connection(("127.0.0.1", port)) as raw:
                    try:
                        raw.sendall(blob)
                        raw.shutdown(socket.SHUT_WR)
                        raw.settimeout(0.2)
                        raw.recv(100)
                    except OSError:
                        pass

    def frames(port: int) -> None:
        huge = bytes(64 << 20)
        with RawV2(f"tcp://127.0.0.1:{port}") as peer:
            peer.socket.setsockopt(zmq.SNDTIMEO, 1000)
            n = 0
            while not stop.is_set():
                n += 1
                try:
                    peer.frames(os.urandom(n % 40))
                    peer.frames(*[os.urandom(5) for _ in range(n % 30 + 1)])
                    peer.frames(b"ORDERS", os.urandom(n % 200))
                    peer.frames(b"HELLO", os.urandom(20))
                    peer.frames(b"DONE", b"\x81\xa7results\xdd\xff\xff\xff\xff")
                    peer.frames(b"HELLO", b"\x91" * 5000)
                    if n % 50 == 1:
                        peer.frames(b"ORDERS", huge)
                    while peer.socket.poll(0):
                        peer.socket.recv_multipart()
                except zmq.Again:
                    pass

    rogues = [
        threading.Thread(target=work, args=(port,)) for port in ports for work in (rubbish, frames)
    ]
    for rogue in rogues:
        rogue.start()
    try:
        with RawClient(broker.frontend) as client, RawSupplier(broker.backend) as supplier:
            client.hello()
            supplier.ready("a")
            for n in range(100):
                client.order(f"o{n}", "a")
                serve_one(supplier)
                client.fulfilled(f"o{n}")
            wait_stats(client, lambda stats: stats["refused"].get("malformed", 0) > 0)
    finally:
        stop.set()
        for rogue in rogues:
            rogue.join()


def test_the_longest_hello_is_taken_by_every_broker(start: Start) -> None:
    """The most leases that a supplier may hold or have answered, and megabytes of patterns."""
    broker = start(max_message_nbytes=4 << 20)
    leases = [2**64 - 1 - n for n in range(2 * 65_536 + 1)]
    patterns = [f"{n}[{'a' * 65_000}]" for n in range(40)]
    with RawSupplier(broker.backend) as supplier:
        answer = supplier.hello(product_ids=patterns, credit=65_536, holds=leases)
        assert len(answer["hello"]["missing"]) == len(leases)
    for nbytes in (1 << 16, (4 << 20) - 1):
        with pytest.raises(ValidationError, match="4194304"):
            BrokerSettings(max_message_nbytes=nbytes)


def test_a_frame_that_is_too_large_ends_only_its_connection(start: Start) -> None:
    broker = start(max_message_nbytes=4 << 20, client_grace_s=600)
    with RawClient(broker.frontend) as client, RawClient(broker.frontend) as good:
        good.hello()
        client.hello()
        client.send(b"HEARTBEAT")
        client.settled()  # it was heard: of a connection that ends, what is unread may be dropped
        with client.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED) as monitor:
            client.frames(b"ORDERS", bytes((4 << 20) + 1))
            # What is sent before that may go into the connection that ends.
            assert monitor.poll(20_000)
            client.socket.disable_monitor()
        wait_stats(good, lambda stats: stats["clients"]["connected"] == 2)
        assert client.hello()["hello"]["resumed"] is True


@pytest.mark.parametrize("body", [b"", b"\x80", b"\xc0", b"\x93\x01\x02\x03", b"\xc1", b"\xa5ab"])
@pytest.mark.parametrize("command", [b"HELLO", b"ORDER", b"CANCEL", b"READY", b"DONE", b"", b"\0"])
def test_any_first_message_leaves_the_broker_alive(
    start: Start, command: bytes, body: bytes
) -> None:
    broker = start()
    for endpoint in (broker.frontend, broker.backend):
        with RawV2(endpoint) as peer:
            peer.frames(command, body)
            peer.frames(command)
            peer.frames(command, body, body)
    with RawClient(broker.frontend) as client:
        assert client.hello()["hello"]["instance"] == broker.instance


# --- life -------------------------------------------------------------------------------


def test_a_taken_port_is_an_error_in_words(start: Start) -> None:
    broker = start()
    with pytest.raises(EndpointInUse, match=broker.frontend):
        Broker(broker.frontend, ANY).start()


def test_a_living_brokers_ipc_path_is_not_taken_over(tmp_path: Path) -> None:
    front, back = f"ipc://{tmp_path}/front", f"ipc://{tmp_path}/back"
    with Broker(front, back), RawClient(front) as client:
        with pytest.raises(EndpointInUse, match="front"):
            Broker(front, f"ipc://{tmp_path}/else").start()
        client.hello()
    with Broker(front, back), RawClient(front) as client:
        client.hello()


def test_an_ipc_path_left_by_a_killed_broker_is_used_again(tmp_path: Path) -> None:
    path = tmp_path / "front"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert path.exists()
    with (
        Broker(f"ipc://{path}", f"ipc://{tmp_path}/back") as broker,
        RawClient(broker.frontend) as client,
    ):
        client.hello()


@pytest.mark.parametrize(
    "endpoint",
    [
        "nonsense",
        "tcp://nowhere.invalid:1",
        "ipc:///no/such/f",
        "tcp://127.0.0.1:80000",
        "inproc://here",
    ],
)
def test_an_endpoint_that_cannot_be_is_an_error_that_names_it(endpoint: str) -> None:
    with pytest.raises(ConfigurationError, match=endpoint):
        Broker(endpoint, ANY).start()


def test_one_endpoint_for_both_sides_is_told_as_such() -> None:
    with pytest.raises(ConfigurationError, match="an endpoint each"):
        Broker("tcp://127.0.0.1:5999", "tcp://127.0.0.1:5999")


def test_settings_are_the_environments_unless_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENTREPOT_BROKER__BEAT_S", "0.25")
    with Broker(ANY, ANY) as broker, RawClient(broker.frontend) as client:
        assert client.hello()["hello"]["beat_s"] == 0.25
    with (
        Broker(ANY, ANY, settings=BrokerSettings(beat_s=0.5)) as broker,
        RawClient(broker.frontend) as client,
    ):
        assert client.hello()["hello"]["beat_s"] == 0.5


def test_stop_from_another_thread_and_twice(start: Start) -> None:
    broker = Broker(ANY, ANY)
    thread = threading.Thread(target=broker.run)
    thread.start()
    while broker.frontend.endswith("*"):
        thread.join(0.01)
    with RawClient(broker.frontend) as client:
        client.hello()
    broker.stop()
    thread.join()
    broker.stop()
    with pytest.raises(Closed):
        broker.start()
    Broker(ANY, ANY).stop()


def test_a_forked_child_does_not_stop_its_parents_broker(start: Start) -> None:
    broker = start()
    child = os.fork()
    if child == 0:
        try:
            broker.stop()
        except UsedAfterFork:
            os._exit(3)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    with RawClient(broker.frontend) as client:
        client.hello()


def test_leases_are_64_bit_and_never_0() -> None:
    blocks = [bytes(4096), b"\xff" * 4096]
    leases = random_leases(lambda n: blocks.pop(0))
    assert next(leases) == 2**64 - 1
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(2**64 - 1)) == 2**64 - 1
