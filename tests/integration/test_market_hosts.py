"""A market over two machines, with the way between them cut, slowed and open in one direction.

The machines are network namespaces with a link of their own, and products go over TCP. The broker
is on the near machine with one of the two parties, and the other party is on the far one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from entrepot.settings import BrokerSettings
from tests.integration.market_processes import (
    Host,
    Hosts,
    Market,
    Nursery,
    Party,
    names,
    served_by,
    until,
    until_more,
    until_progress,
)
from tests.integration.market_products import check_served

SWIFT: dict[str, Any] = {"beat_s": 0.1, "suspect_s": 0.4, "dead_s": 1.0, "client_grace_s": 1.0}
"""A broker that gives a machine up soon."""

PATIENT: dict[str, Any] = {
    "beat_s": 0.1,
    "suspect_s": 0.4,
    "dead_s": 3600,
    "reconnect_grace_s": 60,
    "client_grace_s": 60,
}
"""A broker that waits for whoever it lost sight of."""

SILENCE_S = 0.6
"""How long clients and suppliers bear with a broker that says nothing."""

NBYTES = 100_000
"""Of a product, where its size is of no matter: more than fits into one packet."""

COUNT = 400
"""Products in a stream, of which the fault befalls the first ones."""


@pytest.fixture
def settings() -> dict[str, Any]:
    """The broker's; ``given_settings`` changes them for a test."""
    return SWIFT


def given_settings(**settings: Any) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("settings", [settings], ids=[""])


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    with Hosts() as hosts:
        yield hosts


@pytest.fixture
def market(nursery: Nursery, hosts: Hosts, settings: dict[str, Any]) -> Iterator[Market]:
    with Market(nursery, medium="tcp", hosts=hosts, **settings) as market:
        market.start_broker()
        yield market


@pytest.fixture(params=["supplier", "client"])
def far(request: pytest.FixtureRequest) -> str:
    """Who is on the far machine."""
    return str(request.param)


class Ends:
    """A client with a stream, and suppliers, of which one side is far from the other.

    :ivar supplier: the only one.
    """

    def __init__(
        self,
        market: Market,
        hosts: Hosts,
        far: str,
        nbytes: int = NBYTES,
        silence_s: float = SILENCE_S,
    ) -> None:
        self.market = market
        self.where = {
            "client": hosts.far if far == "client" else hosts.near,
            "supplier": hosts.far if far == "supplier" else hosts.near,
        }
        self.supplier = market.supplier(
            name="s",
            host=self.where["supplier"],
            nbytes=nbytes,
            credit=4,
            silence_s=silence_s,
            tcp_timeout_s=1.0,
        )
        self.client = market.client(
            name="c", host=self.where["client"], slot_nbytes=nbytes, silence_s=silence_s
        )

    def stream(self, count: int = COUNT) -> None:
        self.client.ask("stream", products=names("p", count))

    def until_back(self) -> None:
        """The broker knows both again."""
        self.market.until(lambda stats: stats["suppliers"]["connected"] == 1)
        # One that asks for the figures is a client as well.
        self.market.until(lambda stats: "c" in {one["name"] for one in stats["clients"]["list"]})

    def until_served(self, count: int = COUNT) -> None:
        """All of it, and each as it was ordered."""
        until_progress(count, self.client)
        check_served(served_by(self.client), names("p", count))
        figures = self.client.ask("figures")
        assert figures["corrupt"] == 0
        assert figures["retired"] == 0  # over TCP the slot is taken from whoever was told of it

    def reconnects(self) -> int:
        count: int = self.client.ask("figures")["reconnects"]
        return count


@pytest.fixture
def ends(market: Market, hosts: Hosts, far: str) -> Ends:
    return Ends(market, hosts, far)


def lost(market: Market) -> int:
    """How many parties the broker gave up without a word from them."""
    dropped: dict[str, int] = market.stats()["dropped"]
    return sum(count for reason, count in dropped.items() if reason != "left")


def state_of(market: Market, name: str) -> str:
    suppliers = market.stats()["suppliers"]["list"]
    return next((str(one["state"]) for one in suppliers if one["name"] == name), "unknown")


# --- cut --------------------------------------------------------------------------------

CUTS: dict[str, tuple[Callable[[Hosts], None], Callable[[Hosts], None]]] = {
    "packets dropped": (Hosts.cut, Hosts.mend),
    "link down": (Hosts.unplug, Hosts.plug),
}


@pytest.mark.parametrize("cut", CUTS)
@given_settings(**PATIENT)
def test_a_cut_that_is_mended_within_the_dead_time(
    market: Market, hosts: Hosts, ends: Ends, far: str, cut: str
) -> None:
    """Whoever was cut off goes on under its session, and nobody has lost anything."""
    begin, end = CUTS[cut]
    session = market.session_of("s")
    ends.stream()
    for turn in (1, 2):
        until_progress(60 * turn, ends.client)
        before = ends.reconnects()
        begin(hosts)
        if far == "supplier":
            until(lambda: state_of(market, "s"), lambda state: state in ("suspect", "away"))
        else:
            until_more(ends.reconnects, before)
        end(hosts)
    ends.until_served()
    assert lost(market) == 0
    assert market.session_of("s") == session


@pytest.mark.parametrize("cut", CUTS)
def test_a_cut_that_is_mended_beyond_the_dead_time(
    market: Market, hosts: Hosts, ends: Ends, cut: str
) -> None:
    """Whoever was given up begins anew when it is back."""
    begin, end = CUTS[cut]
    ends.stream()
    for turn in (1, 2):
        until_progress(60 * turn, ends.client)
        before = lost(market)
        begin(hosts)
        until_more(lambda: lost(market), before)
        end(hosts)
        ends.until_back()
    ends.until_served()


def test_orders_of_a_machine_that_is_cut_off_go_to_another(market: Market, hosts: Hosts) -> None:
    """And to that one again when it is back; what it was making is not served twice."""
    ends = Ends(market, hosts, "supplier")
    ends.client.ask("order", products=["hold:p"])
    until(lambda: ends.supplier.ask("calls"))
    hosts.cut()
    heir = market.supplier(name="heir", nbytes=NBYTES)
    heir.ask("release")
    assert ends.client.ask("take", products=["hold:p"])[0][1] == "heir"
    ends.supplier.ask("release")
    hosts.mend()
    market.until(lambda stats: stats["suppliers"]["ready"] == 2)
    market.kill(heir)
    market.until(lambda stats: stats["suppliers"]["ready"] == 1)
    ends.client.ask("order", products=["q"])
    assert ends.client.ask("take", products=["q"])[0][1] == "s"
    check_served(served_by(ends.client), ["hold:p", "q"])


def test_a_cut_under_the_settings_that_all_have(nursery: Nursery, hosts: Hosts) -> None:
    """The machine of a supplier vanishes: its orders are with another in six seconds."""
    with Market(nursery, medium="tcp", hosts=hosts) as market:
        market.start_broker()
        client = market.client()
        gone = market.supplier(name="gone", host=hosts.far)
        client.ask("order", products=["hold:p"])
        until(lambda: gone.ask("calls"))
        spare = market.supplier(name="spare")
        spare.ask("release")
        began = time.monotonic()
        hosts.cut()
        assert client.ask("take", products=["hold:p"])[0][1] == "spare"
        # Its connection was found dead. A busy machine may need longer, but not as long as silence.
        dropped = market.stats()["dropped"]
        assert (dropped["gone"], dropped.get("silent", 0)) == (1, 0)
        assert time.monotonic() - began < BrokerSettings().dead_s
        gone.ask("release")
        hosts.mend()
        market.until(lambda stats: stats["suppliers"]["connected"] == 2)


# --- one way ----------------------------------------------------------------------------


@pytest.mark.parametrize("silent", ["near", "far"])
def test_a_way_that_is_open_in_one_direction(
    market: Market, hosts: Hosts, ends: Ends, silent: str
) -> None:
    """One machine hears the other and is not heard: it is given up, or gives up, and returns."""
    host: Host = hosts.near if silent == "near" else hosts.far
    ends.stream()
    for turn in (1, 2):
        until_progress(60 * turn, ends.client)
        before = lost(market)
        hosts.silence(host)
        until_more(lambda: lost(market), before)
        hosts.mend()
        ends.until_back()  # else there may be nobody to be lost in the next turn
    ends.until_served()


# --- slow -------------------------------------------------------------------------------

LARGE_NBYTES = 1 << 20


@given_settings(**SWIFT | {"suspect_s": 1.5, "dead_s": 3.0})
def test_a_slow_way(market: Market, hosts: Hosts, far: str) -> None:
    """Slow is not dead: beats come through beside the products, and nobody is given up."""
    ends = Ends(market, hosts, far, LARGE_NBYTES, silence_s=3.0)
    hosts.slow("40mbit")
    ends.stream(12)
    ends.until_served(12)
    assert lost(market) == 0
    assert ends.client.ask("figures")["reconnects"] == 0


@given_settings(**SWIFT | {"max_order_attempts": 1000, "max_order_losses": 1000})
def test_a_way_that_is_too_slow_for_products(market: Market, hosts: Hosts) -> None:
    """A transfer that would take for ever is given up, and the order goes to who is nearer."""
    client = market.client(slot_nbytes=LARGE_NBYTES)
    options: dict[str, Any] = {"nbytes": LARGE_NBYTES, "tcp_timeout_s": 0.5}
    slow = market.supplier(
        name="slow", host=hosts.far, tcp_slowest_nbytes_s=LARGE_NBYTES, **options
    )
    hosts.slow("2mbit")
    client.ask("order", products=["p"])
    until(lambda: slow.ask("calls"))
    market.supplier(name="quick", **options)
    assert client.ask("take", products=["p"])[0][1] == "quick"
    assert client.ask("figures")["corrupt"] == 0


# --- addresses --------------------------------------------------------------------------


def behind_a_port(market: Market, host: Host, nbytes: int) -> Party:
    """A client that listens for its own machine only, behind a port that is published."""
    port = 21_000
    published = market.proxy(f"tcp://127.0.0.1:{port}", host)
    options = {"port": port, "advertise": published.endpoint.removeprefix("tcp://")}
    return market.client(name="c", host=host, slot_nbytes=nbytes, medium_options=options)


def behind_an_address(market: Market, host: Host, nbytes: int) -> Party:
    """A client that listens everywhere, and says where it is to be found."""
    options = {"host": "0.0.0.0", "advertise": host.address}
    return market.client(name="c", host=host, slot_nbytes=nbytes, medium_options=options)


@pytest.mark.parametrize("made", [behind_a_port, behind_an_address])
def test_a_client_behind_another_address_than_it_binds(
    market: Market, hosts: Hosts, far: str, made: Callable[[Market, Host, int], Party]
) -> None:
    """What is advertised is where products go, over a cut as well."""
    client_at = hosts.far if far == "client" else hosts.near
    supplier_at = hosts.near if far == "client" else hosts.far
    market.supplier(name="s", host=supplier_at, nbytes=NBYTES, credit=4, tcp_timeout_s=1.0)
    client = made(market, client_at, NBYTES)
    client.ask("stream", products=names("p", COUNT))
    until_progress(60, client)
    before = lost(market)
    hosts.cut()
    until_more(lambda: lost(market), before)
    hosts.mend()
    until_progress(COUNT, client)
    check_served(served_by(client), names("p", COUNT))
    assert client.ask("figures")["corrupt"] == 0


@given_settings(**PATIENT)
def test_a_client_that_advertises_where_it_is_not(market: Market, hosts: Hosts) -> None:
    """The order fails, and says which place was tried."""
    market.supplier(name="s", host=hosts.far, tcp_timeout_s=0.5)
    client = market.client(medium_options={"host": "0.0.0.0", "advertise": "10.77.0.9"})
    client.ask("order", products=["p"])
    failed = client.ask("fail", product="p")
    assert failed["reason"] == "attempts"
    assert all("10.77.0.9" in attempt for attempt in failed["attempts"])
