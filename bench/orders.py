"""Orders a second and the time of one: forwarders, the peer, and ours, in turn in each round."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from bench.processes import FORWARDER, OURS, Processes
from bench.report import Figures
from tests.peer.process import LineProcess

SLOTS = 64
NBYTES = 64
BATCH = 16
FOUR = 4


class Forwarder:
    """A forwarder with its suppliers and a client."""

    def __init__(self, processes: Processes, gated: bool, suppliers: int) -> None:
        forwarder = processes.start(FORWARDER)
        others = [processes.start(FORWARDER) for _ in range(suppliers + 1)]
        frontend, backend = forwarder.ask("forward", gated=gated)
        for supplier in others[1:]:
            supplier.ask("supply", backend=backend)
        self.client = others[0]
        self.client.ask("connect", frontend=frontend)

    def per_s(self, seconds: float) -> float:
        rate: float = self.client.ask("pump", seconds=seconds, window=SLOTS)
        return rate


class Softs:
    """The peer's broker, four suppliers and a client. One product is served by one of the four.

    Its stock client loses a slot whenever a push comes while it waits for an answer; measured is
    one that does not (see ``tests/peer/softs_client.py``), which is the peer at its best.
    """

    def __init__(self, processes: Processes) -> None:
        self._broker = processes.start("tests.peer.softs_broker")
        self._suppliers = [processes.start("tests.peer.softs_supplier") for _ in range(FOUR)]
        self._client = processes.start("tests.peer.softs_client")

    def connect(self, frontend: str, backend: str) -> None:
        self._broker.ask("start", frontend=frontend, backend=backend)
        for number, supplier in enumerate(self._suppliers):
            patterns = ["four", "one"] if number == 0 else ["four"]
            supplier.ask("start", endpoint=backend, patterns=patterns, medium="shm", nbytes=NBYTES)
        options = {"slot_size": NBYTES, "num_slots": SLOTS, "patched": True}
        self._client.ask("start", endpoint=frontend, medium="shm", **options)

    def per_s(self, product: str, seconds: float) -> float:
        rate: float = self._client.ask("pump", product=product, seconds=seconds)["per_s"]
        return rate


class Ours:
    """Our broker, four suppliers of credit 1, one of credit 16, and a client."""

    def __init__(self, processes: Processes) -> None:
        broker = processes.start(OURS)
        suppliers = [processes.start(OURS) for _ in range(FOUR + 1)]
        self.client = processes.start(OURS)
        frontend, backend = broker.ask("broker")
        for number, supplier in enumerate(suppliers):
            patterns = ["four", "one"] if number == 0 else ["four"]
            if number == FOUR:
                patterns = ["batched"]
            credit = BATCH if number == FOUR else 1
            supplier.ask(
                "supplier", backend=backend, patterns=patterns, credit=credit, nbytes=NBYTES
            )
        self.client.ask("client", frontend=frontend, slot_nbytes=NBYTES, slots=SLOTS)

    def per_s(self, product: str, seconds: float, batch: int = 1) -> float:
        rate: float = self.client.ask("pump", product=product, seconds=seconds, batch=batch)
        return rate


def orders(figures: Figures, peer: Processes, ends: tuple[str, str], quick: bool) -> None:
    """Orders a second, and ``p50_ratio``."""
    rounds, seconds, singles = (3, 0.4, 400) if quick else (7, 2.0, 2000)
    with peer, Processes() as processes:
        softs = Softs(peer)  # they load torch while the others are started
        gated = Forwarder(processes, gated=True, suppliers=1)
        gated4 = Forwarder(processes, gated=True, suppliers=FOUR)
        opened = Forwarder(processes, gated=False, suppliers=1)
        ours = Ours(processes)
        softs.connect(*ends)
        measured: dict[str, Callable[[float], float]] = {
            "gated_per_s": gated.per_s,
            "orders_per_s": lambda s: ours.per_s("one", s),
            "softs_per_s": lambda s: softs.per_s("one", s),
            "gated4_per_s": gated4.per_s,
            "orders4_per_s": lambda s: ours.per_s("four", s),
            "softs4_per_s": lambda s: softs.per_s("four", s),
            "open_per_s": opened.per_s,
            "batched_per_s": lambda s: ours.per_s("batched", s, BATCH),
        }
        for measure in measured.values():
            measure(0.1)  # warm
        for _ in range(rounds):
            figures.add(**{name: measure(seconds) for name, measure in measured.items()})
            one, bare = _p50(ours.client, singles, product="one"), _p50(gated.client, singles)
            figures.add(p50_ratio=one / bare)
            figures.detail(p50_us=1e6 * one, gated_p50_us=1e6 * bare)


def _p50(client: LineProcess, count: int, **fields: Any) -> float:
    times: list[float] = client.ask("one_at_a_time", count=count, **fields)
    return statistics.median(times)
