"""What goes on after the demonstration, for whoever keeps its page open: some trade."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from entrepot.demo import sms, suppliers
from entrepot.demo.consumer import SLOTS, WINDOW, Watcher
from entrepot.demo.place import Page, Place, start_broker
from entrepot.demo.processes import Part, Parts
from entrepot.errors import DemoFailed, OrderTimeout
from entrepot.market.client import Client
from entrepot.mediums.shm import ShmMedium

ORDERS = WINDOW
EVERY_S = 0.25
"""So many orders, and a pause: enough to see, too little to hear the fan."""

LOOK_S = 2.0
"""Without a product for so long it is looked whether everybody is still there."""

NAME = "tokeniser"


def trade(parts: Parts, place: Place, page: Page, watch: Watcher, path: Path) -> NoReturn:
    """Order and consume until a signal ends it. A supplier that ends is followed by another.

    :param path: where the messages are.
    :raises DemoFailed: the broker ended, or the page.
    """
    broker, backend = start_broker(parts, place, watch)
    supplier = _start_supplier(parts, backend, watch, path)
    batches = itertools.cycle(range(len(suppliers.epoch())))

    def names() -> Iterator[str]:
        for number in itertools.islice(batches, ORDERS):
            yield suppliers.TOKENS_PRODUCT.format(number)

    medium = ShmMedium.create(suppliers.TOKENS.nbytes, SLOTS)
    with Client(place.frontend, medium, name="demo") as client:
        while True:
            try:
                for _product in client.stream(names(), prefetch=WINDOW, timeout_s=LOOK_S):
                    pass
            except OrderTimeout:
                pass  # the supplier is gone, or the machine is busy
            for part in (broker, page.part):
                if part is not None and not part.running:
                    raise DemoFailed(
                        f"{part.title} ended with {part.process.returncode}; {part.log_end()}"
                    )
            if not supplier.running:
                supplier.killed = True  # by somebody: it is not to blame for anything
                supplier = _start_supplier(parts, backend, watch, path)
            time.sleep(EVERY_S)


def _start_supplier(parts: Parts, backend: str, watch: Watcher, path: Path) -> Part:
    supplier = parts.start(
        NAME,
        *("supplier", "--serve", f"{suppliers.__name__}:tokens", "--name", NAME),
        *("--product", suppliers.TOKENS_PATTERN, "--backend", backend, "--json"),
        environment={sms.VARIABLE: str(path)},
    )
    supplier.wait_for("serving")
    watch.part(NAME, supplier.pid, f"serves {suppliers.TOKENS_PATTERN}")
    return supplier
