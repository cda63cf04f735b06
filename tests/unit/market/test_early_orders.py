"""Orders that are there before any supplier, and then one comes under another contract."""

from __future__ import annotations

import pytest

from entrepot import Broker, Client, ShmMedium, Supplier, TensorSpec
from entrepot.contract import Contract
from entrepot.errors import Refused
from entrepot.market import events as ev
from tests.peer.waiting import until
from tests.unit.market.small_market import Market, given, refusals

ANY = "tcp://127.0.0.1:*"
LIMIT_S = 30.0
OURS = Contract([TensorSpec("x", (2,), "float32")])
THEIRS = Contract([TensorSpec("x", (3,), "float32")])


def market() -> Market:
    made = Market()
    made.client("x", contract="x")
    made.client("y", contract="y")
    return made


def test_who_ordered_early_is_told_what_who_orders_late_is() -> None:
    early = market()
    early.order("a", "b", client="y")
    (_, refusal) = early.join("s", "p", contracts={"p": "x"}, terms={"x": "what x says"})
    late = market()
    late.supplier("s", "p", contracts={"p": "x"}, terms={"x": "what x says"})
    (same,) = late.order("a", client="y")
    assert isinstance(refusal, ev.Refuse)
    assert isinstance(same, ev.Refuse)
    assert (refusal.code, refusal.error) == (same.code, same.error)
    assert (refusal.terms, same.terms) == ("what x says", "what x says")
    assert (list(refusal.order_ids), refusal.session) == (["a", "b"], b"y")
    assert (early.ledger.open_orders, early.outcomes) == (0, {"failed": 2})
    assert given(early.ready("s")) == []
    assert early.order("c", client="x")  # and all goes on
    assert early.holds("s") == ["c"]


def test_each_client_and_product_is_told_by_itself() -> None:
    early = market()
    early.client("z", contract="z")
    for client in ("y", "z"):
        early.order("1", client=client)
        early.order("2", product="q", client=client)
        early.order("3", client=client)
    effects = early.join("s", "[pq]", contracts={"[pq]": "x"})
    told = [(e.session, list(e.order_ids)) for e in effects if isinstance(e, ev.Refuse)]
    assert told == [(b"y", ["1", "3"]), (b"y", ["2"]), (b"z", ["1", "3"]), (b"z", ["2"])]


def test_orders_that_agree_or_name_no_contract_or_another_product_wait_and_are_made() -> None:
    early = market()
    early.order("same", client="x")
    early.order("any")
    early.order("other", product="q", client="y")
    assert early.supplier("s", "p", credit=9, contracts={"p": "x"}) == [
        ("s", "same"),
        ("s", "any"),
    ]
    assert early.supplier("t", "q", contracts={"q": "y"}) == [("t", "other")]


def test_while_one_is_there_that_agrees_nobody_is_refused() -> None:
    early = market()
    early.supplier("busy", "p", ready=False, contracts={"p": "y"})
    early.order("a", client="y")
    assert refusals(early.join("s", "p", contracts={"p": "x"})) == []
    assert given(early.ready("s")) == []
    assert given(early.ready("busy")) == [("busy", "a")]


def test_an_order_whose_own_supplier_was_lost_waits_for_it() -> None:
    early = market()
    early.supplier("ours", "p", contracts={"p": "y"})
    early.order("begun", client="y")
    early.drain("ours", "begun")
    early.left("ours")
    assert refusals(early.join("s", "p", contracts={"p": "x"})) == []
    assert early.supplier("ours again", "p", contracts={"p": "y"}) == [("ours again", "begun")]


def test_a_class_that_comes_back_is_as_new() -> None:
    early = market()
    early.supplier("s", "p", contracts={"p": "x"})
    early.left("s")
    early.order("a", client="y")
    early.order("b", client="x")
    effects = early.join("s2", "p", contracts={"p": "x"})
    assert refusals(effects) == [("contract_mismatch", ["a"])]
    assert given(early.ready("s2")) == [("s2", "b")]


def test_a_supplier_that_is_known_and_says_hello_again_changes_nothing() -> None:
    early = market()
    early.join("s", "p", contracts={"p": "x"})
    assert refusals(early.join("s", "p", contracts={"p": "x"}, seq=1)) == []
    early.join("s", "p", contracts={"p": "y"}, seq=2)  # and may change its contract
    early.order("a", client="y")
    assert early.holds("s") == []
    effects = early.join("s", "p", contracts={"p": "x"}, seq=3)
    assert refusals(effects) == [("contract_mismatch", ["a"])]


def test_a_client_that_waits_is_told_the_difference_when_the_supplier_comes() -> None:
    with (
        Broker(ANY, ANY) as broker,
        Client(
            broker.frontend, ShmMedium.create(64, 4), contract=OURS, timeout_s=LIMIT_S
        ) as client,
    ):
        orders = [client.order("a") for _ in range(3)]
        elsewhere = client.order("b")
        until(lambda: client.stats()["orders"]["open"] == 4)
        with Supplier(broker.backend, {"a": str.encode}, contracts={"a": THEIRS}).start():
            for order in orders:
                with pytest.raises(Refused) as refused:
                    order.result(LIMIT_S)
                assert refused.value.code == "contract_mismatch"
                for said in (
                    repr(OURS.digest),
                    repr(THEIRS.digest),
                    "x: shape [2] here, [3] there",
                ):
                    assert said in str(refused.value)
        until(client.figures, lambda seen: seen["free"] == 3)
        assert not elsewhere.done


def test_a_client_that_is_away_meanwhile_is_told_when_it_is_back() -> None:
    early = market()
    early.order("a", client="y")
    early.disconnected("y")
    early.join("s", "p", contracts={"p": "x"})
    (welcome,) = early.client("y", contract="y", open_orders=["a"])
    assert welcome == ev.Welcome(b"y", True, ["a"])  # so it places it again
    assert refusals(early.order("a", client="y")) == [("contract_mismatch", ["a"])]
