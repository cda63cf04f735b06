"""A client that orders, streams and borrows, and looks at all that it is served."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import traceback
from collections.abc import Iterator
from functools import partial
from typing import Any

from entrepot.errors import EntrepotError, OrderFailed
from entrepot.market.client import Client, Order, Product
from entrepot.mediums import FilesystemMedium, ShmMedium, TCPMedium
from entrepot.settings import ClientSettings
from tests.integration.market_products import Made, read
from tests.integration.party_base import Bell, resources

MEDIUMS: dict[str, Any] = {"shm": ShmMedium, "file": FilesystemMedium, "tcp": TCPMedium}


class ClientParty:
    """A client, or ``many`` of them that do the same."""

    def __init__(
        self,
        frontend: str,
        name: str = "client",
        slots: int = 16,
        slot_nbytes: int = 256,
        many: int = 1,
        medium: str = "shm",
        medium_options: dict[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        create = partial(MEDIUMS[medium].create, slot_nbytes, slots, **medium_options or {})
        self._over = Bell()
        signal.signal(signal.SIGTERM, self._over.ring)
        self._clients = [
            Client(
                frontend,
                create(),
                name=f"{name}-{number}" if number else name,
                settings=ClientSettings(**{"timeout_s": 60.0} | settings),
            )
            for number in range(many)
        ]
        self._client = self._clients[0]
        self._streams: list[threading.Thread] = []
        self._orders: dict[str, Order] = {}
        self._lent: dict[str, tuple[Product, bytes]] = {}
        self._served: list[Made] = []
        self._taken = 0
        self._enough = False
        self._errors: list[str] = []

    def serve(self) -> None:
        """Until ``end``, or SIGTERM."""
        self._over.wait()
        self.give_back()
        for client in self._clients:
            client.close()
        for thread in self._streams:
            thread.join()

    def end(self) -> None:
        self._over.ring()

    # --- streams ------------------------------------------------------------------------

    def stream(self, products: list[str], prefetch: int = 8) -> None:
        """Take them one after the other, in a thread."""
        thread = threading.Thread(target=self._take_stream, args=(0, products, prefetch))
        self._streams.append(thread)
        thread.start()

    def streams(self, count: int, prefetch: int = 4) -> None:
        """Each client takes ``count`` products, which have its name."""
        for index, client in enumerate(self._clients):
            products = [f"{client.name}/{number}" for number in range(count)]
            thread = threading.Thread(target=self._take_stream, args=(index, products, prefetch))
            self._streams.append(thread)
            thread.start()

    def _take_stream(self, client: int, products: list[str], prefetch: int) -> None:
        served = 0
        try:
            for product in self._clients[client].stream(products, prefetch=prefetch):
                self._served.append(read(products[served], product.data))
                served += 1
        except Exception as error:
            if not self._over.rung:
                self._errors.append(f"{products[served]}: {type(error).__name__}: {error}")

    def endless(self, prefix: str, ids: int, count: int = 0, prefetch: int = 8) -> None:
        """Take products of ``ids`` names in turn, in a thread; for ever, or ``count`` of them.

        Each is looked at and none is remembered. An error ends the process, with its traceback.
        """

        def names() -> Iterator[str]:
            for number in itertools.count() if count == 0 else range(count):
                yield f"{prefix}/{number % ids}"

        def take() -> None:
            products = self._client.stream(names(), prefetch=prefetch)
            for name, product in zip(names(), products, strict=True):
                read(name, product.data)
                self._taken += 1
                if self._enough:
                    break

        def take_or_die() -> None:
            try:
                take()
            except BaseException:
                if not self._over.rung:
                    traceback.print_exc()
                    os._exit(1)

        thread = threading.Thread(target=take_or_die)
        self._streams.append(thread)
        thread.start()

    def stop_streams(self) -> None:
        """End those that are endless, at their next product."""
        self._enough = True
        for thread in self._streams:
            thread.join()

    def progress(self) -> int:
        """How many products were served; raises when a stream has met an error."""
        if self._errors:
            raise RuntimeError("; ".join(self._errors))
        return len(self._served) + self._taken

    def served(self) -> list[Made]:
        return self._served

    # --- single orders ------------------------------------------------------------------

    def order(self, products: list[str], pad: int = 0, **options: Any) -> None:
        """Order them all at once, under names that are made so many characters long."""
        ids = [product + "🐳" * (pad - len(product)) for product in products]
        for product, order in zip(products, self._client.orders(ids, **options), strict=True):
            self._orders[product] = order

    def take(self, products: list[str], timeout_s: float = 60.0) -> list[Made]:
        """What was ordered; it counts as served."""
        taken = []
        for name in products:
            order = self._orders.pop(name)
            with order.result(timeout_s) as product:
                taken.append(read(order.product_id, product.data)._replace(product_id=name))
        self._served += taken
        return taken

    def fail(self, product: str, timeout_s: float = 60.0) -> dict[str, Any]:
        """How the order ended that cannot succeed."""
        try:
            with self._orders.pop(product).result(timeout_s) as made:
                return {"error": None, "made": bytes(made.data[:100]).decode(errors="replace")}
        except EntrepotError as error:
            said: dict[str, Any] = {
                "error": type(error).__name__,
                "code": error.code,
                "said": str(error),
            }
            if isinstance(error, OrderFailed):
                said |= {"reason": error.reason, "attempts": list(error.attempts)}
            return said

    def miss(self, product: str) -> str:
        """What keeps the product from coming for now; the order stays."""
        try:
            self._orders[product].result(60.0).release()
        except EntrepotError as error:
            return type(error).__name__
        return ""

    def raises(self, product: str) -> dict[str, Any]:
        """What comes of ordering it."""
        try:
            self._client.order(product)
        except EntrepotError as error:
            return {"error": type(error).__name__, "said": str(error)}
        return {"error": None}

    def done(self) -> list[str]:
        """The orders that are over, of those not taken."""
        return [product_id for product_id, order in self._orders.items() if order.done]

    def discard(self) -> int:
        self._orders.clear()
        return self._client.discard()

    def drain(self) -> int:
        return self._client.drain()

    # --- products in hand ---------------------------------------------------------------

    def borrow(self, product: str, timeout_s: float = 60.0) -> Made:
        """Take a product and keep looking at it."""
        taken = self._orders.pop(product).result(timeout_s)
        self._lent[product] = taken, taken.bytes()
        made = read(product, taken.data)
        self._served.append(made)
        return made

    def unchanged(self) -> bool:
        """Whether all that is borrowed still has the bytes that it came with."""
        return all(product.data == before for product, before in self._lent.values())

    def give_back(self) -> None:
        while self._lent:
            self._lent.popitem()[1][0].release()

    # --- what it has --------------------------------------------------------------------

    def figures(self) -> dict[str, int]:
        return self._client.figures()

    def resources(self) -> dict[str, int]:
        held = resources()
        held["threads"] -= sum(thread.is_alive() for thread in self._streams)
        return held

    def medium(self) -> str:
        """The address of what it orders into now."""
        return self._client.medium.address

    def close(self) -> None:
        for client in self._clients:
            client.close()
