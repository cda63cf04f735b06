"""The client: orders products by name, and has their bytes in slots of its medium."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from entrepot.arguments import (
    checked_callable,
    checked_int,
    checked_kind,
    checked_seconds,
    checked_several,
    checked_text,
    checked_wait,
)
from entrepot.errors import ConfigurationError
from entrepot.market import protocol
from entrepot.market.book import Book
from entrepot.market.order import Order
from entrepot.market.party import NAME_CHARS, party_name
from entrepot.market.product import Product
from entrepot.market.slots import STATES
from entrepot.market.stream import stream
from entrepot.market.terms import difference, digest_of
from entrepot.mediums.base import Medium
from entrepot.mediums.buffers import as_bytes
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
    :raises ConfigurationError: an argument cannot be one; as from all methods.
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
        if settings is None:
            settings = read_settings().client
        checked_kind("settings", settings, ClientSettings, "read_settings().client makes them")
        if session is not None:
            _check_session(session)
        if timeout_s is None:
            timeout_s = settings.timeout_s
        self.endpoint = checked_text("endpoint", endpoint)
        self.name = party_name(name)
        self.timeout_s = checked_seconds("timeout_s", timeout_s)
        checked_callable("clock", clock)
        digest = digest_of(contract)
        checked_kind("medium", medium, Medium, "ShmMedium.create(slot_nbytes, slots) makes one")
        medium.take(self.name)
        self._book = Book(
            endpoint,
            medium,
            name=self.name,
            contract=digest,
            explain=partial(difference, contract),
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
        into: Any = None,
        timeout_s: float | None = None,
    ) -> Order:
        """Order one product.

        :param priority: higher goes first, over all products.
        :param deadline_s: seconds after which no supplier is given the order any more.
        :param input: bytes for the supplier to read; they take a second slot until the order ends.
            A list of such is written one after the other, so that nobody need join them.
        :param into: memory for a product of exactly as many bytes, which it may arrive in: by TCP
            it is received there, from shared memory copied while it is summed, and files do not do
            it. See ``Product.landed``. It is not to be touched until the order has ended.
        :param timeout_s: seconds to wait for the broker and for a free slot; by default the
            client's.
        :raises NoFreeSlot: none became free in that time.
        :raises BrokerUnavailable: no broker answered in that time.
        :raises ProductTooLarge: the input is larger than a slot.
        """
        _checked_id(product_id)
        priority, deadline_s = _checked_terms(priority, deadline_s)
        timeout_s = checked_wait("timeout_s", timeout_s)
        book = self._book
        inputs = None if input is None else (input,)
        memory = None if into is None else _checked_memory(into)
        (entry,) = book.place((product_id,), priority, deadline_s, inputs, timeout_s, into=memory)
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
        ids = tuple(checked_several("product_ids", product_ids))
        given = None if inputs is None else tuple(checked_several("inputs", inputs))
        if given is not None and len(given) != len(ids):
            raise ConfigurationError(f"{len(ids)} products and {len(given)} inputs were given")
        for product_id in ids:
            _checked_id(product_id)
        priority, deadline_s = _checked_terms(priority, deadline_s)
        timeout_s = checked_wait("timeout_s", timeout_s)
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
        wanted: str | Iterable[str]
        if isinstance(product_id, str):
            wanted = _checked_id(product_id)
        else:
            wanted = map(_checked_id, checked_several("product_id", product_id))
        if prefetch is not None:
            prefetch = checked_int("prefetch", prefetch, 1)
        if count is not None:
            count = checked_int("count", count, 0)
        priority, _ = _checked_terms(priority, None)
        timeout_s = checked_wait("timeout_s", timeout_s)
        self._book.connection.check()
        return stream(
            self._book,
            wanted,
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
        how = "Client.order makes one"
        checked_kind("order", order, Order, how)
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
            self._limit_s(timeout_s),
        )
        return reply.stats or {}

    def drain(self, name: str | None = None, timeout_s: float | None = None) -> int:
        """Have the suppliers of that name, or all, finish what they hold and leave.

        :returns: how many were told.
        :raises Refused: the broker does not allow it.
        :raises BrokerUnavailable: it did not answer in ``timeout_s``, by default the client's.
        """
        if name is not None:
            checked_text("name", name, NAME_CHARS)
        reply = self._book.ask(
            protocol.DRAIN,
            lambda seq: protocol.encode(protocol.Drain(seq, name)),
            self._limit_s(timeout_s),
        )
        return reply.terminated

    def _limit_s(self, timeout_s: float | None) -> float:
        given = checked_wait("timeout_s", timeout_s)
        return self.timeout_s if given is None else given

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


def _check_session(session: Any) -> None:
    """Not shown when it is wrong: who knows a session may take it over."""
    if not isinstance(session, bytes):
        raise ConfigurationError(f"a session is 16 bytes, got a {type(session).__name__}")
    if len(session) != 16:
        raise ConfigurationError(f"a session is 16 bytes, got {len(session)}")


def _checked_id(product_id: str) -> str:
    return checked_text("a product id", product_id, protocol.ID_CHARS)


def _checked_memory(into: Any) -> memoryview:
    memory = as_bytes(into)
    if memory.readonly:
        raise ConfigurationError(
            f"into is memory that a product is written to, and this {type(into).__name__} is "
            f"read-only; give a bytearray, or an array that may be written"
        )
    return memory


def _checked_terms(priority: int, deadline_s: float | None) -> tuple[int, float | None]:
    """What can be sent. A number of numpy's cannot, and is made one of Python's."""
    return (
        checked_int("priority", priority, -(2**31), 2**31 - 1),
        None if deadline_s is None else checked_seconds("deadline_s", deadline_s),
    )
