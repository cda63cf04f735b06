"""Orders that are kept open ahead of who takes their products; waits of it are short."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from entrepot.errors import BrokerUnavailable, NoFreeSlot
from entrepot.market.client import Client
from entrepot.market.order import Entry
from entrepot.market.product import Product

K = TypeVar("K")

REFILL_AT_MOST = 16
"""Orders that may be missing before they are made up for in one message."""


class Window(Generic[K]):
    """What :meth:`Client.stream` keeps inside, for one who has to look up in between.

    No wait in here raises for want of a product, a slot or a broker: it returns when its time is
    over, and whoever waits says how long that may go on. For one thread; ``discard`` of the client
    may come from any.

    :param most: orders to keep open.
    :param ordered: take products in the order in which they were placed, else as they arrive.
    """

    def __init__(self, client: Client, most: int, *, ordered: bool) -> None:
        self._client = client
        self._book = client._book
        self._most = most
        self._refill = min(max(1, most // 4), REFILL_AT_MOST)
        self._sink: deque[Entry] | None = None if ordered else deque()
        self._ahead: dict[Entry, K] = {}

    def __len__(self) -> int:
        """Orders whose products were not taken."""
        return len(self._ahead)

    def connected(self, timeout_s: float) -> bool:
        """Wait for the broker.

        :raises Refused: it does not want this client.
        """
        connection = self._book.connection
        connection.check()
        with connection.lock:
            try:
                connection.open(self._book.clock() + timeout_s)
            except BrokerUnavailable:
                return False
        return True

    def wanted(self) -> int:
        """How many orders to place now; 0 while few are missing, or no slot is free."""
        missing = self._most - len(self._ahead)
        if missing < self._refill and self._ahead:
            return 0
        return min(missing, max(self._book.room(), 0 if self._ahead else 1))

    def place(self, keys: Sequence[K], product_ids: Sequence[str], timeout_s: float) -> bool:
        """Order these, of at most :meth:`wanted`; whether there were slots for them."""
        try:
            entries = self._book.place(product_ids, timeout_s=timeout_s, sink=self._sink)
        except (NoFreeSlot, BrokerUnavailable):
            return False
        self._ahead.update(zip(entries, keys, strict=True))
        return True

    def take(self, timeout_s: float) -> tuple[K, Product] | None:
        """The next product, and the key that it was placed with; None if there is none in time.

        :raises OrderError: what :meth:`Order.result` raises, but for OrderTimeout. The order is not
            in the window any more.
        :raises BrokerUnavailable: there was none for the client's ``timeout_s``.
        """
        book, sink = self._book, self._sink
        book.connection.check()
        if sink is None:
            entry = next(iter(self._ahead))
            ready: Callable[[], bool] = entry.is_over
        else:

            def ready() -> bool:
                return bool(sink)

        if not ready():
            with book.lock:
                book.collect()
                if not book.connection.wait(ready, book.clock() + timeout_s):
                    return None
        if sink is not None:
            entry = sink.popleft()
            entry.sink = None
        key = self._ahead.pop(entry)
        # What is corrupt is made anew, which is waited for here.
        return key, book.result(entry, self._client.timeout_s)

    def discard(self) -> None:
        """Serve nothing of what was placed before; cancelled by the client, or already so."""
        if self._ahead:
            self._client.discard()
            self._ahead.clear()
            if self._sink is not None:
                self._sink.clear()
