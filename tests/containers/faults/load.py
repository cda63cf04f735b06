"""What the clients of the tests do; it runs in their containers.

    load.py steady         orders that are made, cancelled and refused, and a study that goes on
    load.py more           orders that pile up, fail, or are made by nobody
    load.py trial STUDY    one trial, for as long as this lives
    load.py rescue STUDY   what docs/runbook.md says to do about one that was abandoned

Each goes on while broker or store are away.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable

import zmq

from entrepot.errors import EntrepotError
from entrepot.market.client import Client
from entrepot.market.order import Order
from entrepot.mediums.chosen import create
from entrepot.settings import read_settings
from entrepot.store import EMPTY, Store
from entrepot.study import Sampler, Space, Study

ENDPOINT = read_settings().client.endpoint
STORE = os.environ["LOAD_STORE"]
SPACE = Space().real("lr", 0.0, 1.0)
TRIALS = 100_000
BEAT_S = 1.0
PER_S = 20.0


def client(name: str) -> Client:
    return Client(ENDPOINT, create(), name=name, timeout_s=60.0)


def again(step: Callable[[], None], every_s: float) -> None:
    """For ever, whatever comes of it."""
    while True:
        try:
            step()
        except EntrepotError as fault:
            print(f"{step.__name__}: {fault}", file=sys.stderr, flush=True)
        time.sleep(every_s)


def together(*steps: tuple[Callable[[], None], float]) -> None:
    threads = [threading.Thread(target=again, args=step) for step in steps]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


# --- orders -----------------------------------------------------------------------------


def steady() -> None:
    market = client("steady")

    def orders() -> None:
        # Of two products: the busier one gives its name to the other's panel as well.
        for name in ("load/a", "load/b"):
            market.order(name).result(60.0).release()

    def cancels() -> None:
        market.order("load/c").cancel()

    def one_that_runs() -> None:
        one_trial("steady")

    strange_record()
    studies = [(study, 0.5), (one_that_runs, 0.5)]
    together((orders, 1 / PER_S), (cancels, 0.5), (nonsense, 0.5), *studies)


def nonsense() -> None:
    """A message that the broker refuses."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
    with context.socket(zmq.DEALER) as line:
        line.setsockopt(zmq.LINGER, 1_000)
        line.connect(ENDPOINT)
        line.send_multipart([b"NONSENSE", b"\x80"])
        line.poll(1_000)


def more() -> None:
    """Each second as many orders as ever; what was made is taken."""
    market = client("more")
    waiting: deque[Order] = deque()

    def pile() -> None:
        waiting.append(market.order("load/pile"))
        while waiting and waiting[0].done:
            waiting.popleft().result(0.0).release()

    def fragile() -> None:
        market.order("fragile").result(60.0).release()

    def nobody() -> None:
        market.order("nobody/makes/this").result(3600.0).release()

    def stuck() -> None:
        market.order("stuck").result(3600.0).release()

    together((pile, 1 / PER_S), (nobody, 5.0), (stuck, 3600.0), *[(fragile, 0.1)] * 4)


# --- trials -----------------------------------------------------------------------------


def study() -> None:
    """Trials that are done, pruned, failed and released, in turns."""
    trials = Study(Store.open(STORE), "steady", SPACE, Sampler.random(), stale=4 * BEAT_S)
    for trial, end in zip(trials.work(TRIALS), itertools.cycle(range(4)), strict=False):
        try:
            with trial:
                trial.report(1 + trial.number % 7)
                time.sleep(0.5)
                if end == 1:
                    trial.prune("it was its turn")
                elif end == 2:
                    raise ArithmeticError("it was its turn")
                elif end == 3:
                    trial.release()
        except ArithmeticError:
            continue


def one_trial(name: str) -> None:
    trials = Study(Store.open(STORE), name, SPACE, Sampler.random(), stale=4 * BEAT_S)
    for trial in trials.work(TRIALS):
        with trial:
            trial.report(0.5)
            while True:
                time.sleep(BEAT_S)  # the study's own thread says that this lives


def strange_record() -> None:
    """It stands where trials do, and is none."""
    store = Store.open(STORE)
    store.bind("odd/trial/0/0", EMPTY, {"state": "nonsense"})
    store.close()


def rescue(name: str) -> None:
    os.execvp("entrepot", ["entrepot", "study", "rescue", STORE, name, "--stale", "0"])


if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    parts: dict[str, Callable[..., None]]
    parts = {"steady": steady, "more": more, "trial": one_trial, "rescue": rescue}
    parts[what](*rest)
