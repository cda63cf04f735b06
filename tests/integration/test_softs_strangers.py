"""Where the peer ``softs`` 0.1.2 was measured to fail at what strangers send: what we do instead.

Each test has the name of the fault.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from entrepot.errors import (
    EndpointInUse,
)
from entrepot.market.broker import Broker
from tests.integration.fault_market import LOCAL, Market, market, settings
from tests.peer.raw import RawClient, RawSupplier, RawV1

__all__ = ["market", "settings"]  # fixtures


# --- strangers --------------------------------------------------------------------------

ORDER = {"order_id": "o", "product_id": "p", "address": "nowhere", "offset": 0}
ORDER_2 = ORDER | {"nbytes": 64}
CRASH: dict[str, tuple[bytes, object]] = {
    "ORDER, product id a list": (b"ORDER", ORDER | {"product_id": ["p"]}),
    "ORDER, product id a map": (b"ORDER", ORDER | {"product_id": {"p": 1}}),
    "ORDER, product id a number": (b"ORDER", ORDER | {"product_id": 7}),
    "ORDER, order id a list": (b"ORDER", ORDER | {"order_id": ["o"]}),
    "ORDER, order id a map": (b"ORDER", ORDER | {"order_id": {}}),
    "CANCEL, a list": (b"CANCEL", ["o"]),
    "CANCEL, order id a list": (b"CANCEL", {"order_id": ["o"]}),
    "HELLO, a list": (b"HELLO", ["p"]),
    "HELLO, patterns that are numbers": (b"HELLO", {"product_ids": [1, None]}),
    "HELLO, patterns that are one text": (b"HELLO", {"product_ids": "p"}),
    "HELLO, bytes that are no MessagePack": (b"HELLO", b"\xc1"),
    "HELLO 2, session a number": (b"HELLO", {"protocol": 2, "session": 5, "product_ids": ["p"]}),
    "ORDERS, a map": (b"ORDERS", {"orders": {}}),
    "ORDERS, product id a list": (b"ORDERS", {"orders": [ORDER_2 | {"product_id": []}]}),
    "DONE, a list": (b"DONE", [1]),
    "DONE, results a number": (b"DONE", {"results": 1}),
    "no command of ours": (b"\xff" * 300, {}),
}


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("backend", [False, True], ids=["frontend", "backend"])
@pytest.mark.parametrize(("command", "fields"), CRASH.values(), ids=CRASH.keys())
def test_crash(market: Market, command: bytes, fields: object, backend: bool, version: int) -> None:
    """There one malformed message ends the broker's thread."""
    stranger: RawClient | RawSupplier | RawV1
    if version == 1:
        stranger = market.raw_v1(backend=backend)
        if command != b"HELLO":
            assert stranger.ask(b"HELLO", {"product_ids": ["known"]} if backend else {})["ok"]
    else:
        stranger = market.raw_supplier("known") if backend else market.raw_client()
    stranger.send(command, fields)
    said = stranger.receive()[1]
    assert said.get("code") not in ("ok", "internal"), said
    assert said["error"]
    market.stats()


@pytest.mark.parametrize("backend", [False, True], ids=["frontend", "backend"])
@pytest.mark.parametrize(
    "frames",
    [(b"",), (b"HELLO",), (b"HELLO", b"\x80", b"more"), (b"", b"", b""), (b"\x00" * 70_000, b"")],
    ids=["empty", "one frame", "three frames", "three empty frames", "a long command"],
)
def test_crash_frames(market: Market, frames: tuple[bytes, ...], backend: bool) -> None:
    market.raw_v1(backend=backend).frames(*frames)
    market.stats()


def test_redos(market: Market) -> None:
    """There the pattern (a+)+b and 28 letters stop the broker for 17 s; each more doubles that."""
    market.raw_supplier("(a+)+b")
    client = market.raw_client()
    for number in range(100):
        client.order(f"o-{number}", "a" * (4000 + number // 2))
    assert client.ask(b"STATS")["stats"]["orders"]["unservable"] == 100


@pytest.mark.parametrize("end", ["frontend", "backend"])
def test_ipc(tmp_path_factory: pytest.TempPathFactory, end: str) -> None:
    """There a second broker takes the path over without a word."""
    folder = tmp_path_factory.mktemp("ipc")
    ends = {"frontend": f"ipc://{folder}/f", "backend": f"ipc://{folder}/b"}
    other: dict[str, Any] = {"frontend": LOCAL, "backend": LOCAL} | {end: ends[end]}
    for _ in range(2):  # and again when the first is gone
        with Broker(ends["frontend"], ends["backend"]):
            with pytest.raises(EndpointInUse, match=re.escape(ends[end])), Broker(**other):
                pass
            with RawClient(ends["frontend"]) as client, RawSupplier(ends["backend"]) as supplier:
                assert client.hello()["hello"]["protocol"] == 2
                supplier.ready("p")


@pytest.mark.parametrize("end", ["frontend", "backend"])
def test_tcp_port_in_use(market: Market, end: str) -> None:
    taken = getattr(market.broker, end)
    ends: dict[str, Any] = {"frontend": LOCAL, "backend": LOCAL} | {end: taken}
    with pytest.raises(EndpointInUse, match=re.escape(taken)), Broker(**ends):
        pass
