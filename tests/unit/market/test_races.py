"""Races that were met, each under its name."""

from __future__ import annotations

import threading

from entrepot.market.broker import Broker
from entrepot.market.supplier import Supplier

ANY = "tcp://127.0.0.1:*"


def test_waiting_for_a_supplier_whose_thread_has_not_begun() -> None:
    """Whoever waits may be there before the thread that serves has connected."""
    with Broker(ANY, ANY) as broker, Supplier(broker.backend, {"a": bytes}) as supplier:
        waiting = threading.Thread(target=supplier.wait_registered)
        waiting.start()
        waiting.join()
        supplier.start()
        supplier.wait_registered()
