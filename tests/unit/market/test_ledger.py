"""The market's invariants, each under its name: a few markets small enough to follow by eye.

What holds in every market, however it came about, is at the end: ``ledger_machine.py`` makes up
markets and compares them with ``ledger_model.py``. The invariant ``cost`` is in
``test_ledger_cost.py``.
"""

from __future__ import annotations

import pytest
from hypothesis.stateful import run_state_machine_as_test

from entrepot.market import events as ev
from entrepot.market.protocol import Attempt, Delivery, Fault, Region, Result, WorkItem
from tests.unit.market.ledger_machine import CI, SOAK, LedgerMachine, walk
from tests.unit.market.small_market import Market, answers, ends, failed, given, order, refusals

# --- 1. ends_once -----------------------------------------------------------------------


def test_ends_once() -> None:
    """A fulfilled order has its delivery once, whatever its supplier says again."""
    market = Market()
    market.supplier("s")
    assert given(market.order("a")) == [("s", "a")]
    answer = ev.Finished(b"s", [Result("a", 1, nbytes=8, checksum=77)])

    assert market.apply(answer) == [ev.Fulfil(b"client", 2, Delivery("a", 1, 8, 77))]
    assert market.apply(answer) == []
    assert market.ledger.figures.stale_answers == 1
    assert market.outcomes == {"fulfilled": 1}
    assert market.ledger.open_orders == 0


def test_ends_once_at_its_deadline() -> None:
    """A waiting order whose time is up ends then, and is not given to a supplier that comes."""
    market = Market()
    market.order("a", deadline_s=2.0)
    assert market.ledger.wake_at(market.now) == 1.0  # the next beat
    assert market.after(1.75) == []
    assert market.ledger.wake_at(market.now) == 2.0
    assert market.after(0.25) == [failed("a", "deadline")]
    assert market.after(9.0) == []
    assert market.supplier("s") == []
    assert market.outcomes == {"failed": 1}


def test_ends_once_when_its_deadline_passes_at_a_supplier() -> None:
    """An order in work at its deadline may still succeed, and is not tried again if it fails."""
    market = Market()
    market.supplier("s", credit=2)
    market.order("good", "bad", deadline_s=2.0)
    assert market.after(2.0) == []
    assert len(ends(market.done("s", "good"))) == 1
    (end,) = ends(market.fail("s", "bad"))
    assert isinstance(end, ev.Fail)
    assert end.reason == "deadline"
    assert market.outcomes == {"fulfilled": 1, "failed": 1}


def test_ends_once_with_two_clients_that_use_the_same_id() -> None:
    """Order ids are a client's own: each of two orders ``a`` goes to who asked for it."""
    market = Market()
    market.client("other")
    market.supplier("s", credit=2)
    market.order("a", client="client")
    market.order("a", client="other")
    results = [Result("a", 2, nbytes=8), Result("a", 1, nbytes=8)]
    effects = market.apply(ev.Finished(b"s", results))
    assert effects == [
        ev.Fulfil(b"other", 2, Delivery("a", 2, 8, 0)),
        ev.Fulfil(b"client", 2, Delivery("a", 1, 8, 0)),
    ]


@pytest.mark.parametrize(
    ("session", "order_id", "lease"),
    [(b"thief", "a", 1), (b"s", "a", 2), (b"s", "b", 1), (b"nobody", "a", 1)],
    ids=["another's lease", "no such lease", "another order", "no such supplier"],
)
def test_ends_once_and_only_by_who_holds_it(session: bytes, order_id: str, lease: int) -> None:
    """A DONE counts if session, order and lease are the ledger's, and changes nothing else."""
    market = Market()
    market.supplier("s")
    market.order("a")
    market.supplier("thief", "something else")
    assert market.apply(ev.Finished(session, [Result(order_id, lease, nbytes=8)])) == []
    assert market.holds("s") == ["a"]
    assert market.outcomes == {}


def test_ends_once_and_never_while_it_waits() -> None:
    """A version-1 DONE for an order that its sender does not hold is refused."""
    market = Market()
    market.client("old", version=1)
    market.join("s", version=1)
    market.order("a", client="old")
    assert refusals(market.v1_done("s", "a")) == [("unknown_order", [])]
    assert given(market.ready("s")) == [("s", "a")]
    assert len(ends(market.v1_done("s", "a"))) == 1
    assert refusals(market.v1_done("s", "a")) == [("unknown_order", [])]


def test_ends_once_though_its_supplier_was_lost_and_answers_late() -> None:
    """Who was lost holds nothing any more: a late DONE is neither success nor failure."""
    market = Market()
    market.supplier("s")
    market.order("a")
    market.disconnected("s")
    assert market.after(0.5) == [ev.Dismiss(b"s", "gone"), ev.Lose(b"client", "a", 1)]
    market.join("s")
    assert market.apply(ev.Finished(b"s", [Result("a", 1, nbytes=8)])) == []
    assert market.outcomes == {}
    assert market.move("a", "a fresh slot") == []
    assert given(market.ready("s")) == [("s", "a")]


def test_ends_once_and_a_product_too_large_for_its_slot_is_no_success() -> None:
    market = Market(max_order_attempts=1)
    market.supplier("s")
    market.order("a", nbytes=64)
    (end,) = ends(market.apply(ev.Finished(b"s", [Result("a", 1, nbytes=65)])))
    assert end == ev.Fail(
        b"client",
        2,
        "a",
        "attempts",
        [Attempt("s", "ProductTooLarge", "65 bytes were reported for a slot of 64")],
    )


# --- 2. credit_is_kept ------------------------------------------------------------------


def test_credit_is_kept() -> None:
    """A supplier holds at most its credit, and a DONE gives back as much as it answers."""
    market = Market()
    market.supplier("s", credit=2)
    assert given(market.order("a", "b", "c", "d")) == [("s", "a"), ("s", "b")]
    assert given(market.done("s", "a")) == [("s", "c")]
    assert given(market.done("s", "b", "c")) == [("s", "d")]
    assert market.holds("s") == ["d"]


def test_credit_is_kept_at_one_unless_more_is_asked_for() -> None:
    market = Market()
    market.supplier("s")
    assert given(market.order("a", "b")) == [("s", "a")]


def test_credit_is_kept_until_ready_is_said() -> None:
    """HELLO alone asks for nothing."""
    market = Market()
    market.order("a")
    assert market.supplier("s", ready=False) == []
    assert given(market.ready("s")) == [("s", "a")]


def test_credit_is_kept_when_ready_is_said_again() -> None:
    """READY states a fact: said three times, it is no more credit than said once."""
    market = Market()
    market.supplier("s", credit=2)
    assert given(market.order("a", "b", "c", "d")) == [("s", "a"), ("s", "b")]
    assert market.ready("s") == []
    assert market.ready("s") == []
    assert market.holds("s") == ["a", "b"]


def test_credit_is_kept_when_it_shrinks() -> None:
    """A supplier that comes back with less credit gets nothing until it holds less than that."""
    market = Market()
    market.supplier("s", credit=4)
    market.order("a", "b", "c", "d", "e", "f")
    market.join("s", credit=2, holds=[1, 2, 3, 4])
    assert given(market.ready("s")) == []
    assert given(market.done("s", "a")) == []
    assert given(market.done("s", "b")) == []
    assert given(market.done("s", "c")) == [("s", "e")]
    assert market.holds("s") == ["d", "e"]


def test_credit_is_kept_by_orders_of_clients_that_left() -> None:
    """What a supplier works on is its credit, though nobody waits for it any more."""
    market = Market()
    market.client("other")
    market.supplier("s")
    market.order("a")
    market.left("client")
    assert given(market.order("b", client="other")) == []
    assert given(market.apply(ev.Finished(b"s", [Result("a", 1, nbytes=8)]))) == [("s", "b")]


def test_credit_is_kept_in_version_1_by_asking_each_time() -> None:
    """A version-1 supplier gets one order for each READY."""
    market = Market()
    market.client("old", version=1)
    market.join("s", version=1)
    market.order("a", "b", client="old")
    assert given(market.ready("s")) == [("s", "a")]
    assert given(market.ready("s")) == []
    assert given(market.v1_done("s", "a")) == []
    assert given(market.ready("s")) == [("s", "b")]


# --- 3. oldest_first --------------------------------------------------------------------


def test_oldest_first() -> None:
    """Over all products and clients; a product that is always on order starves no other."""
    market = Market()
    market.client("other")
    market.order("a1", "a2", product="busy")
    market.order("b1", product="rare", client="other")
    market.order("a3", product="busy")
    served = market.supplier("s")
    for placed in ("a4", "a5", "a6"):
        market.order(placed, product="busy")
        served += given(market.done("s", served[-1][1]))
    assert [order_id for _, order_id in served] == ["a1", "a2", "b1", "a3"]


def test_oldest_first_of_those_that_the_supplier_can_make() -> None:
    """What it cannot make does not stand in its way, however old."""
    market = Market()
    market.order("old", product="layer_2")
    market.order("new", product="layer_1")
    assert market.supplier("s", "layer_1", r"other_\d+") == [("s", "new")]
    assert market.supplier("t", r"layer_\d") == [("t", "old")]


def test_oldest_first_within_a_priority() -> None:
    """Higher priorities go first, over all products; within one, the oldest."""
    market = Market()
    market.order("low", product="a", priority=-1)
    market.order("first", product="b")
    market.order("second", product="a")
    market.order("high", product="c", priority=2**31 - 1)
    market.supplier("s", credit=4, ready=False)
    assert given(market.ready("s")) == [
        ("s", "high"),
        ("s", "first"),
        ("s", "second"),
        ("s", "low"),
    ]


def test_oldest_first_but_one_that_comes_back_goes_before_them() -> None:
    """Not before a higher priority, though."""
    market = Market()
    market.supplier("s")
    market.order("back", product="a")
    market.order("old", product="b")
    market.order("urgent", product="c", priority=1)
    assert given(market.left("s")) == []
    market.order("older than none", product="a")
    assert market.supplier("t", credit=4) == [
        ("t", "urgent"),
        ("t", "back"),
        ("t", "old"),
        ("t", "older than none"),
    ]


def test_oldest_first_for_who_joins_a_class_that_could_not_take_the_oldest() -> None:
    """All of a class had failed an order that came back, so it was not told; one that joins is."""
    market = Market()
    market.supplier("bad", ".*", credit=2)
    market.order("a", "x")
    market.supplier("bad", ".*", credit=1, holds=[1, 2])
    market.fail("bad", "a")  # waits: nobody else is there, and its own supplier is busy with x
    market.supplier("other", "[pq]", ready=False)
    market.supplier("bad", ".*", credit=2, holds=[2])
    assert given(market.order("h", priority=1)) == [("bad", "h")]
    market.supplier("bad", ".*", credit=1, holds=[2, 3])
    market.fail("bad", "h")  # comes before a; and bad, still busy, is all there is of its class
    market.order("m", priority=1)
    assert market.supplier("new", ".*") == [("new", "h")]


def test_oldest_first_in_a_class_that_is_new() -> None:
    """A pattern list that nobody had, over orders that wait in other company: oldest first."""
    market = Market()
    market.supplier("x", "x.*", ready=False)
    market.supplier("y", "y.*", ready=False)
    for i, product in enumerate(["y1", "x1", "z1", "x2", "y1", "z2"]):
        market.order(str(i), product=product)
    served = market.supplier("s", "[xyz]1", credit=6)
    assert [order_id for _, order_id in served] == ["0", "1", "2", "4"]
    assert market.supplier("t", ".*2", credit=6) == [("t", "3"), ("t", "5")]


def test_oldest_first_when_a_pattern_list_is_forgotten() -> None:
    """Orders that were kept apart by it, and no more are, go in their old order all the same."""
    market = Market(max_idle_classes=0)
    market.supplier("s", "[pqr]", credit=3, ready=False)
    market.supplier("to be forgotten", "p", ready=False)
    market.supplier("t", "r", ready=False)
    market.order("1", product="p")
    market.order("2", product="r")
    market.order("3", product="q")
    market.left("to be forgotten")
    assert given(market.ready("s")) == [("s", "1"), ("s", "2"), ("s", "3")]


def test_oldest_first_and_an_idle_supplier_is_given_it_at_once() -> None:
    """A supplier is never left ready while something waits that it may take."""
    market = Market()
    market.supplier("s", "a", credit=2)
    market.supplier("t", "b")
    assert given(market.order("1", product="a")) == [("s", "1")]
    assert given(market.order("2", product="b")) == [("t", "2")]
    assert given(market.order("3", product="b")) == []
    assert given(market.order("4", product="a")) == [("s", "4")]


def test_oldest_first_for_who_has_been_ready_longest() -> None:
    """Suppliers that could all take an order take turns, those of more credit too."""
    market = Market()
    for name in ("s", "t", "u"):
        market.supplier(name)
    turns = []
    for i in range(6):
        ((name, order_id),) = given(market.order(str(i)))
        turns.append(name)
        market.done(name, order_id)
    assert turns == ["s", "t", "u", "s", "t", "u"]
    market = Market()
    for name in ("s", "t", "u"):
        market.supplier(name, "[p]" if name == "u" else "p", credit=2)
    turns = [given(market.order(str(i)))[0][0] for i in range(6)]
    assert turns == ["s", "u", "t", "u", "s", "t"]


# --- 4. elsewhere_first -----------------------------------------------------------------


def test_elsewhere_first() -> None:
    """A failed order waits for another supplier, and its own goes on with others."""
    market = Market()
    market.supplier("bad")
    market.supplier("good")
    assert given(market.order("a", "b")) == [("bad", "a"), ("good", "b")]
    market.order("c", "d")
    assert given(market.fail("bad", "a")) == [("bad", "c")]
    assert given(market.done("good", "b")) == [("good", "a")]
    assert given(market.done("bad", "c")) == [("bad", "d")]
    assert ends(market.done("good", "a")) == [ev.Fulfil(b"client", 2, Delivery("a", 4, 8, 0))]


def test_elsewhere_first_while_the_other_is_away_or_silent() -> None:
    """Who may come back is waited for; when it is gone, its turn is over."""
    market = Market()
    market.supplier("bad")
    market.supplier("other", ready=False)
    market.order("a")
    assert given(market.fail("bad", "a")) == []
    market.disconnected("other")
    assert given(market.after(0.25)) == []
    assert given(market.after(0.25)) == [("bad", "a")]


@pytest.mark.parametrize("how", ["left", "drained", "changed"])
def test_elsewhere_first_until_nobody_else_is_left(how: str) -> None:
    """When the last supplier that might have done better goes, the order is tried again at once."""
    for max_idle_classes in (0, 1):
        market = Market(max_idle_classes=max_idle_classes)
        market.supplier("bad", ".*")
        market.supplier("other", "[pq]", ready=False)
        market.order("a")
        assert given(market.fail("bad", "a")) == []
        if how == "left":
            effects = market.left("other")
        elif how == "drained":
            effects = market.apply(ev.DrainAsked(b"client", "other"))
        else:
            effects = market.join("other", "nothing")
        assert given(effects) == [("bad", "a")]


def test_elsewhere_first_then_it_fails_with_all_that_was_said() -> None:
    """After five failures the client is told of each: who it was, and what it said."""
    market = Market()
    market.supplier("s")
    market.supplier("t")
    market.order("a")
    told: list[ev.Effect] = []
    for i in range(5):
        assert told == []
        name = "s" if market.holds("s") else "t"
        error = Fault("ValueError", f"failure {i}")
        result = Result("a", market.lease(name, "a"), success=False, error=error)
        told = ends(market.apply(ev.Finished(name.encode(), [result])))
    (end,) = told
    assert isinstance(end, ev.Fail)
    assert (end.order_id, end.reason, end.lease) == ("a", "attempts", 0)
    assert [attempt.supplier for attempt in end.attempts[:2]] == ["s", "t"]
    assert [(attempt.type, attempt.message) for attempt in end.attempts] == [
        ("ValueError", f"failure {i}") for i in range(5)
    ]
    assert market.outcomes == {"failed": 1}


def test_elsewhere_first_and_losses_are_counted_apart() -> None:
    """An order that kills its suppliers ends at the third, however few have failed it."""
    market = Market()
    for i, name in enumerate(("r", "s", "t"), start=1):
        market.supplier(name)
        effects = market.order("poison") if i == 1 else market.move("poison", f"slot {i}")
        assert given(effects) == [(name, "poison")]
        effects = market.apply(ev.Dropped(name.encode(), "gone"))
        if i < 3:
            assert effects == [ev.Dismiss(name.encode(), "gone"), ev.Lose(b"client", "poison", i)]
    (end,) = ends(effects)
    assert isinstance(end, ev.Fail)
    assert (end.reason, end.lease) == ("lost", 3)
    assert [(a.supplier, a.type) for a in end.attempts] == [
        ("r", "Lost"),
        ("s", "Lost"),
        ("t", "Lost"),
    ]


def test_elsewhere_first_blames_only_what_was_worked_on() -> None:
    """Orders that never arrived, or were given back in good order, are neither failed nor lost."""
    market = Market(max_order_attempts=1, max_order_losses=1)
    market.supplier("s", credit=2)
    market.order("a", "b")
    market.disconnected("s")
    market.join("s", credit=2, holds=[2])
    assert given(market.ready("s")) == [("s", "a")]
    assert ends(market.left("s")) == []
    assert sorted(market.supplier("t", credit=2)) == [("t", "a"), ("t", "b")]


def test_elsewhere_first_but_not_for_ever() -> None:
    """Another that is registered and takes nothing is waited for so long; then it may come back."""
    market = Market(elsewhere_s=10, dead_s=3600, suspect_s=3600)
    market.supplier("bad")
    market.supplier("never ready", ready=False)
    market.order("a", "b")
    assert given(market.fail("bad", "a")) == [("bad", "b")]
    market.done("bad", "b")
    assert market.ledger.wake_at(9.75) == 10.0
    assert given(market.after(9.75)) == []
    assert given(market.after(0.25)) == [("bad", "a")]
    assert given(market.fail("bad", "a")) == []
    assert given(market.after(10)) == [("bad", "a")]
    assert ends(market.done("bad", "a")) == [ev.Fulfil(b"client", 2, Delivery("a", 4, 8, 0))]


def test_elsewhere_first_but_not_for_ever_and_then_it_fails() -> None:
    """Each try counts, whoever made it, and the deadline goes on meanwhile."""
    market = Market(elsewhere_s=10, dead_s=3600, suspect_s=3600, max_order_attempts=3)
    market.supplier("bad")
    market.supplier("busy")
    market.order("a", "held by busy")
    market.order("b", deadline_s=5)
    market.fail("bad", "a")
    market.fail("bad", "b")
    (end,) = ends(market.after(5))
    assert isinstance(end, ev.Fail)
    assert (end.order_id, end.reason) == ("b", "deadline")
    assert given(market.after(5)) == [("bad", "a")]
    market.fail("bad", "a")
    assert given(market.after(10)) == [("bad", "a")]
    (end,) = ends(market.fail("bad", "a"))
    assert isinstance(end, ev.Fail)
    assert (end.reason, [a.supplier for a in end.attempts]) == ("attempts", ["bad"] * 3)


def test_elsewhere_first_and_the_other_may_have_it_while_it_waits_for_anybody() -> None:
    """After the wait it is anybody's, so that whoever is ready first gets it, as the first."""
    market = Market(elsewhere_s=10, dead_s=3600, suspect_s=3600)
    market.supplier("bad")
    market.supplier("other")
    market.order("a", "o1", "b1", "new")
    assert given(market.fail("bad", "a")) == [("bad", "b1")]
    assert given(market.after(10)) == []
    assert given(market.done("other", "o1")) == [("other", "a")]
    assert given(market.fail("other", "a")) == [("other", "new")]
    assert given(market.done("bad", "b1")) == [("bad", "a")]


def test_elsewhere_first_and_who_began_to_wait_first_is_first_also_at_one_moment() -> None:
    """One that fails twice at one moment waits since the second time, behind what came between."""
    market = Market(elsewhere_s=10, dead_s=3600, suspect_s=3600)
    market.client("old", version=1)
    for name in ("one", "two", "never ready"):
        market.join(name, version=1)
    market.order("a", "b", client="old")
    assert given(market.ready("one")) == [("one", "a")]
    market.v1_done("one", "a", success=False)
    assert given(market.ready("one")) == [("one", "b")]
    market.v1_done("one", "b", success=False)
    assert given(market.ready("two")) == [("two", "a")]
    market.v1_done("two", "a", success=False)
    assert given(market.after(10)) == []
    assert given(market.ready("one")) == [("one", "b")]
    assert given(market.ready("two")) == [("two", "a")]


def test_elsewhere_first_begins_anew_with_each_return() -> None:
    """An order that was parked meanwhile waits from when it goes on, and not for ever either."""
    market = Market(elsewhere_s=10, dead_s=3600, suspect_s=3600)
    market.supplier("bad")
    market.supplier("lost")
    market.supplier("never ready", ready=False)
    market.order("a", "l1")
    market.fail("bad", "a")
    assert given(market.done("lost", "l1")) == [("lost", "a")]
    market.after(9)
    market.apply(ev.Dropped(b"lost", "gone"))
    assert given(market.after(9)) == []
    assert given(market.move("a", "elsewhere")) == []
    assert given(market.after(9.75)) == []
    assert given(market.after(0.25)) == [("bad", "a")]


# --- 5. cancel_is_safe ------------------------------------------------------------------


def test_cancel_is_safe() -> None:
    """A cancelled order is never dispatched; the answer says what became of its slot."""
    market = Market()
    market.supplier("s")
    market.order("b")
    market.left("s")
    market.order("a")
    market.supplier("t", "q")
    market.order("c", product="q")

    assert answers(market.cancel("a")) == [{"untouched": ["a"]}]
    assert answers(market.cancel("b")) == [{"touched": ["b"]}]
    assert answers(market.cancel("c")) == [{"held": ["c"]}]
    assert answers(market.cancel("c")) == [{"held": ["c"]}]
    assert refusals(market.cancel("b")) == [("unknown_order", [])]
    assert market.supplier("u", credit=9) == []


@pytest.mark.parametrize(
    ("event", "end"),
    [
        (ev.Finished(b"s", [Result("a", 1, nbytes=8)]), "fulfilled"),
        (ev.Finished(b"s", [Result("a", 1, success=False)]), "cancelled"),
        (ev.Left(b"s"), "cancelled"),
        (ev.SupplierJoined(session=b"s", patterns=["p"]), "cancelled"),
        (ev.Dropped(b"s", "gone"), "lost"),
    ],
    ids=["done", "failed", "goodbye", "never arrived", "lost"],
)
def test_cancel_is_safe_while_a_supplier_has_it(event: ev.Event, end: str) -> None:
    """Its last push says when the slot is free; another supplier that is ready never gets it."""
    market = Market()
    market.supplier("s")
    market.order("a")
    market.supplier("t")
    market.cancel("a")
    effects = market.apply(event)
    assert given(effects) == []
    (told,) = ends(effects)
    if end == "fulfilled":
        assert told == ev.Fulfil(b"client", 2, Delivery("a", 1, 8, 0))
    else:
        assert isinstance(told, ev.Fail)
        # Of all ends, only that of a lost supplier leaves a slot that must not be used again.
        assert (told.reason, told.lease) == (end, 1 if end == "lost" else 0)
    assert market.ledger.open_orders == 0


def test_cancel_is_safe_for_all_at_once() -> None:
    """DISCARD leaves nothing behind: dead orders take no room, and later ones go as if alone."""
    market = Market(max_open_orders=16)
    ids = [str(i) for i in range(16)]
    for _ in range(50):
        assert refusals(market.order(*ids)) == []
        assert answers(market.apply(ev.Discarded(b"client"))) == [{"untouched": ids}]
    (lane,) = market.ledger.queue._lanes.values()
    assert len(lane.heap) < 100
    market.order("new")
    assert market.supplier("s", credit=16) == [("s", "new")]
    assert market.outcomes == {"cancelled": 800}


def test_cancel_is_safe_in_version_1() -> None:
    """An order that was dispatched is not cancelled, and DISCARD names what was waiting."""
    market = Market()
    market.client("old", version=1)
    market.join("s", version=1)
    market.ready("s")
    market.order("a", "b", client="old")
    assert refusals(market.cancel("a", client="old")) == [("not_dispatchable", [])]
    assert answers(market.apply(ev.Discarded(b"old"))) == [{"untouched": ["b"], "held": ["a"]}]
    assert len(ends(market.v1_done("s", "a"))) == 1


def test_cancel_is_safe_for_another_clients_order() -> None:
    """Nobody cancels what is not theirs."""
    market = Market()
    market.client("other")
    market.order("a")
    assert refusals(market.cancel("a", client="other")) == [("unknown_order", [])]
    assert market.supplier("s") == [("s", "a")]


# --- 6. gone_is_gone --------------------------------------------------------------------


@pytest.mark.parametrize("how", ["left", "silent", "away", "dropped"])
def test_gone_is_gone(how: str) -> None:
    """A client that left or died has no orders: none is dispatched, none of its ends is told."""
    market = Market()
    market.supplier("s")
    market.order("held", "waiting")
    if how == "left":
        effects = market.left("client")
    elif how == "dropped":
        effects = market.apply(ev.Dropped(b"client", "slow"))
    elif how == "silent":
        market.now = 29.75
        market.heard("s")
        effects = market.after(0.25)
    else:
        market.disconnected("client")
        for _ in range(3):
            market.heard("s")
            assert market.after(3.0) == []
        market.heard("s")
        effects = market.after(1.0)
    reason = {"away": "gone", "dropped": "slow"}.get(how, how)
    assert effects == [ev.Dismiss(b"client", reason)]
    assert market.ledger.open_orders == 0
    assert market.apply(ev.Finished(b"s", [Result("held", 1, nbytes=8)])) == []
    assert market.outcomes == {"cancelled": 2}
    assert market.client("client") == [ev.Welcome(b"client", False, [])]


def test_gone_is_gone_for_a_supplier_that_says_goodbye() -> None:
    """What it held goes on at once, in the same slot: it will not write there any more."""
    market = Market()
    market.supplier("s")
    market.order("a", nbytes=64, input=Region("in", 4, 2))
    market.supplier("t")
    assert market.left("s") == [
        ev.Dismiss(b"s", "left"),
        ev.Assign(b"t", 2, [WorkItem("a", 2, "p", "slot of a", 0, 64, Region("in", 4, 2))]),
    ]
    assert list(market.ledger.suppliers) == [b"t"]


def test_gone_is_gone_for_a_supplier_that_died() -> None:
    """What it held is parked, and goes on in a slot that it was not told of."""
    market = Market()
    market.supplier("s")
    market.supplier("t", "nothing")
    market.order("a")
    market.order("b")
    assert market.apply(ev.Dropped(b"s", "gone")) == [
        ev.Dismiss(b"s", "gone"),
        ev.Lose(b"client", "a", 1),
    ]
    assert market.supplier("u") == [("u", "b")]
    assert refusals(market.move("b", "elsewhere")) == [("unknown_order", [])]
    market.move("a", "elsewhere")
    market.order("c")
    (effect,) = market.done("u", "b")[1:]
    assert effect == ev.Assign(b"u", 2, [WorkItem("a", 3, "p", "elsewhere", 0, 64)])


def test_gone_is_gone_when_a_version_1_connection_closes() -> None:
    """It cannot come back as the same: its orders end, or go to the next supplier."""
    market = Market()
    market.client("old", version=1)
    for name in ("s", "t"):
        market.join(name, version=1)
        market.ready(name)
    assert given(market.order("a", client="old")) == [("s", "a")]
    assert market.disconnected("s")[0] == ev.Dismiss(b"s", "gone")
    assert market.holds("t") == ["a"]
    assert market.disconnected("old") == [ev.Dismiss(b"old", "gone")]
    assert market.ledger.open_orders == 0


def test_gone_is_gone_but_slow_is_not_dead() -> None:
    """Silent for five seconds, a supplier gets no new work; heard of again, it does."""
    market = Market()
    market.supplier("s", credit=2)
    market.order("a")
    market.heard("client")
    assert market.after(4.75) == []
    assert given(market.order("b")) == [("s", "b")]
    market.done("s", "b")
    assert market.after(5.0) == []
    assert given(market.order("c")) == []
    assert market.holds("s") == ["a"]
    assert given(market.heard("s")) == [("s", "c")]
    market.now += 29.75
    market.heard("client")
    assert market.after(0.0) == []
    assert market.after(0.25)[0] == ev.Dismiss(b"s", "silent")


def test_gone_is_gone_but_not_while_the_broker_stood_still() -> None:
    """What it slept through was nobody's silence; what came before and comes after it was."""
    market = Market()
    market.supplier("s")
    market.supplier("away", "nothing")
    market.disconnected("away")
    market.after(0.25)
    market.now = 100.25
    assert market.apply(ev.Paused(100.0)) == []
    assert market.after(0.0) == []
    assert given(market.order("a")) == [("s", "a")]
    assert market.after(0.25) == [ev.Dismiss(b"away", "gone")]
    market.heard("client")
    assert market.after(29.5)[0] == ev.Dismiss(b"s", "silent")


def test_gone_is_gone_after_a_version_1_time_out() -> None:
    """A version-1 supplier that holds an order too long loses it, and may ask for another."""
    market = Market()
    market.client("old", version=1)
    market.join("slow", version=1)
    market.ready("slow")
    market.order("a", client="old")
    market.join("t", version=1)
    market.ready("t")
    market.left("client")
    assert market.after(59.75) == []
    assert given(market.after(0.25)) == [("t", "a")]
    assert refusals(market.v1_done("slow", "a")) == [("unknown_order", [])]
    market.order("b", client="old")
    assert given(market.ready("slow")) == [("slow", "b")]


def test_gone_is_gone_for_who_falls_silent_with_the_others_end() -> None:
    """An order that waited for a supplier now lost is not given to one silent too long itself."""
    market = Market()
    market.supplier("bad")
    market.supplier("other", ready=False)
    market.order("a")
    market.fail("bad", "a")
    market.now = 4.75
    market.disconnected("other")
    assert market.after(0.5) == [ev.Dismiss(b"other", "gone")]
    assert given(market.heard("bad")) == [("bad", "a")]


def test_gone_is_gone_for_an_order_that_ends_with_its_suppliers_wait() -> None:
    """In the step in which its time is up, an order ends before anything is given out."""
    market = Market()
    market.supplier("bad")
    market.supplier("other", ready=False)
    market.order("a", deadline_s=1.0)
    market.fail("bad", "a")
    market.now = 0.5
    market.disconnected("other")
    assert [type(effect) for effect in market.after(0.5)] == [ev.Fail, ev.Dismiss]


# --- 8. retry_is_safe -------------------------------------------------------------------


def test_retry_is_safe() -> None:
    """An id that is open is the same order, in every state; one that ended may be used again."""
    market = Market()
    market.order("a")
    assert market.order("a", product="other", priority=9) == []
    assert market.supplier("s") == [("s", "a")]
    assert market.order("a", "a") == []
    market.apply(ev.Dropped(b"s", "gone"))
    assert market.order("a") == []
    market.move("a", "elsewhere")
    assert market.supplier("t") == [("t", "a")]
    market.done("t", "a")
    assert given(market.order("a")) == [("t", "a")]
    assert market.outcomes == {"fulfilled": 1}
    assert market.ledger.figures.placed == 2


def test_retry_is_safe_for_a_client_that_comes_back() -> None:
    """It hears which of its orders are missing; what it names no more is cancelled."""
    market = Market()
    market.supplier("s")
    market.order("held", "named", "dropped")
    market.disconnected("client")
    assert market.client("client", open_orders=["held", "named", "lost on the way"]) == [
        ev.Welcome(b"client", True, ["lost on the way"])
    ]
    assert given(market.order("named", "lost on the way")) == []
    assert market.outcomes == {"cancelled": 1}
    assert given(market.done("s", "held")) == [("s", "named")]
    assert given(market.done("s", "named")) == [("s", "lost on the way")]
    assert market.after(20.0) == []


def test_retry_is_safe_for_an_order_in_work_that_is_named_no_more() -> None:
    """It is with a supplier, so its last push is still to come; nobody else is given it."""
    market = Market()
    market.supplier("s")
    market.order("a")
    market.client("client", open_orders=[])
    assert market.ledger.open_orders == 1
    assert ends(market.fail("s", "a")) == [
        ev.Fail(b"client", 2, "a", "cancelled", [Attempt("s", "Failed", "")])
    ]


def test_retry_is_safe_for_a_supplier_that_comes_back() -> None:
    """It goes on with the leases that it holds; one that never reached it goes to the next."""
    market = Market()
    market.supplier("s", credit=2)
    market.order("a", "b")
    market.disconnected("s")
    assert given(market.order("c")) == []
    market.supplier("t")
    assert market.holds("t") == ["c"]
    effects = market.join("s", credit=2, holds=[2, 99])
    assert effects == [ev.Welcome(b"s", True, ["99"])]
    assert given(market.done("t", "c")) == [("t", "a")]
    assert ends(market.done("s", "b")) == [ev.Fulfil(b"client", 2, Delivery("b", 2, 8, 0))]


def test_retry_is_safe_after_a_loss_for_who_was_lost() -> None:
    """A supplier that was declared lost and says HELLO is new, and its leases are no more."""
    market = Market()
    market.supplier("s")
    market.order("a")
    market.apply(ev.Dropped(b"s", "silent"))
    assert market.join("s", holds=[1]) == [ev.Welcome(b"s", False, ["1"])]
    assert market.holds("s") == []


# --- suppliers that come, change and go -------------------------------------------------


def test_an_exclusive_pattern_belongs_to_one_session() -> None:
    market = Market()
    market.supplier("s", "a", "b", exclusive=True)
    assert refusals(market.join("t", "b", "c")) == [("pattern_taken", [])]
    assert market.join("s", "a", "b", exclusive=True) == [ev.Welcome(b"s", True, [])]
    assert b"t" not in market.ledger.suppliers
    market.left("s")
    assert market.join("t", "b", "c") == [ev.Welcome(b"t", False, [])]
    assert refusals(market.join("s", "b", exclusive=True)) == [("pattern_taken", [])]


def test_an_exclusive_pattern_is_one_by_the_last_hello() -> None:
    """A supplier that comes back with the same patterns may ask for them alone, or give in."""
    market = Market()
    market.join("s", "a")
    market.join("s", "a", exclusive=True)
    assert refusals(market.join("t", "a")) == [("pattern_taken", [])]
    market.join("s", "a")
    assert refusals(market.join("t", "a")) == []


def test_a_late_hello_of_an_earlier_connection_changes_nothing() -> None:
    """By what it says of leases, an order that is being made would be given to another as well."""
    market = Market()
    market.join("s", seq=3)
    market.ready("s")
    market.order("a")
    market.supplier("t")
    assert refusals(market.join("s", "something else", seq=2, holds=[])) == [("stale_hello", [])]
    assert market.holds("s") == ["a"]
    assert len(ends(market.done("s", "a"))) == 1
    assert market.join("s", seq=3) == [ev.Welcome(b"s", True, [])]
    market.left("s")
    assert market.join("s", seq=1) == [ev.Welcome(b"s", False, [])]


def test_a_late_hello_of_a_client_cancels_nothing() -> None:
    """It names the orders of then, and those of now would be taken for forgotten."""
    market = Market()
    market.client("other", seq=7)
    market.order("a", client="other")
    assert refusals(market.client("other", seq=6, open_orders=[])) == [("stale_hello", [])]
    assert market.supplier("s") == [("s", "a")]
    assert market.client("other", seq=8, open_orders=["a"]) == [ev.Welcome(b"other", True, [])]


def test_a_hello_that_is_refused_has_overtaken_others_all_the_same() -> None:
    market = Market()
    market.join("s", seq=1)
    assert refusals(market.join("s", "(?=p)p", seq=3)) == [("pattern_refused", [])]
    assert refusals(market.join("s", seq=2)) == [("stale_hello", [])]


def test_a_clients_contract_is_its_sessions() -> None:
    """Its orders wait under it. Another needs another session; the same is no change."""
    market = Market()
    market.client("other", contract="x")
    market.order("a", client="other")
    for contract in ("y", None):
        effects = market.client("other", contract=contract, open_orders=[])
        assert refusals(effects) == [("contract_mismatch", [])]
        assert isinstance(effects[0], ev.Refuse)
        assert f"'x' and cannot go on under {contract!r}" in effects[0].error
    assert market.client("other", contract="x", open_orders=["a"]) == [
        ev.Welcome(b"other", True, [])
    ]
    assert market.ledger.open_orders == 1
    market.left("other")
    assert market.client("other", contract="y") == [ev.Welcome(b"other", False, [])]


def test_a_hello_that_is_refused_changes_nothing() -> None:
    market = Market()
    market.supplier("s", "p")
    (refusal,) = market.join("s", "(?=p)p")
    assert isinstance(refusal, ev.Refuse)
    assert refusal.code == "pattern_refused"
    assert "(?=p)p" in refusal.error
    assert given(market.order("a")) == [("s", "a")]


@pytest.mark.parametrize("max_idle_classes", [0, 1])
def test_a_supplier_may_change_its_patterns(max_idle_classes: int) -> None:
    """It is given what it makes now, though hardly any pattern list is remembered."""
    market = Market(max_idle_classes=max_idle_classes)
    market.order("a", product="a")
    market.order("b", product="b")
    assert market.supplier("s", "a") == [("s", "a")]
    for patterns in ("c", "a", "b"):
        market.join("s", patterns, holds=[1])
    assert given(market.ready("s")) == []
    assert given(market.done("s", "a")) == [("s", "b")]
    assert len(market.ledger.queue._classes) <= 1 + max_idle_classes


def test_drain() -> None:
    """A drained supplier finishes what it holds, gets no more, and may say GOODBYE."""
    market = Market()
    market.supplier("s", credit=2)
    market.order("a")
    assert market.apply(ev.DrainAsked(b"client", "s", 4)) == [
        ev.Terminate(b"s"),
        ev.Answer(session=b"client", seq=4, terminated=1),
    ]
    assert given(market.order("b")) == []
    assert market.done("s", "a") == [ev.Fulfil(b"client", 2, Delivery("a", 1, 8, 0))]
    assert market.apply(ev.DrainAsked(b"client", None, 5)) == [
        ev.Answer(session=b"client", seq=5, terminated=0)
    ]


def test_drain_reaches_a_supplier_that_was_away() -> None:
    """It was not there to be told, so it is told when it comes back."""
    market = Market()
    market.supplier("s")
    market.disconnected("s")
    market.apply(ev.DrainAsked(b"client"))
    assert market.join("s") == [ev.Welcome(b"s", True, []), ev.Terminate(b"s")]


def test_a_supplier_that_drains_gives_back_what_it_has_not_begun() -> None:
    """Others have it at once, in the same slot, before all that waits; what it has begun counts."""
    market = Market(max_order_attempts=1, max_order_losses=1)
    market.supplier("s", credit=3)
    market.order("begun", "b", "c")
    market.supplier("t", ready=False)
    market.order("new")
    assert market.drain("s", "b", "c") == []
    assert given(market.order("newer")) == []
    assert given(market.ready("s")) == []
    assert market.holds("s") == ["begun"]
    market.supplier("u", credit=4)
    assert market.holds("u") == ["b", "c", "new", "newer"]
    assert ends(market.done("s", "begun")) == [ev.Fulfil(b"client", 2, Delivery("begun", 1, 8, 0))]
    assert market.left("s") == [ev.Dismiss(b"s", "left")]
    assert market.outcomes == {"fulfilled": 1}


def test_a_supplier_that_drains_and_another_that_waits() -> None:
    """It is given the orders in the step in which they come back."""
    market = Market()
    market.supplier("s", credit=2)
    market.order("begun", "b")
    market.supplier("t")
    assert market.drain("s", "b") == [
        ev.Assign(b"t", 2, [WorkItem("b", 3, "p", "slot of b", 0, 64)]),
    ]
    assert market.drain("s") == []


def test_a_supplier_that_drains_while_it_is_given_an_order() -> None:
    """Its DRAIN and the WORK cross: what it never saw stays with it until it gives that back, too.

    A lease that is not its own, or was given back before, changes nothing.
    """
    market = Market()
    market.supplier("s", credit=2)
    market.supplier("t")
    market.order("begun", "of t")
    market.order("crossing")
    lease = market.lease("s", "crossing")
    assert market.drain("s") == []
    assert market.holds("s") == ["begun", "crossing"]
    market.done("t", "of t")
    assert given(market.drain("s", "crossing")) == [("t", "crossing")]
    assert market.apply(ev.Drained(b"s", [lease, market.lease("t", "crossing"), 99])) == []
    assert market.ledger.figures.stale_answers == 3
    assert market.holds("t") == ["crossing"]


def test_a_supplier_that_drains_stays_drained_until_it_leaves() -> None:
    """Also when it comes back on another connection, and was silent before it said so."""
    market = Market(suspect_s=1)
    market.supplier("s", credit=2)
    market.order("a")
    market.after(1)
    market.order("b")
    assert given(market.drain("s")) == []
    assert market.join("s", credit=2, holds=[1]) == [
        ev.Welcome(b"s", True, []),
        ev.Terminate(b"s"),
    ]
    assert given(market.ready("s")) == []
    market.left("s")
    assert market.supplier("s") == [("s", "a")]


def test_a_supplier_that_drains_is_not_waited_for() -> None:
    """An order that another failed goes back to that one, as when this one had left."""
    market = Market()
    market.supplier("bad")
    market.supplier("other", ready=False)
    market.order("a")
    assert given(market.fail("bad", "a")) == []
    assert given(market.drain("other")) == [("bad", "a")]


def test_a_supplier_that_drains_and_gives_back_what_was_cancelled() -> None:
    """Nobody wrote there, and nobody will: the slot is free."""
    market = Market()
    market.supplier("s", credit=2)
    market.order("begun", "a")
    assert answers(market.cancel("a")) == [{"held": ["a"]}]
    assert market.drain("s", "a") == [failed("a", "cancelled")]
    market.left("client")
    assert market.drain("s", "begun") == []
    assert market.outcomes == {"cancelled": 2}


def test_drain_may_be_forbidden() -> None:
    market = Market(allow_drain=False)
    market.supplier("s")
    assert refusals(market.apply(ev.DrainAsked(b"client"))) == [("forbidden", [])]
    assert given(market.order("a")) == [("s", "a")]


def test_versions_do_not_mix() -> None:
    """Orders of one version go to suppliers of that version."""
    market = Market()
    market.client("old", version=1)
    market.order("new order")
    market.order("old order", client="old")
    market.join("old supplier", version=1)
    assert given(market.ready("old supplier")) == [("old supplier", "old order")]
    assert market.supplier("new supplier", credit=2) == [("new supplier", "new order")]


def test_contracts() -> None:
    """A pattern under a contract serves clients of that contract, and those that name none."""
    market = Market()
    market.client("x", contract="x")
    market.client("y", contract="y")
    market.supplier("s", "p", credit=9, contracts={"p": "x"})
    assert given(market.order("a", client="x")) == [("s", "a")]
    assert given(market.order("b")) == [("s", "b")]
    assert refusals(market.order("c", client="y")) == [("contract_mismatch", ["c"])]
    assert given(market.order("d", client="y", product="unknown")) == []
    assert market.supplier("t", "p", contracts={"p": "y"}) == []
    assert given(market.order("c", client="y")) == [("t", "c")]


def test_open_orders_are_limited() -> None:
    """Of a client and in all; the rest of a list is refused by name, and may be tried again."""
    market = Market(max_open_orders=2, max_open_orders_total=3)
    market.client("other")
    assert refusals(market.order("a", "b", "c", "d")) == [("too_many_orders", ["c", "d"])]
    assert refusals(market.order("a", "b", client="other")) == [("too_many_orders", ["b"])]
    market.cancel("a")
    assert refusals(market.order("c")) == []
    assert market.ledger.open_orders == 3


def test_strangers_change_nothing() -> None:
    """An event about a session that there is not, or of the other side, is nobody's."""
    market = Market()
    market.supplier("s")
    for session in (b"stranger", b"s"):
        assert market.apply(ev.Placed(session, [order("a")])) == []
        assert market.apply(ev.Moved(session, "a", "", 0)) == []
        assert market.apply(ev.Cancelled(session, "a")) == []
        assert market.apply(ev.Discarded(session)) == []
        assert market.apply(ev.DrainAsked(session)) == []
    for session in (b"stranger", b"client"):
        assert market.apply(ev.Ready(session)) == []
        assert market.apply(ev.Finished(session, [])) == []
        assert market.heard(session.decode()) == []
    for event in (ev.Disconnected(b"stranger"), ev.Left(b"stranger"), ev.Dropped(b"stranger", "")):
        assert market.apply(event) == []
    assert market.ledger.open_orders == 0


# --- nothing grows ----------------------------------------------------------------------


def test_failures_leave_nothing_behind() -> None:
    """Suppliers that fail an order and go, over and over, cost no memory once they are gone."""
    market = Market(max_order_attempts=3)
    for i in range(200):
        market.supplier(f"s{i}")
        market.order("a", "b")
        market.fail(f"s{i}", *market.holds(f"s{i}"))
        market.apply(ev.Discarded(b"client"))
        market.left(f"s{i}")
    queue = market.ledger.queue
    assert len(queue._lanes) <= 1
    assert len(queue.products) == 1
    assert all(len(cls.lanes) <= 1 and len(cls.heap) == 0 for cls in queue._classes.values())


def test_products_are_remembered_within_a_limit() -> None:
    """A million names that were ordered once are not kept."""
    market = Market(max_products=16)
    market.supplier("s")
    for i in range(1000):
        market.order("a", product=f"p{i}")
        market.done("s", "a")
        assert len(market.ledger.queue.products) <= 16
    assert len(market.ledger.queue._signatures) == 1
    assert len(market.ledger.queue._lanes) <= 1


def test_deadlines_are_remembered_within_a_limit() -> None:
    """Those of orders that ended are let go, though none of them has passed."""
    market = Market()
    market.supplier("s")
    for _ in range(1000):
        market.order("a", deadline_s=1e6)
        market.done("s", "a")
    assert len(market.ledger._deadlines) < 100


def test_waits_for_others_are_remembered_within_a_limit() -> None:
    """Those of orders that went on are let go, though none of them is over."""
    market = Market(elsewhere_s=1e6, max_order_attempts=10)
    market.supplier("bad")
    market.supplier("other", ready=False)
    for _ in range(1000):
        market.order("a")
        market.fail("bad", "a")
        market.cancel("a")
        assert len(market.ledger._patience) <= 67
    market.order("a")
    market.fail("bad", "a")
    for _ in range(1000):
        assert given(market.ready("other")) == [("other", "a")]
        market.join("other")  # without the order that was given to it, which so comes back
        assert len(market.ledger._patience) <= 67


def test_rising_priorities_do_not_fill_the_heaps() -> None:
    """Each order comes before all others, and no supplier takes any: classes are told of few."""
    market = Market()
    market.supplier("s", ready=False)
    for priority in range(10_000):
        market.order("a", priority=priority)
        market.cancel("a")
    (cls,) = market.ledger.queue.classes()
    assert len(cls.heap) < 40


# --- any market -------------------------------------------------------------------------


def test_every_invariant_in_markets_that_hypothesis_makes() -> None:
    """Whatever happens, in whatever order, the ledger does what its model allows."""
    run_state_machine_as_test(LedgerMachine, settings=CI)


@pytest.mark.parametrize("seed", range(30))
def test_every_invariant_in_a_long_random_market(seed: int) -> None:
    """As above, farther from the beginning."""
    walk(seed, 300)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_every_invariant_in_many_markets_that_hypothesis_makes() -> None:
    run_state_machine_as_test(LedgerMachine, settings=SOAK)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(1000, 1200))
def test_every_invariant_in_a_very_long_random_market(seed: int) -> None:
    walk(seed, 3000)
