"""The client: orders products by name, and has their bytes in slots of its medium."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from entrepot.errors import ConfigurationError
from entrepot.market import protocol
from entrepot.market.book import Book
from entrepot.market.order import Order
from entrepot.market.party import party_name
from entrepot.market.product import Product
from entrepot.market.slots import STATES
from entrepot.market.stream import stream
from entrepot.mediums.base import Medium
from entrepot.settings import ClientSettings, read_settings

if TYPE_CHECKING:
    from typing import Self

    from entrepot.contract import Contract

__all__ = ["Client", "Order", "Product"]


class Client:
    """Orders products and takes them, from any number of threads.

    It connects with the first order, so nothing has to be started before it. It owns its medium
    and closes it. Not for use across a fork: a child makes a client of its own.

    >>> with Client("tcp://broker:5555", ShmMedium.create(1 << 20, 64)) as client:
    ...     with client.order("layer_3").result(timeout_s=5) as product:
    ...         consume(product.data)

    :param endpoint: the broker's frontend, ``tcp://host:port`` or ``ipc:///path``.
    :param medium: made with its ``create``; each open order and each product has one slot of it.
    :param name: shown in the broker's statistics and logs; host and process id by default.
    :param settings: timeouts and limits; by default what the environment says. Its endpoint and
        slots are for who makes the arguments.
    :param timeout_s: seconds to wait for the broker, in place of the setting.
    :param contract: what the products' bytes mean. Suppliers that registered another contract for
        a product do not get its orders.
    :param session: 16 bytes to be known by; random by default.
    :param clock: seconds, going up.
    """

    def __init__(
        self,
        endpoint: str,
        medium: Medium,
        *,
        name: str = "",
        settings: ClientSettings | None = None,
        timeout_s: float | None = None,
        contract: Contract | str | None = None,
        session: bytes | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        settings = settings or read_settings().client
        if session is not None and len(session) != 16:
            raise ConfigurationError(f"a session is 16 bytes, got {len(session)}")
        if timeout_s is None:
            timeout_s = settings.timeout_s
        self.endpoint = endpoint
        self.name = party_name(name)
        self.timeout_s = checked_seconds("timeout_s", timeout_s)
        medium.take(self.name)
        digest = contract if contract is None or isinstance(contract, str) else contract.digest
        self._book = Book(
            endpoint,
            medium,
            name=self.name,
            contract=digest,
            session=session or os.urandom(16),
            timeout_s=timeout_s,
            silence_s=settings.silence_s,
            max_corrupt=settings.max_corrupt,
            clock=clock,
        )

    @property
    def medium(self) -> Medium:
        """The medium that orders get their slots from; another after :meth:`Medium.renew`."""
        return self._book.medium

    # --- ordering -----------------------------------------------------------------------

    def order(
        self,
        product_id: str,
        *,
        priority: int = 0,
        deadline_s: float | None = None,
        input: Any = None,
        timeout_s: float | None = None,
    ) -> Order:
        """Order one product.

        :param priority: higher goes first, over all products.
        :param deadline_s: seconds after which no supplier is given the order any more.
        :param input: bytes for the supplier to read; they take a second slot until the order ends.
        :param timeout_s: seconds to wait for the broker and for a free slot; by default the
            client's.
        :raises NoFreeSlot: none became free in that time.
        :raises BrokerUnavailable: no broker answered in that time.
        :raises ProductTooLarge: the input is larger than a slot.
        """
        _check_id(product_id)
        _check_terms(priority, deadline_s)
        book = self._book
        inputs = None if input is None else (input,)
        (entry,) = book.place((product_id,), priority, deadline_s, inputs, timeout_s)
        return Order(book, entry)

    def orders(
        self,
        product_ids: Iterable[str],
        *,
        priority: int = 0,
        deadline_s: float | None = None,
        inputs: Iterable[Any] | None = None,
        timeout_s: float | None = None,
    ) -> list[Order]:
        """Order many products in one message: all, or none. See :meth:`order`.

        :param inputs: one for each product.
        """
        if isinstance(product_ids, str):
            raise ConfigurationError(f"orders wants several ids, got {product_ids!r}; use order")
        ids = tuple(product_ids)
        given = None if inputs is None else tuple(inputs)
        if given is not None and len(given) != len(ids):
            raise ConfigurationError(f"{len(ids)} products and {len(given)} inputs were given")
        for product_id in ids:
            _check_id(product_id)
        _check_terms(priority, deadline_s)
        if not ids:
            return []
        book = self._book
        entries = book.place(ids, priority, deadline_s, given, timeout_s)
        return [Order(book, entry) for entry in entries]

    def stream(
        self,
        product_id: str | Iterable[str],
        *,
        prefetch: int | None = None,
        count: int | None = None,
        timeout_s: float | None = None,
        priority: int = 0,
    ) -> Iterator[Product]:
        """Products one after another, while the next ones are being made.

        Each product is released when the next is asked for. Ending the loop early cancels what is
        open. An error ends the stream.

        :param product_id: one id, of which the first product to arrive is the next; or several,
            whose products come in the order of their ids.
        :param prefetch: orders kept open, a few less at times; half of the slots by default.
        :param count: products to yield; without it, until the ids are used up.
        :param timeout_s: seconds to wait for each product; None waits while the broker is there.
        :raises OrderTimeout: from the loop, as all that :meth:`Order.result` raises.
        """
        if isinstance(product_id, str):
            _check_id(product_id)
        if prefetch is not None and prefetch < 1:
            raise ConfigurationError(f"prefetch must be at least 1, got {prefetch}")
        if count is not None and count < 0:
            raise ConfigurationError(f"count must be at least 0, got {count}")
        _check_terms(priority, None)
        self._book.connection.check()
        return stream(
            self._book,
            product_id,
            prefetch=prefetch,
            count=count,
            timeout_s=timeout_s,
            priority=priority,
        )

    # --- taking back --------------------------------------------------------------------

    def cancel(self, order: Order) -> bool:
        """Never serve ``order``; whether it was still open, or its product untaken.

        Does not wait. Its slot is free when no supplier has the order any more.
        """
        return order.cancel()

    def discard(self) -> int:
        """Never serve anything that was ordered before now; how many orders that ends.

        Does not wait, and does not need the broker to be there: what was ordered before is told
        from what comes after. Products that were taken stay good until they are released. Slots
        are free when no supplier has their order any more.
        """
        return self._book.discard()

    # --- asking -------------------------------------------------------------------------

    def stats(self, timeout_s: float | None = None) -> dict[str, Any]:
        """The broker's figures.

        :raises BrokerUnavailable: it did not answer in ``timeout_s``, by default the client's.
        """
        reply = self._book.ask(
            protocol.STATS,
            lambda seq: protocol.encode(protocol.StatsRequest(seq)),
            self.timeout_s if timeout_s is None else timeout_s,
        )
        return reply.stats or {}

    def drain(self, name: str | None = None, timeout_s: float | None = None) -> int:
        """Have the suppliers of that name, or all, finish what they hold and leave.

        :returns: how many were told.
        :raises Refused: the broker does not allow it.
        :raises BrokerUnavailable: it did not answer in ``timeout_s``, by default the client's.
        """
        reply = self._book.ask(
            protocol.DRAIN,
            lambda seq: protocol.encode(protocol.Drain(seq, name)),
            self.timeout_s if timeout_s is None else timeout_s,
        )
        return reply.terminated

    def figures(self) -> dict[str, int]:
        """This client's own counts: slots by state, and what went wrong so far.

        ``corrupt`` products, ``unexpected`` messages that were ignored, ``malformed`` ones,
        ``reconnects``, sessions ``resumed`` and ``restarted``, and ``arenas`` made.
        """
        book = self._book
        book.connection.check_process()
        with book.lock:
            book.collect()
            slots = {name: book.table.count(state) for state, name in enumerate(STATES)}
            return {
                **slots,
                **book.figures,
                "reconnects": book.connection.reconnects,
                "malformed": book.connection.malformed,
            }

    # --- the end ------------------------------------------------------------------------

    def close(self) -> None:
        """Leave the broker and close the medium; any number of times. Open orders are cancelled."""
        self._book.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Client {self.name} of {self.endpoint}, {self.medium!r}>"


def checked_seconds(name: str, value: float) -> float:
    """``value``, if it is a time to wait.

    :raises ConfigurationError: it is not.
    """
    if not (0 < value <= 1e9) or math.isnan(value):
        raise ConfigurationError(f"{name} is in seconds, more than 0 and at most 1e9, got {value}")
    return value


def _check_id(product_id: object) -> None:
    if not isinstance(product_id, str):
        raise ConfigurationError(f"a product id is a str, got {type(product_id).__name__}")
    if len(product_id) > protocol.ID_CHARS:
        raise ConfigurationError(
            f"a product id has at most {protocol.ID_CHARS} characters, got {len(product_id)}"
        )
    if not product_id.isascii():
        try:
            product_id.encode()
        except UnicodeEncodeError as error:
            raise ConfigurationError(f"product id {product_id!r} is not text: {error}") from None


def _check_terms(priority: int, deadline_s: float | None) -> None:
    if not -(2**31) <= priority < 2**31:
        raise ConfigurationError(f"priority must fit in 32 bits, got {priority}")
    if deadline_s is not None:
        checked_seconds("deadline_s", deadline_s)
