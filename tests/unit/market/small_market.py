"""A market small enough to follow by eye: a ledger, a clock, and names for everybody."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

from entrepot.market import events as ev
from entrepot.market.ledger import Ledger
from entrepot.market.protocol import Order, Result
from entrepot.settings import BrokerSettings

Given = list[tuple[str, str]]


class Market:
    """A ledger with a clock of its own. Sessions are names; leases are 1, 2, 3, ..."""

    def __init__(self, **settings: Any) -> None:
        leases = count(1)
        self.ledger = Ledger(BrokerSettings(**settings), lambda: next(leases))
        self.now = 0.0
        self.client("client")

    def apply(self, event: ev.Event) -> list[ev.Effect]:
        return self.ledger.apply(event, self.now)

    def after(self, seconds: float) -> list[ev.Effect]:
        self.now += seconds
        return self.apply(ev.Ticked())

    # --- clients

    def client(self, name: str, **fields: Any) -> list[ev.Effect]:
        return self.apply(ev.ClientJoined(session=name.encode(), **fields))

    def order(
        self, *order_ids: str, product: str = "p", client: str = "client", **fields: Any
    ) -> list[ev.Effect]:
        orders = [order(i, product, **fields) for i in order_ids]
        return self.apply(ev.Placed(client.encode(), orders, 1))

    def cancel(self, order_id: str, client: str = "client") -> list[ev.Effect]:
        return self.apply(ev.Cancelled(client.encode(), order_id, 2))

    def move(self, order_id: str, address: str) -> list[ev.Effect]:
        return self.apply(ev.Moved(b"client", order_id, address, 0, 3))

    # --- suppliers

    def supplier(self, name: str, *patterns: str, ready: bool = True, **fields: Any) -> Given:
        """Joins, and says READY. Answers with what it is given."""
        effects = self.join(name, *patterns, **fields)
        return given(effects + self.ready(name)) if ready else given(effects)

    def join(self, name: str, *patterns: str, **fields: Any) -> list[ev.Effect]:
        return self.apply(
            ev.SupplierJoined(
                session=name.encode(), name=name, patterns=patterns or (".*",), **fields
            )
        )

    def ready(self, name: str) -> list[ev.Effect]:
        return self.apply(ev.Ready(name.encode()))

    def lease(self, supplier: str, order_id: str) -> int:
        held = self.ledger.suppliers[supplier.encode()].held
        return next(lease for lease, order in held.items() if order.order_id == order_id)

    def done(self, supplier: str, *order_ids: str, success: bool = True) -> list[ev.Effect]:
        results = [
            Result(i, self.lease(supplier, i), success=success, nbytes=8 if success else 0)
            for i in order_ids
        ]
        return self.apply(ev.Finished(supplier.encode(), results))

    def fail(self, supplier: str, *order_ids: str) -> list[ev.Effect]:
        return self.done(supplier, *order_ids, success=False)

    def drain(self, supplier: str, *order_ids: str) -> list[ev.Effect]:
        """It takes no more orders, and gives those back."""
        leases = [self.lease(supplier, i) for i in order_ids]
        return self.apply(ev.Drained(supplier.encode(), leases))

    def v1_done(self, supplier: str, order_id: str, success: bool = True) -> list[ev.Effect]:
        return self.apply(ev.V1Finished(supplier.encode(), order_id, success))

    def left(self, name: str) -> list[ev.Effect]:
        return self.apply(ev.Left(name.encode()))

    def disconnected(self, name: str) -> list[ev.Effect]:
        return self.apply(ev.Disconnected(name.encode()))

    def heard(self, name: str) -> list[ev.Effect]:
        return self.apply(ev.Heard(name.encode()))

    # --- what there is

    @property
    def outcomes(self) -> dict[str, int]:
        return dict(self.ledger.figures.outcomes)

    def holds(self, supplier: str) -> list[str]:
        return [order.order_id for order in self.ledger.suppliers[supplier.encode()].held.values()]


def order(order_id: str, product: str = "p", nbytes: int = 64, **fields: Any) -> Order:
    return Order(order_id, product, f"slot of {order_id}", 0, nbytes, **fields)


def given(effects: Sequence[ev.Effect]) -> Given:
    """Who was given which orders."""
    return [
        (effect.session.decode(), item.order_id)
        for effect in effects
        if isinstance(effect, ev.Assign)
        for item in effect.items
    ]


def ends(effects: Sequence[ev.Effect]) -> list[ev.Effect]:
    """What a client is told of the end of its orders."""
    return [effect for effect in effects if isinstance(effect, ev.Fulfil | ev.Fail)]


def failed(order_id: str, reason: str, lease: int = 0) -> ev.Fail:
    return ev.Fail(b"client", 2, order_id, reason, [], lease)


def answers(effects: Sequence[ev.Effect]) -> list[dict[str, list[str]]]:
    """What CANCEL and DISCARD are told: which orders, by what became of them."""
    return [
        {
            kind: list(order_ids)
            for kind in ("untouched", "touched", "held")
            if (order_ids := getattr(effect, kind))
        }
        for effect in effects
        if isinstance(effect, ev.Answer)
    ]


def refusals(effects: Sequence[ev.Effect]) -> list[tuple[str, list[str]]]:
    return [(e.code, list(e.order_ids)) for e in effects if isinstance(e, ev.Refuse)]
