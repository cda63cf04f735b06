"""Products one after another, while the next ones are being made."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice, repeat

from entrepot.errors import OrderTimeout
from entrepot.market.book import Book
from entrepot.market.order import Entry
from entrepot.market.product import Product

REFILL_AT_MOST = 16
"""Orders that may be missing from the prefetch before they are made up for in one message."""


def stream(
    book: Book,
    product_ids: str | Iterable[str],
    *,
    prefetch: int | None,
    count: int | None,
    timeout_s: float | None,
    priority: int,
) -> Iterator[Product]:
    """See :meth:`Client.stream`, which checks the arguments."""
    wanted: Iterator[str]
    over: deque[Entry] | None
    if isinstance(product_ids, str):
        # Any product of that name is as good as another: the first to arrive is the next.
        wanted, over = repeat(product_ids), deque()
    else:
        wanted, over = iter(product_ids), None
    if count is not None:
        wanted = islice(wanted, count)
    slots = book.medium.slots
    prefetch = max(1, slots // 2) if prefetch is None else min(prefetch, slots)
    refill = min(max(1, prefetch // 4), REFILL_AT_MOST)
    ahead: deque[Entry] = deque()  # placed and not yielded, in their order
    current: Product | None = None
    try:
        while True:
            missing = prefetch - len(ahead)
            if missing >= refill or not ahead:
                most = min(missing, max(book.room(), 0 if ahead else 1))
                ids = list(islice(wanted, most))
                if ids:
                    ahead.extend(book.place(ids, priority=priority, timeout_s=timeout_s, sink=over))
            if not ahead:
                return
            if over is None:
                entry = ahead.popleft()
            else:
                if not over and not book.wait_any(over, timeout_s):
                    raise OrderTimeout(
                        f"none of {len(ahead)} orders for {product_ids!r} has a product after "
                        f"{timeout_s:g} s; see whether a supplier makes it (stats())"
                    )
                entry = over.popleft()
                entry.sink = None
                ahead.remove(entry)
            current = book.result(entry, timeout_s)
            yield current
            current.release()
    finally:
        if current is not None:
            current.release()
        if ahead:
            book.give_up(ahead)
