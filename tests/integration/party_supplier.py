"""A supplier that does what the first word of a product's id says."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from entrepot.market.supplier import Supplier, Work
from entrepot.settings import SupplierSettings
from tests.integration.market_products import Made, make
from tests.integration.party_base import resources
from tests.integration.party_breakpoint import Breakpoint
from tests.peer.waiting import until


class SupplierParty:
    """A supplier. What it does for a product is the first word of the product's id.

    :param nbytes: of a product.
    :param in_place: fill the slot instead of returning bytes; the word is heeded in the middle.
    :param batch: make so many in one call, one after the other.
    :param many: so many suppliers, each in a thread of its own, for crowds.
    :param note: remember what was asked for, for :meth:`calls`.
    :param gate: a FIFO, for ``gil``: held as long as said, and until something is written there.
    """

    def __init__(
        self,
        backend: str,
        patterns: list[str],
        name: str = "supplier",
        credit: int | None = None,
        nbytes: int = 256,
        in_place: bool = False,
        batch: int | None = None,
        many: int = 0,
        note: bool = True,
        gate: str = "",
        **settings: Any,
    ) -> None:
        self._name = name
        self._nbytes = nbytes
        self._note = note
        self._lock = threading.Lock()
        self._calls: list[str] = []
        self._made = 0
        self._released = threading.Event()
        self._breakpoint = Breakpoint(self._released)
        self._over = threading.Event()
        self._own_handler = lambda *_: self._over.set()
        signal.signal(signal.SIGTERM, self._own_handler)
        self._words: dict[str, Callable[[str], Any]] = {
            "hold": lambda _: self._released.wait(),
            "hold-at": lambda who: who == name and self._released.wait(),
            "until-drained": lambda _: self._over.wait(),
            "die": lambda _: os._exit(7),
            "slow": lambda seconds: time.sleep(float(seconds)),
            "gil": partial(hold_the_gil, gate),
            "raise": self._refuse,
            "complain": self._complain,
        }
        for where in ("before", "within", "after"):
            self._words[f"break-{where}"] = partial(self._break, where)
        function: Callable[..., Any] = self._fill if in_place else self._make
        if batch is not None:
            function = self._fill_many if in_place else self._make_many
        products = dict.fromkeys(patterns, function)

        def supplier(name: str) -> Supplier:
            return Supplier(
                backend,
                products,
                name=name,
                credit=credit,
                batch=batch,
                settings=SupplierSettings(**settings),
            )

        self._supplier = supplier(name)
        self._others = [supplier(f"{name}-{number}") for number in range(1, many)]

    def serve(self) -> None:
        """Until ``end``, SIGTERM, or the broker's TERMINATE."""
        for other in self._others:
            other.start()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the supplier's from here on
        self._supplier.run(self._over)
        self._over.set()
        for other in self._others:
            other.stop()

    def end(self) -> None:
        self._released.set()
        self._over.set()

    def registered(self) -> None:
        """Return once the broker has taken the patterns, and SIGTERM is the supplier's."""
        for one in (self._supplier, *self._others):
            one.wait_registered(60)
        until(self.hears)

    def hears(self) -> bool:
        """Whether SIGTERM is the supplier's own to handle by now."""
        return signal.getsignal(signal.SIGTERM) not in (self._own_handler, signal.SIG_DFL)

    def release(self) -> None:
        """Let go of what is held, and hold nothing from now on."""
        self._released.set()

    def calls(self) -> list[str]:
        """The products that were asked for so far, each as its call began."""
        return list(self._calls)

    def held(self) -> int:
        """How often its thread was held at a breakpoint so far."""
        return self._breakpoint.held

    def passed(self) -> int:
        """How many writes that met a breakpoint are over, whatever came of them."""
        return self._breakpoint.passed

    def resources(self) -> dict[str, int]:
        return resources()

    def _begin(self, product_id: str) -> Made:
        with self._lock:
            if self._note:
                self._calls.append(product_id)
            self._made += 1
            return Made(product_id, self._name, self._made)

    def _heed(self, product_id: str) -> str:
        word, _, rest = product_id.partition(":")
        if word in self._words:
            self._words[word](rest.partition(":")[0])
        return word

    def _make(self, product_id: str) -> Any:
        made = self._begin(product_id)
        word = self._heed(product_id)
        return ODD[word](self._nbytes) if word in ODD else make(made, self._nbytes)

    def _fill(self, work: Work, out: memoryview) -> Any:
        """``hold-early`` and ``hold-late`` wait before and after writing, other words between."""
        made = self._begin(work.product_id)
        product = make(made, self._nbytes)
        half = len(product) // 2
        word = work.product_id.partition(":")[0]
        if word == "hold-early":
            self._released.wait()
        out[:half] = product[:half]
        self._heed(work.product_id)
        out[half : len(product)] = product[half:]
        if word == "hold-late":
            self._released.wait()
        return MISSTATED[word](len(out)) if word in MISSTATED else len(product)

    def _make_many(self, works: list[Work]) -> list[Any]:
        return [_answer(self._make, work.product_id) for work in works]

    def _fill_many(self, works: list[Work], outs: list[memoryview]) -> list[Any]:
        return [_answer(self._fill, *each) for each in zip(works, outs, strict=True)]

    def _break(self, where: str, _: str) -> None:
        self._breakpoint.arm(where)

    def _complain(self, _: str) -> None:
        raise ValueError("🐳" * 2000)

    def _refuse(self, _: str) -> None:
        raise ValueError(f"{self._name} does not make that")


def _answer(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function for one returns or raises, as one for many answers it."""
    try:
        return function(*arguments)
    except ValueError as error:
        return error


ODD: dict[str, Callable[[int], Any]] = {
    "too-much": lambda nbytes: b"x" * (nbytes + 1),
    "nothing": lambda nbytes: b"",
    "none": lambda nbytes: None,
    "text": lambda nbytes: "text",
    "number": lambda nbytes: 7,
    "gaps": lambda nbytes: memoryview(bytes(nbytes))[::2],
}
"""What a product of that name is in place of what it should be."""

MISSTATED: dict[str, Callable[[int], Any]] = {
    "overstate": lambda nbytes: nbytes + 1,
    "understate": lambda nbytes: -1,
    "misstate": lambda nbytes: "many",
    "unstated": lambda nbytes: None,
}
"""What a function that filled a slot of ``nbytes`` says of how much it filled."""


class _Polled(ctypes.Structure):
    """C's ``struct pollfd``."""

    _fields_ = (("fd", ctypes.c_int), ("events", ctypes.c_short), ("revents", ctypes.c_short))


def hold_the_gil(gate: str, seconds: str) -> None:
    """As a C extension does that computes without letting go."""
    poll = ctypes.PyDLL(None).poll
    descriptor = os.open(gate, os.O_RDONLY | os.O_NONBLOCK)
    try:
        poll(None, 0, int(float(seconds) * 1000))
        polled = _Polled(descriptor, select.POLLIN)
        while not poll(ctypes.byref(polled), 1, -1):
            pass
    finally:
        os.close(descriptor)
