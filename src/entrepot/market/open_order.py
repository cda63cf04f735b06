"""An order that has not ended, and its product: what the ledger knows of them."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from entrepot.market.protocol import Attempt, Region

if TYPE_CHECKING:
    from entrepot.market.lane import Lane
    from entrepot.market.member import Supplier, SupplierClass

NOBODY: frozenset[Supplier] = frozenset()


class State(IntEnum):
    """Of an order that was accepted."""

    QUEUED = 0
    DISPATCHED = 1
    PARKED = 2
    """Its supplier was lost; it waits for its client to name a fresh slot."""
    ENDED = 3


class Product:
    """A product that is, or lately was, on order: one id, under one version and contract."""

    __slots__ = (
        "classes",
        "contract",
        "in_flight",
        "lane",
        "parked",
        "product_id",
        "queued",
        "version",
    )

    def __init__(
        self, version: int, product_id: str, contract: str | None, classes: frozenset[SupplierClass]
    ) -> None:
        self.version = version
        self.product_id = product_id
        self.contract = contract
        self.classes = classes
        self.lane: Lane | None = None
        self.queued = 0
        self.in_flight = 0
        self.parked = 0

    @property
    def idle(self) -> bool:
        return not (self.queued or self.in_flight or self.parked)


class OpenOrder:
    """An order that has not ended. ``session`` is its client's."""

    __slots__ = (
        "address", "attempts", "deadline", "dispatched_at", "failed_by", "failures", "held",
        "input", "key", "lane", "lease", "losses", "nbytes", "offset", "order_id", "placed_at",
        "priority", "product", "session", "state", "supplier", "touched", "wait",
    )  # fmt: skip

    def __init__(
        self,
        session: bytes,
        order_id: str,
        product: Product,
        address: str,
        offset: int,
        nbytes: int,
        now: float,
        region: Region | None = None,
        priority: int = 0,
        deadline: float | None = None,
    ) -> None:
        self.session = session
        self.order_id = order_id
        self.product = product
        self.address = address
        self.offset = offset
        self.nbytes = nbytes
        self.input = region
        self.priority = priority
        self.deadline = deadline
        self.placed_at = now
        self.state = State.QUEUED
        self.key = 0
        self.lane: Lane | None = None
        self.supplier: Supplier | None = None
        self.lease = 0
        self.dispatched_at = 0.0
        self.failures = 0
        self.losses = 0
        self.attempts: list[Attempt] = []
        self.failed_by: frozenset[Supplier] = NOBODY
        self.wait = 0
        """Which wait for others than those who have failed it is its last."""
        self.held = False
        """Cancelled while a supplier has it: ends with that supplier's answer."""
        self.touched = False
