"""A supplier that is asked to leave while its connection is broken hears of it in the next one."""

from __future__ import annotations

from entrepot import Broker
from entrepot.settings import BrokerSettings
from tests.peer.raw import RawClient, RawSupplier, stats
from tests.peer.waiting import until

ANY = "tcp://127.0.0.1:*"


def test_it_is_told_after_the_answer_to_its_hello() -> None:
    """What comes before that answer a party does not read: it is of no connection yet."""
    with (
        Broker(ANY, ANY, settings=BrokerSettings(reconnect_grace_s=20.0)) as broker,
        RawClient(broker.frontend) as client,
    ):
        client.hello()
        first = RawSupplier(broker.backend)
        first.ready("p")
        first.close()
        until(lambda: stats(broker.frontend)["suppliers"]["list"][0]["state"] == "away")
        assert client.ask(b"DRAIN")["terminated"] == 1
        with RawSupplier(broker.backend, session=first.session) as again:
            answer = again.hello(product_ids=["p"])
            assert answer["hello"]["resumed"] is True
            assert again.passed == []
            again.wait_for(b"TERMINATE")
