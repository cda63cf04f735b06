"""Large markets, and what one step in them costs in operations.

An operation is a Python instruction run in the market's code, or a comparison of two keys in a
heap: what the interpreter and ``heapq`` do, not what the code says of itself.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from itertools import count
from types import FrameType
from typing import Any

from entrepot.market import events as ev
from entrepot.market.ledger import Ledger
from entrepot.market.member import Supplier
from entrepot.market.open_order import State
from entrepot.market.protocol import Order, Result
from entrepot.settings import BrokerSettings

CLIENT = b"client"
MARKET = "/entrepot/market/"


class Key(int):
    """A number that knows how often it was compared."""

    compared = 0

    def __lt__(self, other: int) -> bool:
        Key.compared += 1
        return int.__lt__(self, other)

    def __eq__(self, other: object) -> bool:
        return int.__eq__(self, other)

    __hash__ = int.__hash__

    def __ror__(self, other: int) -> Key:
        return Key(int.__ror__(self, other))


class Load:
    """A market with one client, and one supplier for each list of patterns."""

    def __init__(self, patterns: Sequence[Sequence[str]]) -> None:
        leases = count(1)
        settings = BrokerSettings(max_open_orders=10**6, max_outbox=2 * 10**6)
        self.ledger = Ledger(settings, lambda: next(leases))
        self.ledger.queue._sequence = map(Key, count(1))  # type: ignore[assignment]
        self.placed = 0
        self.sessions = [b"supplier %d" % i for i in range(len(patterns))]
        self._patterns = dict(zip(self.sessions, patterns, strict=True))
        self.ledger.apply(ev.ClientJoined(session=CLIENT), 0.0)
        for session in self.sessions:
            self.join(session)

    def join(self, session: bytes, credit: int = 1) -> None:
        patterns = self._patterns[session]
        self.ledger.apply(ev.SupplierJoined(session=session, patterns=patterns, credit=credit), 0.0)

    def left(self, session: bytes) -> None:
        self.ledger.apply(ev.Left(session), 0.0)

    def place(self, product_id: str, priority: int = 0) -> None:
        order = Order(str(self.placed), product_id, "", 0, 8, priority=priority)
        self.placed += 1
        self.ledger.apply(ev.Placed(CLIENT, [order]), 0.0)

    def ready(self, session: bytes) -> None:
        self.ledger.apply(ev.Ready(session), 0.0)

    def done(self, session: bytes) -> None:
        held = self.ledger.suppliers[session].held
        results = [Result(order.order_id, lease) for lease, order in held.items()]
        self.ledger.apply(ev.Finished(session, results), 0.0)

    def fail(self, session: bytes, lease: int) -> None:
        order = self.ledger.suppliers[session].held[lease]
        results = [Result(order.order_id, lease, success=False)]
        self.ledger.apply(ev.Finished(session, results), 0.0)

    def cancel(self, order_id: str) -> None:
        self.ledger.apply(ev.Cancelled(CLIENT, order_id), 0.0)

    def supplier(self, session: bytes) -> Supplier:
        return self.ledger.suppliers[session]

    def waiting(self, chance: random.Random) -> str:
        """Some order that waits."""
        while True:
            order = self.ledger.clients[CLIENT].orders.get(str(chance.randrange(self.placed)))
            if order is not None and order.state is State.QUEUED:
                return order.order_id


def counted(acts: Sequence[Callable[[], Any]]) -> int:
    """How many operations the acts are together."""
    instructions = 0

    def on_call(frame: FrameType, event: str, arg: Any) -> Any:
        if MARKET not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return on_instruction

    def on_instruction(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal instructions
        instructions += event == "opcode"
        return on_instruction

    before = sys.gettrace()
    compared = Key.compared
    sys.settrace(on_call)
    try:
        for act in acts:
            act()
    finally:
        sys.settrace(before)
    return instructions + Key.compared - compared
