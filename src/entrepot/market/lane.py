"""A lane: orders that are alike to every supplier, the first of them first."""

from __future__ import annotations

from heapq import heappop
from typing import TYPE_CHECKING

from entrepot.market.open_order import OpenOrder, Product, State

if TYPE_CHECKING:
    from entrepot.market.member import Supplier, SupplierClass

LEVEL = 64
"""Bits of a key that number the order; above them is its level: priority, and who came back."""

NO_LEVEL = 1 << 40
"""Above any level."""


class Lane:
    """Orders that are alike to every supplier."""

    __slots__ = (
        "classes", "entries", "failed_by", "heap", "level", "live", "open", "origin", "products",
        "unaware",
    )  # fmt: skip

    def __init__(self, classes: frozenset[SupplierClass], failed_by: frozenset[Supplier]) -> None:
        self.classes = classes
        self.failed_by = failed_by
        self.heap: list[tuple[int, OpenOrder]] = []
        self.live = 0
        self.entries: dict[SupplierClass, int] = {}
        """The key under which each class has this lane in its heap."""
        self.level = self.origin = NO_LEVEL
        """All classes but the unaware have an entry of this level or less; where that began."""
        self.unaware: set[SupplierClass] = set()
        self.products: set[Product] = set()
        """At least those of what waits."""
        self.open = False
        """Nobody is left who has not failed these orders, so anybody may try again."""

    def __lt__(self, other: Lane) -> bool:
        return id(self) < id(other)

    def head(self) -> OpenOrder | None:
        heap = self.heap
        while heap:
            order = heap[0][1]
            if order.lane is self and order.state is State.QUEUED:
                return order
            heappop(heap)
        return None

    def waiting(self) -> list[OpenOrder]:
        return [o for _, o in self.heap if o.lane is self and o.state is State.QUEUED]
