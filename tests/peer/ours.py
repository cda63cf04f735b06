"""Our own broker, supplier and client, driven: ``python -m tests.peer.ours`` is one process."""

from __future__ import annotations

import os
import socket
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Literal

from entrepot.market.broker import Broker
from entrepot.market.client import Client
from entrepot.market.supplier import Supplier, Work
from entrepot.mediums import ShmMedium, create, shm
from entrepot.mediums.filesystem import FILE_CHUNK_NBYTES
from entrepot.settings import BrokerSettings, ClientSettings, SupplierSettings
from tests.peer.generator import Generator
from tests.peer.lines import commands, serve

TIMEOUT_S = 30.0


class Driven:
    """The commands."""

    def __init__(self) -> None:
        self._called_at: list[float] = []

    # --- a broker -----------------------------------------------------------------------

    def broker(self, **settings: Any) -> tuple[str, str]:
        """Become a broker; returns where clients and where suppliers connect."""
        self._broker = Broker(
            "tcp://127.0.0.1:*", "tcp://127.0.0.1:*", settings=BrokerSettings(**settings)
        )
        self._broker.start()
        return self._broker.frontend, self._broker.backend

    # --- a supplier ---------------------------------------------------------------------

    def supplier(
        self,
        backend: str,
        patterns: list[str],
        name: str = "",
        credit: int | None = None,
        batch: int | None = None,
        call_s: float = 0.0,
        **behaviour: Any,
    ) -> None:
        """Become a supplier; returns once the broker knows it.

        :param batch: orders made in one call, at most.
        :param call_s: seconds that a call takes, for however many orders.
        """
        self._generator = Generator(name, **behaviour)

        def make(product_id: str) -> bytes:
            self._called_at.append(time.monotonic())
            if call_s:
                time.sleep(call_s)
            return self._generator(product_id)

        def make_many(works: list[Work]) -> list[bytes]:
            time.sleep(call_s)
            return [self._generator(work.product_id) for work in works]

        function: Callable[..., Any] = make if batch is None else make_many
        self._supplier = Supplier(
            backend,
            dict.fromkeys(patterns, function),
            name=name,
            credit=credit,
            batch=batch,
            settings=SupplierSettings(file_root=str(shm.DIRECTORY)),
        )
        self._supplier.start()
        self._supplier.wait_registered(TIMEOUT_S)

    def calls(self) -> list[str]:
        return self._generator.calls()

    def called_at(self) -> list[float]:
        """When each call began, on the machine's monotonic clock."""
        return self._called_at

    def served(self) -> int:
        """Products that were made and written."""
        return self._supplier.served

    def release(self) -> None:
        self._generator.release()

    def stop(self) -> None:
        """Release what is held, say GOODBYE."""
        self._generator.release()
        self._supplier.stop()

    # --- a client -----------------------------------------------------------------------

    def client(
        self,
        frontend: str,
        slot_nbytes: int = 64,
        slots: int = 64,
        medium: Literal["shm", "file", "tcp"] = "shm",
    ) -> None:
        """Become a client. Its files, if it has any, are in memory."""
        self._slots = slots
        settings = ClientSettings(
            medium=medium,
            slot_nbytes=slot_nbytes,
            slots=slots,
            file_root=str(shm.DIRECTORY),
            timeout_s=TIMEOUT_S,
        )
        self._client = Client(frontend, create(settings))

    def pump(self, product: str, seconds: float, batch: int = 1) -> float:
        """Products a second, with every slot ordered: ``batch`` of them in one message."""
        slots, served = self._slots, 0
        products = [product] * batch
        waiting = deque(self._order(products) for _ in range(slots // batch))
        started = time.monotonic()
        until = started + seconds
        while time.monotonic() < until:
            for order in waiting.popleft():
                with order.result(timeout_s=TIMEOUT_S):
                    pass
            waiting.append(self._order(products))
            served += batch
        spent = time.monotonic() - started
        for orders in waiting:
            for order in orders:
                with order.result(timeout_s=TIMEOUT_S):
                    pass
        return served / spent

    def _order(self, products: list[str]) -> list[Any]:
        if len(products) == 1:
            return [self._client.order(products[0])]
        return list(self._client.orders(products))

    def stream(self, product: str, count: int, prefetch: int, consume_s: float = 0.0) -> float:
        """Seconds for ``count`` products through ``stream``, after the first one is there."""
        started = 0.0
        for number, product_in_hand in enumerate(self._client.stream(product, prefetch=prefetch)):
            with product_in_hand:
                if number == 0:
                    started = time.monotonic()
                if consume_s:
                    time.sleep(consume_s)
            if number == count:
                break
        return time.monotonic() - started

    def one_at_a_time(self, product: str, count: int) -> list[float]:
        """Seconds from ordering to having, for each of ``count`` orders in turn."""
        times = []
        for _ in range(count):
            started = time.perf_counter()
            with self._client.order(product).result(timeout_s=TIMEOUT_S):
                pass
            times.append(time.perf_counter() - started)
        return times

    def memcpy(self, nbytes: int, slots: int, seconds: float) -> float:
        """Bytes a second copied into a ring of slots of the same kind of memory."""
        source = memoryview(bytearray(b"m" * nbytes))
        medium = ShmMedium.create(slot_nbytes=nbytes, slots=slots)
        try:
            ring = [
                medium.view(medium.offset(slot), nbytes, writable=True) for slot in range(slots)
            ]
            for slot in ring:
                slot[:] = source
            copied, started = 0, time.monotonic()
            while time.monotonic() < started + seconds:
                ring[copied % slots][:] = source
                copied += 1
            spent = time.monotonic() - started
            for slot in ring:
                slot.release()
            return copied * nbytes / spent
        finally:
            medium.close()

    def pwrite(self, nbytes: int, slots: int, seconds: float) -> float:
        """Bytes a second written into a ring of slots of a file, and read by nobody."""
        source = memoryview(bytearray(b"m" * nbytes))
        with tempfile.TemporaryFile(dir=shm.DIRECTORY) as file:
            for slot in range(slots):
                os.pwrite(file.fileno(), source, slot * nbytes)
            written, started = 0, time.monotonic()
            while time.monotonic() < started + seconds:
                slot = written % slots
                for start in range(0, nbytes, FILE_CHUNK_NBYTES):
                    piece = source[start : start + FILE_CHUNK_NBYTES]
                    os.pwrite(file.fileno(), piece, slot * nbytes + start)
                written += 1
            return written * nbytes / (time.monotonic() - started)

    # --- bytes through a bare socket ------------------------------------------------------

    def listen(self) -> int:
        """The port at which ``receive`` will take one connection."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        port: int = self._listener.getsockname()[1]
        return port

    def pour(self, port: int, nbytes: int) -> None:
        """Send to ``port``, in pieces of ``nbytes``, until nobody takes it any more."""
        source = bytes(nbytes)

        def send() -> None:
            with socket.create_connection(("127.0.0.1", port)) as out:
                out.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                try:
                    while True:
                        out.sendall(source)
                except OSError:
                    return

        threading.Thread(target=send, name="pour", daemon=True).start()

    def receive(self, nbytes: int, slots: int, seconds: float) -> float:
        """Bytes a second received straight into a ring of slots, from one connection."""
        ring = [memoryview(bytearray(nbytes)) for _ in range(slots)]
        with self._listener, self._listener.accept()[0] as arriving:
            for slot in ring:  # touch every page
                _receive_into(arriving, slot)
            received, started = 0, time.monotonic()
            while time.monotonic() < started + seconds:
                _receive_into(arriving, ring[received % slots])
                received += 1
            spent = time.monotonic() - started
        return received * nbytes / spent

    def close(self) -> None:
        """A client's segment goes with it."""
        if hasattr(self, "_client"):
            self._client.close()


def _receive_into(arriving: socket.socket, slot: memoryview) -> None:
    got = 0
    while got < len(slot):
        got += arriving.recv_into(slot[got:])


if __name__ == "__main__":
    serve(commands(Driven()))
