"""Who takes part in the market: clients, suppliers, and the classes that those form."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from entrepot.market.routing import Routes

if TYPE_CHECKING:
    from entrepot.market.lane import Lane
    from entrepot.market.open_order import OpenOrder


class Client:
    """One session that orders.

    :ivar spoke: whether it said anything but HELLO, so that it knows of this session's beginning.
    """

    __slots__ = (
        "away_since", "contract", "heard", "hello_seq", "name", "orders", "session", "spoke",
        "version",
    )  # fmt: skip

    def __init__(
        self, session: bytes, version: int, name: str, contract: str | None, now: float
    ) -> None:
        self.session = session
        self.version = version
        self.name = name
        self.contract = contract
        self.orders: dict[str, OpenOrder] = {}
        self.hello_seq = 0
        self.heard = now
        self.spoke = False
        self.away_since: float | None = None

    def hear(self, now: float) -> None:
        """It said something."""
        self.heard = now
        self.spoke = True


class Supplier:
    """One session that makes products. ``free`` is how many more orders it takes now."""

    __slots__ = (
        "away_since", "batch", "cancels", "cls", "credit", "draining", "free", "heard", "held",
        "hello_seq", "name", "served", "session", "started", "suspect", "version",
    )  # fmt: skip

    def __init__(
        self, session: bytes, version: int, name: str, credit: int, batch: int, now: float
    ) -> None:
        self.session = session
        self.version = version
        self.name = name
        self.credit = credit
        self.batch = batch
        self.cls: SupplierClass | None = None
        self.held: dict[int, OpenOrder] = {}
        self.free = 0
        self.started = False
        """Whether it has said READY."""
        self.suspect = False
        self.draining = False
        self.cancels = False
        """Whether it wants to be told of orders that were cancelled while it has them."""
        self.hello_seq = 0
        self.heard = now
        self.away_since: float | None = None
        self.served = 0

    @property
    def takes(self) -> bool:
        """Whether it may be given an order now."""
        return self.free > 0 and not (self.suspect or self.draining or self.away_since is not None)


class SupplierClass(Routes):
    """The suppliers of one pattern list."""

    __slots__ = ("heap", "in_flight", "lanes", "ready", "suppliers", "terms", "turn")

    def __init__(
        self, version: int, patterns: Sequence[str], contracts: Mapping[str, str], max_program: int
    ) -> None:
        super().__init__(version, patterns, contracts, max_program)
        self.suppliers: dict[Supplier, None] = {}
        self.terms: Mapping[str, str] = {}
        """By digest: the contracts in words, for who has another."""
        self.ready: OrderedDict[Supplier, None] = OrderedDict()
        self.heap: list[tuple[int, Lane]] = []
        self.lanes: dict[Lane, None] = {}
        self.turn = 0
        self.in_flight = 0
