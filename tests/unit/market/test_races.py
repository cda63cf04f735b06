"""Races that were met, each under its name."""

from __future__ import annotations

import threading
import time
from itertools import count

from entrepot.market import events as ev
from entrepot.market.broker import Broker
from entrepot.market.ledger import Ledger
from entrepot.market.supplier import Supplier
from entrepot.settings import BrokerSettings
from tests.peer.raw import RawClient, RawSupplier

ANY = "tcp://127.0.0.1:*"


def test_waiting_for_a_supplier_whose_thread_has_not_begun() -> None:
    """Whoever waits may be there before the thread that serves has connected."""
    with Broker(ANY, ANY) as broker, Supplier(broker.backend, {"a": bytes}) as supplier:
        waiting = threading.Thread(target=supplier.wait_registered)
        waiting.start()
        waiting.join()
        supplier.start()
        supplier.wait_registered()


def test_a_broker_that_stood_still() -> None:
    """What it slept through is nobody's silence: it looks at the clock before it looks at them."""
    slept_s = 0.0

    def clock() -> float:
        return time.monotonic() + slept_s

    settings = BrokerSettings(beat_s=0.02, dead_s=50, suspect_s=50)
    with (
        Broker(ANY, ANY, settings=settings, clock=clock) as broker,
        RawClient(broker.frontend) as client,
        RawSupplier(broker.backend) as supplier,
    ):
        client.hello()
        supplier.ready("a")
        client.order("o1", "a")
        work = supplier.work()
        for _ in range(3):
            slept_s += 100
            client.settled()
            client.passed.clear()
            client.wait_for(b"HEARTBEAT")
        stats = client.ask(b"STATS")["stats"]
        assert (stats["dropped"], stats["suppliers"]["suspect"]) == ({}, 0)
        supplier.done(work)
        client.fulfilled("o1")


def test_a_pause_of_the_broker_is_nobodys_absence() -> None:
    """Who was away when it stood still has as long as before to come back, and no longer."""
    ledger = Ledger(BrokerSettings(reconnect_grace_s=2, client_grace_s=2), count(1).__next__)
    ledger.apply(ev.ClientJoined(session=b"client"), 0)
    ledger.apply(ev.SupplierJoined(session=b"supplier", patterns=["a"]), 0)
    for session in (b"client", b"supplier"):
        ledger.apply(ev.Disconnected(session), 1)
    ledger.apply(ev.Paused(100), 102)
    assert ledger.apply(ev.Ticked(), 102) == []
    assert ledger.apply(ev.Ticked(), 102.9) == []
    ended = ledger.apply(ev.Ticked(), 103)
    assert {effect.session for effect in ended if isinstance(effect, ev.Dismiss)} == {
        b"client",
        b"supplier",
    }
