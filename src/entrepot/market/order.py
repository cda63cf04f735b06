"""One order: what its client keeps about it, and the handle that the user has."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from entrepot.arguments import checked_wait
from entrepot.errors import OrderCancelled
from entrepot.market.protocol import Delivery, Region
from entrepot.market.slots import Slot

if TYPE_CHECKING:
    from entrepot.market.book import Book
    from entrepot.market.product import Product

WANTED = 0
ARRIVED = 1
TAKEN = 2
ENDED = 3


class Entry:
    """An order in the client's book. Guarded by the book's lock.

    :ivar order_id: the name that it was given when it was placed.
    :ivar wire_id: the name that the broker knows; another each time that the order begins anew.
    :ivar state: WANTED, ARRIVED (its product is in ``slot``), TAKEN, or ENDED with ``error``.
    :ivar moves: whether the broker has the order parked, so that a new slot is told with MOVE.
    :ivar corrupt: products that were not what their checksum says, in a row.
    :ivar into: memory that the product may come into, in place of its slot.
    :ivar sink: where to note that it is over; for who waits for any of several.
    """

    __slots__ = (
        "corrupt",
        "deadline_at",
        "delivery",
        "error",
        "input",
        "input_slot",
        "into",
        "moves",
        "number",
        "order_id",
        "priority",
        "product_id",
        "sink",
        "slot",
        "state",
        "ticket",
        "wire_id",
    )

    def __init__(
        self,
        number: int,
        order_id: str,
        product_id: str,
        priority: int,
        deadline_at: float | None,
        sink: deque[Entry] | None,
    ) -> None:
        self.number = number
        self.order_id = order_id
        self.wire_id = order_id
        self.product_id = product_id
        self.priority = priority
        self.deadline_at = deadline_at
        self.sink = sink
        self.state = WANTED
        self.slot: Slot | None = None
        self.ticket = 0
        self.delivery: Delivery | None = None
        self.error: Exception | None = None
        self.input: Region | None = None
        self.input_slot: tuple[Slot, int] | None = None
        self.into: memoryview | None = None
        self.moves = False
        self.corrupt = 0

    def is_over(self) -> bool:
        """Whether there is something to be had: a product or an error."""
        return self.state != WANTED

    def arrived(self, slot: Slot, delivery: Delivery) -> None:
        """Its product is in ``slot``."""
        self.state = ARRIVED
        self.slot = slot
        self.ticket = slot.ticket
        self.delivery = delivery
        if self.sink is not None:
            self.sink.append(self)

    def end(self, error: Exception) -> None:
        """There will be no product."""
        self.state = ENDED
        self.error = error
        if self.sink is not None:
            self.sink.append(self)

    def cancelled(self, how: str) -> OrderCancelled:
        """The error that says so."""
        return OrderCancelled(
            f"order {self.order_id} for {self.product_id!r} was {how} before its product was "
            f"taken; order again if it is wanted after all"
        )


class Order:
    """A handle on one order. One that is dropped before its product was taken cancels it.

    May be used from several threads; the product goes to one of them.
    """

    __slots__ = ("__weakref__", "_book", "_entry")

    def __init__(self, book: Book, entry: Entry) -> None:
        self._book = book
        self._entry = entry

    @property
    def order_id(self) -> str:
        """Its name in logs and at the broker: unique over all clients."""
        return self._entry.order_id

    @property
    def product_id(self) -> str:
        """What was ordered."""
        return self._entry.product_id

    @property
    def done(self) -> bool:
        """Whether ``result`` would return or raise at once. Looks for news, without waiting."""
        return self._book.look(self._entry)

    def result(self, timeout_s: float | None = None) -> Product:
        """Wait for the product, verify it, and have it until it is released.

        :param timeout_s: seconds; None waits for as long as the broker is there, and 0 not at all.
        :raises ConfigurationError: ``timeout_s`` is neither.
        :raises OrderTimeout: it did not come in that time. The order stays open.
        :raises OrderFailed: nobody could make it; the error says who tried, and what happened.
        :raises OrderCancelled: it was cancelled or discarded.
        :raises CorruptProduct: what came was not what was sent, again and again.
        :raises Refused: the broker did not take the order.
        :raises BrokerUnavailable: no broker for the client's ``timeout_s``. The order stays open
            and is placed again when there is one.
        :raises Closed: the product was taken before, or the client was closed.
        """
        return self._book.result(self._entry, checked_wait("timeout_s", timeout_s))

    def cancel(self) -> bool:
        """See :meth:`Client.cancel`."""
        return self._book.cancel(self._entry)

    def __del__(self) -> None:
        if self._entry.state <= ARRIVED:
            self._book.dropped.append(self._entry)

    def __repr__(self) -> str:
        state = ("open", "arrived", "taken", "ended")[self._entry.state]
        return f"<Order {self.order_id} of {self.product_id!r}, {state}>"
