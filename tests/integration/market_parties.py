"""The far end of :mod:`tests.integration.market_processes`: brokers, suppliers and clients.

``python -m tests.integration.market_parties FD`` loads the library once and then becomes, by
forking, as many parties as are asked for, each a process that shares nothing with the others. A
party ends in order: on SIGTERM as a program of a user's would, through the interpreter's own exit;
when its stdin ends without that, which takes long, but for a look at what it has left behind.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from entrepot.errors import EntrepotError, OrderFailed
from entrepot.market.broker import Broker
from entrepot.market.client import Client, Order, Product
from entrepot.market.supplier import Supplier, Work
from entrepot.mediums import FilesystemMedium, ShmMedium, TCPMedium
from entrepot.settings import BrokerSettings, ClientSettings, SupplierSettings
from tests.integration.market_products import Made, make, read


class Bell:
    """What ``threading.Event`` is, for signal handlers too: its ``set`` may not interrupt its
    ``wait``, since both take one lock."""

    def __init__(self) -> None:
        self.rung = False

    def ring(self, *_: object) -> None:
        self.rung = True

    def wait(self) -> None:
        while not self.rung:
            time.sleep(0.01)


# --- a broker ---------------------------------------------------------------------------


class BrokerParty:
    """A broker."""

    def __init__(self, frontend: str, backend: str, **settings: Any) -> None:
        self._over = Bell()
        signal.signal(signal.SIGTERM, self._over.ring)
        self._broker = Broker(frontend, backend, settings=BrokerSettings(**settings))
        self._broker.start()

    def serve(self) -> None:
        """Until ``end``, or SIGTERM."""
        self._over.wait()
        self._broker.stop()

    def end(self) -> None:
        self._over.ring()

    def resources(self) -> dict[str, int]:
        return resources()


# --- a supplier -------------------------------------------------------------------------


class SupplierParty:
    """A supplier. What it does for a product is the first word of the product's id.

    :param nbytes: of a product.
    :param in_place: fill the slot instead of returning bytes; the word is heeded in the middle.
    :param many: so many suppliers, each in a thread of its own, for crowds.
    """

    def __init__(
        self,
        backend: str,
        patterns: list[str],
        name: str = "supplier",
        credit: int = 1,
        nbytes: int = 256,
        in_place: bool = False,
        many: int = 0,
        **settings: Any,
    ) -> None:
        self._name = name
        self._nbytes = nbytes
        self._lock = threading.Lock()
        self._calls: list[str] = []
        self._made = 0
        self._released = threading.Event()
        self._over = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: self._over.set())
        self._words: dict[str, Callable[[str], Any]] = {
            "hold": lambda _: self._released.wait(),
            "hold-at": lambda who: who == name and self._released.wait(),
            "until-drained": lambda _: self._over.wait(),
            "die": lambda _: os._exit(7),
            "slow": lambda seconds: time.sleep(float(seconds)),
            "gil": hold_the_gil,
            "raise": self._refuse,
            "complain": self._complain,
        }
        function: Callable[..., Any] = self._fill if in_place else self._make
        products = dict.fromkeys(patterns, function)

        def supplier(name: str) -> Supplier:
            return Supplier(
                backend, products, name=name, credit=credit, settings=SupplierSettings(**settings)
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
        """Return once the broker has taken the patterns."""
        for one in (self._supplier, *self._others):
            one.wait_registered(60)

    def release(self) -> None:
        """Let go of what is held, and hold nothing from now on."""
        self._released.set()

    def calls(self) -> list[str]:
        """The products that were asked for so far, each as its call began."""
        return list(self._calls)

    def resources(self) -> dict[str, int]:
        return resources()

    def _begin(self, product_id: str) -> Made:
        with self._lock:
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

    def _complain(self, _: str) -> None:
        raise ValueError("🐳" * 2000)

    def _refuse(self, _: str) -> None:
        raise ValueError(f"{self._name} does not make that")


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


def hold_the_gil(seconds: str) -> None:
    """As a C extension does that computes without letting go."""
    ctypes.PyDLL(None).poll(None, 0, int(float(seconds) * 1000))


# --- a client ---------------------------------------------------------------------------

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

    def progress(self) -> int:
        """How many products were served; raises when a stream has met an error."""
        if self._errors:
            raise RuntimeError("; ".join(self._errors))
        return len(self._served)

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


def resources() -> dict[str, int]:
    """What this process holds."""
    mapped = Path("/proc/self/maps").read_text().splitlines()
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),  # noqa: PTH208  it is counted, not walked
        "threads": len(os.listdir("/proc/self/task")),  # noqa: PTH208
        "segments": len({line.split()[5] for line in mapped if "/dev/shm/entrepot-" in line}),
    }


# --- a process --------------------------------------------------------------------------

SETTLE_S = 5.0
"""How long threads may take to end."""

LEFT_SOMETHING = 3
"""Exit code of a party that has not let go of all that it took."""

PARTIES = {"broker": BrokerParty, "supplier": SupplierParty, "client": ClientParty}


class Lines:
    """Commands as JSON lines in, answers out; not through buffers that a thread may hold."""

    def __init__(self) -> None:
        self._answers = os.dup(1)
        os.dup2(2, 1)
        self._unread = b""

    def read(self) -> dict[str, Any] | None:
        """The next command; None when there will be none."""
        while b"\n" not in self._unread:
            part = os.read(0, 1 << 16)
            if not part:
                return None
            self._unread += part
        line, _, self._unread = self._unread.partition(b"\n")
        command: dict[str, Any] = json.loads(line)
        return command

    def answer(self, function: Callable[..., object], **arguments: Any) -> None:
        try:
            answer: dict[str, object] = {"result": function(**arguments)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        left = json.dumps(answer).encode() + b"\n"
        while left:
            left = left[os.write(self._answers, left) :]


def be_a_party() -> None:
    faulthandler.register(signal.SIGUSR1)
    lines = Lines()
    before = resources()
    command = lines.read()
    if command is None:
        return
    kind = PARTIES[command.pop("do")]
    party: Any = None

    def begin() -> None:
        nonlocal party
        party = kind(**command)

    lines.answer(begin)
    if party is None:
        return

    over = threading.Event()

    def obey() -> None:
        while (command := lines.read()) is not None:
            lines.answer(getattr(party, command.pop("do")), **command)
        over.set()
        party.end()

    threading.Thread(target=obey, daemon=True).start()
    party.serve()
    before["threads"] += 1
    until_s = time.monotonic() + SETTLE_S
    while True:
        now = resources()
        if all(now[what] <= before[what] for what in now):
            break
        if time.monotonic() > until_s:
            print(f"{before} before, and {now} at the end", file=sys.stderr, flush=True)
            os._exit(LEFT_SOMETHING)
        gc.collect()
        time.sleep(0.01)
    if over.is_set():
        os._exit(0)


# --- the process that forks them --------------------------------------------------------


def be_the_nursery(asked: socket.socket) -> None:
    """Start parties, and say how they ended; returns in each party, and at the end."""
    gc.freeze()  # else each party's exit would copy, and then free, all that was loaded here
    while True:
        said, descriptors, _, _ = socket.recv_fds(asked, 100, 3)
        if not said:
            return
        if said != b"start":
            _, status = os.waitpid(int(said), 0)
            asked.send(str(os.waitstatus_to_exitcode(status)).encode())
            continue
        pid = os.fork()
        if pid == 0:
            asked.close()
            for number, descriptor in enumerate(descriptors):
                os.dup2(descriptor, number)
                os.close(descriptor)
            be_a_party()
            return
        process = os.pidfd_open(pid)
        for descriptor in descriptors:
            os.close(descriptor)
        socket.send_fds(asked, [str(pid).encode()], [process])
        os.close(process)


if __name__ == "__main__":
    be_the_nursery(socket.socket(fileno=int(sys.argv[1])))
