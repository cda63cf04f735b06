"""Lines between living parties that are cut, stall, open halfway and are mended.

Nobody restarts here. A session outlives its connections: what was ordered stays ordered, what was
made is told again, and nothing is served twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.market_processes import (
    Market,
    Nursery,
    Party,
    Proxy,
    acquainted,
    held_by,
    names,
    served_by,
    until,
    until_held,
    until_more,
    until_progress,
)
from tests.integration.market_products import check_served

SILENCE_S = 0.6
"""How long clients and suppliers bear with a broker that says nothing."""

PATIENT: dict[str, Any] = {"beat_s": 0.1, "reconnect_grace_s": 20.0, "client_grace_s": 20.0}
"""A broker that waits for whoever it lost sight of."""


@pytest.fixture
def settings() -> dict[str, Any]:
    """The broker's; ``given_settings`` changes them for a test."""
    return PATIENT


def given_settings(**settings: Any) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("settings", [settings], ids=[""])


@pytest.fixture
def medium() -> str:
    """What clients have their products in."""
    return "shm"


@pytest.fixture
def market(nursery: Nursery, settings: dict[str, Any], medium: str) -> Iterator[Market]:
    with Market(nursery, medium=medium, **settings) as market:
        market.start_broker()
        yield market


@pytest.fixture
def front(market: Market) -> Proxy:
    """The clients' line."""
    return market.proxy(market.frontend)


@pytest.fixture
def back(market: Market) -> Proxy:
    """The suppliers' line."""
    return market.proxy(market.backend)


def lost(market: Market) -> int:
    """How many parties the broker gave up."""
    dropped: dict[str, int] = market.stats()["dropped"]
    return sum(count for reason, count in dropped.items() if reason != "left")


@pytest.mark.parametrize(
    ("medium", "reset"),
    [("shm", True), ("file", False), ("tcp", True)],
    ids=["shm-RST", "file-FIN", "tcp-RST"],
)
def test_lines_that_are_cut_again_and_again(
    market: Market, front: Proxy, back: Proxy, reset: bool
) -> None:
    """Sessions are taken up again, nobody has lost anything by it, and no connection is kept."""
    suppliers = [
        market.supplier(f"{name}:.*|[ab]/.*", name=name, backend=back.endpoint, credit=4)
        for name in "st"
    ]
    clients = [market.client(name=name, frontend=front.endpoint) for name in "ab"]
    first = [product for client in clients for product in acquainted(client, "s", "t")]
    for client, name in zip(clients, "ab", strict=True):
        client.ask("stream", products=names(name, 1000))
    for turn in range(1, 9):
        until_progress(50 * turn, *clients)
        if turn == 1:
            before = held_by(market.broker, *suppliers, *clients)
        for line in (front, back) if turn % 3 == 0 else (front,) if turn % 3 == 1 else (back,):
            # Until there was something to cut: those that were cut last are back by then.
            until(lambda: line.cut(reset=reset))  # noqa: B023
    until_progress(1002, *clients)
    check_served(served_by(*clients), [*first, *names("a", 1000), *names("b", 1000)])
    for client in clients:
        figures = client.ask("figures")
        assert figures["reconnects"] >= figures["resumed"] >= 1
        assert (figures["restarted"], figures["retired"], figures["corrupt"]) == (0, 0, 0)
    assert lost(market) == 0
    until_held(before, market.broker, *suppliers, *clients)


def test_a_line_that_is_cut_while_a_product_is_made(market: Market, back: Proxy) -> None:
    """The supplier comes back with the order in hand, and what it makes is served."""
    supplier = market.supplier(name="s", backend=back.endpoint)
    session = market.session_of("s")
    client = market.client()
    client.ask("order", products=["hold:p"])
    until(lambda: supplier.ask("calls"))
    back.cut()
    until_more(lambda: back.accepted, 1)
    market.until(lambda stats: stats["suppliers"]["suspect"] == 0)
    supplier.ask("release")
    assert client.ask("take", products=["hold:p"]) == [["hold:p", "s", 1]]
    assert market.session_of("s") == session
    assert client.ask("figures")["retired"] == lost(market) == 0


def test_a_product_that_is_done_while_the_line_is_down(market: Market, back: Proxy) -> None:
    """Its supplier says so when it is back."""
    supplier = market.supplier(name="s", backend=back.endpoint)
    client = market.client()
    client.ask("order", products=["hold:p", "q"])
    until(lambda: supplier.ask("calls"))
    back.refuse()
    supplier.ask("release")
    market.until(lambda stats: stats["suppliers"]["suspect"] == 1)
    back.mend()
    assert client.ask("take", products=["hold:p", "q"]) == [["hold:p", "s", 1], ["q", "s", 2]]


def test_what_ends_while_a_client_is_cut_off_is_told_when_it_is_back(
    market: Market, front: Proxy
) -> None:
    """Products as well as failures."""
    client = market.client(frontend=front.endpoint)
    supplier = market.supplier(name="s")
    client.ask("order", products=["hold:p", *names("p", 5), "raise:p"])
    until(lambda: supplier.ask("calls"))
    front.refuse()
    supplier.ask("release")
    market.until(lambda stats: stats["orders"]["open"] == 0)
    front.mend()
    client.ask("take", products=["hold:p", *names("p", 5)])
    assert client.ask("fail", product="raise:p")["reason"] == "attempts"
    figures = client.ask("figures")
    assert (figures["resumed"], figures["restarted"]) == (1, 0)
    check_served(served_by(client), ["hold:p", *names("p", 5)])


@given_settings(**PATIENT | {"reconnect_grace_s": 0.2})
def test_an_order_whose_supplier_is_lost_while_its_client_is_cut_off(
    market: Market, front: Proxy
) -> None:
    """It moves to another slot when the client is told, which is when it is back."""
    client = market.client(frontend=front.endpoint)
    doomed = market.supplier(name="doomed")
    client.ask("order", products=["hold:p"])
    until(lambda: doomed.ask("calls"))
    front.refuse()
    market.kill(doomed)
    market.until(lambda stats: stats["orders"]["parked"] == 1)
    market.supplier(name="next").ask("release")
    front.mend()
    assert client.ask("take", products=["hold:p"])[0][1] == "next"
    assert client.ask("figures")["retired"] == 1


@pytest.mark.parametrize("near", [True, False], ids=["both ways", "from the broker"])
def test_a_stalled_line(market: Market, front: Proxy, back: Proxy, near: bool) -> None:
    """No RST tells that nothing comes through: silence does, and other lines are made.

    What was held back on the old ones comes late, and means nothing any more.
    """
    for name in ("s", "t"):
        market.supplier(name=name, backend=back.endpoint, credit=4, silence_s=SILENCE_S)
    clients = [
        market.client(name=name, frontend=front.endpoint, silence_s=SILENCE_S) for name in "ab"
    ]
    for client, name in zip(clients, "ab", strict=True):
        client.ask("stream", products=names(name, 600))
    for turn, line in enumerate((front, back, front, back), 1):
        until_progress(80 * turn, *clients)
        before = line.accepted
        line.stall(near=near)
        until_more(lambda: line.accepted, before + 1)  # noqa: B023
        until_progress(80 * turn + 20, *clients)
        line.mend()
    until_progress(600, *clients)
    check_served(served_by(*clients), names("a", 600) + names("b", 600))
    assert [client.ask("figures")["corrupt"] for client in clients] == [0, 0]


@given_settings(**PATIENT | {"dead_s": 1.0})
def test_a_line_on_which_the_broker_hears_nothing(
    market: Market, front: Proxy, back: Proxy
) -> None:
    """Its own words still come through: it ends the sessions, and says so, and they begin anew."""
    market.supplier(name="s", backend=back.endpoint, silence_s=SILENCE_S)
    client = market.client(frontend=front.endpoint, silence_s=SILENCE_S)
    for turn, line in enumerate((front, back), 1):
        client.ask("stream", products=names(f"p{turn}", 100))
        until_progress(100 * turn - 90, client)
        line.stall(far=False)
        until(lambda: lost(market), lambda now, turn=turn: now >= turn)  # type: ignore[misc]
        until_progress(100 * turn, client)
        line.mend()
    check_served(served_by(client), names("p1", 100) + names("p2", 100))
    market.until(lambda stats: stats["suppliers"]["connected"] == 1)


def test_answers_that_were_held_back_on_an_old_line(market: Market, back: Proxy) -> None:
    """A DONE comes on the new line and, later, the same one on the old: it counts once."""
    supplier = market.supplier(name="s", backend=back.endpoint, silence_s=SILENCE_S)
    client = market.client()
    client.ask("order", products=["hold:p"])
    until(lambda: supplier.ask("calls"))
    back.stall()
    supplier.ask("release")
    assert client.ask("take", products=["hold:p"]) == [["hold:p", "s", 1]]
    client.ask("order", products=["q"])
    assert client.ask("take", products=["q"]) == [["q", "s", 2]]
    back.mend()
    client.ask("stream", products=names("r", 100))
    until_progress(102, client)
    check_served(served_by(client), ["hold:p", "q", *names("r", 100)])
    assert market.stats()["orders"]["fulfilled"] == 102
    assert lost(market) == 0


@given_settings(**PATIENT | {"max_order_attempts": 1})
def test_thousands_of_answers_that_were_held_back(market: Market, back: Proxy) -> None:
    """What must be said again is more than a message may have: it is said in several."""
    supplier = market.supplier(backend=back.endpoint, silence_s=SILENCE_S, credit=1600)
    client = market.client(slots=1600)
    failing = [f"complain:{number}" for number in range(1500)]
    client.ask("order", products=["hold:p", *failing])
    until(lambda: supplier.ask("calls"))
    back.stall()
    supplier.ask("release")
    until(lambda: len(supplier.ask("calls")), lambda calls: calls == 1501)
    client.ask("take", products=["hold:p"])
    assert client.ask("fail", product=failing[-1])["reason"] == "attempts"
    assert market.stats()["orders"]["failed"] == 1500


def test_a_line_that_opens_halfway(market: Market, front: Proxy, back: Proxy) -> None:
    """Connections are taken and nothing answers: neither side gives up, and all goes on later."""
    front.refuse()
    back.refuse()
    client = market.client(frontend=front.endpoint, silence_s=SILENCE_S)
    market.supplier(name="s", backend=back.endpoint, silence_s=SILENCE_S, wait=False)
    front.deaf = back.deaf = True
    front.mend()
    back.mend()
    client.ask("stream", products=names("p", 20))
    until_more(lambda: front.accepted, 2)
    until_more(lambda: back.accepted, 2)
    front.deaf = back.deaf = False
    until_progress(20, client)
    check_served(served_by(client), names("p", 20))


# --- the line of the products -----------------------------------------------------------

LARGE_NBYTES = 4 << 20
"""More than the proxy and the kernels on both sides hold for a reader that does not read."""


@pytest.fixture
def data(market: Market) -> Iterator[Proxy]:
    """The suppliers' line to the client's memory."""
    (port,) = market.ports(1)
    with Proxy(f"tcp://127.0.0.1:{port}") as proxy:
        yield proxy


def client_behind(market: Market, data: Proxy, **options: Any) -> Party:
    port = int(data.target.rpartition(":")[2])
    advertise = data.endpoint.removeprefix("tcp://")
    return market.client(medium_options={"port": port, "advertise": advertise}, **options)


@pytest.mark.parametrize("medium", ["tcp"])
def test_a_line_of_products_that_is_cut(market: Market, data: Proxy) -> None:
    """What is half written is written again, whole, and whoever was cut off is blamed at most."""
    for name in ("s", "t"):
        market.supplier(name=name, nbytes=LARGE_NBYTES, credit=2)
    client = client_behind(market, data, slots=8, slot_nbytes=LARGE_NBYTES)
    client.ask("stream", products=names("p", 30))
    for turn in range(1, 5):
        until_progress(5 * turn, client)
        data.cut(reset=turn % 2 == 0)
    until_progress(30, client)
    check_served(served_by(client), names("p", 30))
    assert client.ask("figures")["corrupt"] == 0


@pytest.mark.parametrize("medium", ["tcp"])
def test_bytes_that_were_held_back_come_when_the_slot_is_anothers(
    market: Market, data: Proxy
) -> None:
    """Half a product arrives long after another was written, served, and is still looked at."""
    stalled = market.supplier(name="stalled", nbytes=LARGE_NBYTES, tcp_timeout_s=0.5)
    client = client_behind(market, data, slots=2, slot_nbytes=LARGE_NBYTES)
    client.ask("order", products=["p"])
    client.ask("take", products=["p"])
    data.stall()
    client.ask("order", products=["q"])
    until(lambda: stalled.ask("calls"), lambda calls: len(calls) > 2)
    assert client.ask("borrow", product="q")[:2] == ["q", "stalled"]
    data.mend()
    client.ask("stream", products=names("r", 8), prefetch=1)
    until_progress(10, client)
    assert client.ask("unchanged")
    client.ask("give_back")
    check_served(served_by(client), ["p", "q", *names("r", 8)])
