"""What an order becomes: bytes in a slot, for as long as somebody looks at them."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from entrepot.errors import Closed
from entrepot.market.order import Entry
from entrepot.market.protocol import Delivery
from entrepot.market.slots import Slot

if TYPE_CHECKING:
    from typing import Self

    from entrepot.market.book import Book
    from entrepot.mediums.base import Medium


class Product:
    """A product that arrived and was verified; a context manager that releases it.

    Its slot takes no other product until it is released, and one that is dropped is released.

    :ivar nbytes: how many bytes the supplier wrote; the slot may have more.
    :ivar lease: the dispatch that made it: what broker and supplier call it in their logs.
    """

    __slots__ = ("_book", "_entry", "_slot", "_view", "lease", "nbytes")

    def __init__(self, book: Book, entry: Entry, slot: Slot, delivery: Delivery) -> None:
        self._book = book
        self._entry = entry
        self._slot: Slot | None = slot
        self._view: memoryview | None = None
        self.nbytes = delivery.nbytes
        self.lease = delivery.lease

    @property
    def order_id(self) -> str:
        """The order that this is the product of."""
        return self._entry.order_id

    @property
    def product_id(self) -> str:
        """What was ordered."""
        return self._entry.product_id

    @property
    def data(self) -> memoryview:
        """The product's ``nbytes`` bytes, read-only and not copied; good until the release.

        Arrays made over them without a copy show another product later. ``bytes`` copies.

        :raises Closed: after the release.
        """
        view = self._view
        if view is None:
            slot = self._slot
            if slot is None:
                raise Closed(
                    f"the product of order {self.order_id} was released, and its slot may hold "
                    f"another; copy what is wanted longer: product.bytes()"
                )
            view = self._view = slot.arena.medium.view(slot.offset, self.nbytes)
        return view

    @property
    def landed(self) -> memoryview | None:
        """The memory that was given with the order, if the product is in there; it may be kept.

        :raises Closed: after the release.
        """
        self.data  # noqa: B018  it says whether there is a slot
        slot = self._slot
        assert slot is not None
        medium: Medium = slot.arena.medium
        landed = medium.landed(slot.offset)
        return None if landed is None or len(landed) != self.nbytes else landed

    def bytes(self) -> bytes:
        """A copy, to keep.

        :raises Closed: after the release.
        """
        return self.data.tobytes()

    def release(self) -> None:
        """Give the slot back; any number of times."""
        slot = self._slot
        if slot is None:
            return
        self._slot = None
        view, self._view = self._view, None
        if view is not None:
            try:
                view.release()
            except BufferError:
                pass  # an array was made over it; it will show whatever comes into the slot
        self._book.release(slot, self._entry.ticket)

    def __buffer__(self, flags: int) -> memoryview:
        return self.data

    def __len__(self) -> int:
        return self.nbytes

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    def __del__(self) -> None:
        self.release()

    def __repr__(self) -> str:
        state = ", released" if self._slot is None else ""
        return f"<Product {self.product_id!r} of order {self.order_id}, {self.nbytes} bytes{state}>"
