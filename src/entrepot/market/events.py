"""What happens to the ledger, and what it wants done about it.

Both are plain values. Parties are named by session, 16 bytes; the broker knows which connection a
session has, and the ledger does not.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from entrepot.market.protocol import Attempt, Delivery, Order, Result, WorkItem


class Event(Struct, frozen=True, gc=False):
    """Something that a party did, or that befell it."""


class Effect(Struct, frozen=True, gc=False):
    """Something that a party is to be told."""


# --- from clients -----------------------------------------------------------------------


class ClientJoined(Event, frozen=True, kw_only=True):
    """A client said HELLO, for the first time or again. ``open_orders`` are those it waits for."""

    session: bytes
    version: int = 2
    name: str = ""
    contract: str | None = None
    open_orders: Sequence[str] = ()
    seq: int = 0


class Placed(Event, frozen=True):
    session: bytes
    orders: Sequence[Order]
    seq: int = 0


class Moved(Event, frozen=True):
    """A parked order goes on in another slot."""

    session: bytes
    order_id: str
    address: str
    offset: int
    seq: int = 0


class Cancelled(Event, frozen=True):
    session: bytes
    order_id: str
    seq: int = 0


class Discarded(Event, frozen=True):
    """All orders of the client are cancelled."""

    session: bytes
    seq: int = 0


class DrainAsked(Event, frozen=True):
    """Suppliers of a name, or all, are to finish what they hold and leave."""

    session: bytes
    name: str | None = None
    seq: int = 0


# --- from suppliers ---------------------------------------------------------------------


class SupplierJoined(Event, frozen=True, kw_only=True):
    """A supplier said HELLO, for the first time or again, holding the leases ``holds``."""

    session: bytes
    version: int = 2
    name: str = ""
    patterns: Sequence[str]
    credit: int = 1
    batch: int = 1
    exclusive: bool = False
    contracts: dict[str, str] = {}
    terms: dict[str, str] = {}
    holds: Sequence[int] = ()
    cancels: bool = False
    seq: int = 0


class Ready(Event, frozen=True):
    session: bytes


class Drained(Event, frozen=True):
    """A supplier takes no more orders, and gives back ``leases``, whose orders it has not begun."""

    session: bytes
    leases: Sequence[int] = ()


class Finished(Event, frozen=True):
    """A supplier's DONE."""

    session: bytes
    results: Sequence[Result]


class V1Finished(Event, frozen=True):
    """A version-1 supplier's DONE, which knows no lease."""

    session: bytes
    order_id: str
    success: bool


# --- of both ----------------------------------------------------------------------------


class Heard(Event, frozen=True):
    """A heartbeat."""

    session: bytes


class Disconnected(Event, frozen=True):
    """The party's connection closed. It may come back."""

    session: bytes


class Left(Event, frozen=True):
    """GOODBYE: the party will not write, read or say anything more."""

    session: bytes


class Dropped(Event, frozen=True):
    """The broker ends the session, for the reason given."""

    session: bytes
    reason: str


class Ticked(Event, frozen=True):
    """Time passed."""


class Paused(Event, frozen=True):
    """The broker itself stood still for ``seconds``: that silence was nobody else's."""

    seconds: float


# --- effects ----------------------------------------------------------------------------


class Assign(Effect, frozen=True):
    """WORK for a supplier."""

    session: bytes
    version: int
    items: list[WorkItem]


class Fulfil(Effect, frozen=True):
    """An order has its product. This ends the order."""

    session: bytes
    version: int
    delivery: Delivery


class Fail(Effect, frozen=True):
    """An order ends without a product. A ``lease`` other than 0 was never answered."""

    session: bytes
    version: int
    order_id: str
    reason: str
    attempts: Sequence[Attempt] = ()
    lease: int = 0


class Lose(Effect, frozen=True):
    """An order is parked: its supplier was lost and may still write."""

    session: bytes
    order_id: str
    lease: int


class Answer(Effect, frozen=True, kw_only=True):
    """The answer to CANCEL, DISCARD or DRAIN."""

    session: bytes
    seq: int
    untouched: Sequence[str] = ()
    touched: Sequence[str] = ()
    held: Sequence[str] = ()
    terminated: int = 0


class Refuse(Effect, frozen=True, kw_only=True):
    """Something asked for was not done."""

    session: bytes
    seq: int = 0
    code: str
    error: str
    order_ids: Sequence[str] = ()
    terms: str = ""


class Welcome(Effect, frozen=True):
    """A HELLO was taken. ``missing`` are the orders that the party named and the ledger lacks."""

    session: bytes
    resumed: bool
    missing: Sequence[str] = ()


class Revoke(Effect, frozen=True):
    """What a supplier makes under these leases was cancelled. It answers for them as for others."""

    session: bytes
    leases: list[int]


class Terminate(Effect, frozen=True):
    """A supplier is to finish what it holds and leave."""

    session: bytes


class Dismiss(Effect, frozen=True):
    """The ledger has ended the session: ``left``, ``gone``, ``silent``, or a drop's reason."""

    session: bytes
    reason: str
