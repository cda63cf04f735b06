"""The second half: the epoch of tokens again, over TCP, and the line is cut for a moment.

``python -m entrepot.demo.over_tcp PARENT HOME FRONTEND`` is the client of it, in a process of its
own because it leaves this machine's network where it may. It starts a broker beside itself and a
supplier on the far side, tells what happens as JSON, and ends with its parent.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from entrepot.cli.child import end_with_parent
from entrepot.demo import sms, suppliers
from entrepot.demo.consumer import (
    LOOK_S,
    PRODUCT_S,
    SLOTS,
    Consumer,
    Epoch,
    Watcher,
    tokens_of_an_epoch,
)
from entrepot.demo.place import Place, start_broker
from entrepot.demo.processes import Part, Parts
from entrepot.demo.way import TIMEOUT_S, Way, find
from entrepot.errors import DemoFailed, EntrepotError
from entrepot.market.client import Client

PROCESSES = 3
"""Client, broker and supplier."""

BATCH = 8
"""Orders that the supplier makes in one call."""

CUT_AT = 1 / 2
"""Where in the epoch that happens."""

GIVE_UP_S = 20.0
"""Time for the broker to give a supplier up that cannot be reached."""

END_S = 3.0
"""Time for broker and supplier to leave; less than this process is given itself."""

TELL_S = 0.05
"""How often it is told how far a stage is."""

BROKER = {
    "ENTREPOT_BROKER__BEAT_S": "0.25",
    "ENTREPOT_BROKER__SUSPECT_S": "1",
    "ENTREPOT_BROKER__DEAD_S": "3",
}
SUPPLIER = {
    "ENTREPOT_SUPPLIER__SILENCE_S": "1",
    "ENTREPOT_SUPPLIER__TCP_TIMEOUT_S": str(TIMEOUT_S),
}
"""Silence is noticed sooner than by default, where it may last 30 s: the cut is short."""


@dataclass
class Line:
    """How it went.

    :ivar over: what TCP ran over, in words.
    :ivar epoch: as that of the first half.
    :ivar down_s: how long the line was cut.
    :ivar moved: orders that the supplier had when the broker gave it up; each got another slot.
    :ivar came_again_after_s: from mending until the next product.
    """

    over: str
    epoch: Epoch
    down_s: float
    moved: int
    came_again_after_s: float
    broker: dict[str, Any]


# --- in the demonstration ---------------------------------------------------------------


def follow(parts: Parts, place: Place, watch: Watcher, path: Path) -> Line:
    """Have it happen in a process of its own, and pass on to ``watch`` what it tells.

    :param path: where the messages are.
    :raises DemoFailed: something that must hold did not.
    """
    part = parts.start(
        "client",
        *(str(place.home), place.frontend),
        environment={sms.VARIABLE: str(path)},
        module=__name__,
    )
    with ExitStack() as stage:
        done: Callable[[int], None] = _nobody
        while True:
            said = part.next_event(PRODUCT_S + GIVE_UP_S)
            event = said.pop("event")
            if event == "part":
                watch.part(**said)
            elif event == "way":
                watch.way(**said)
            elif event == "stage":
                done = stage.enter_context(watch.stage(**said))
            elif event == "done":
                done(said["count"])
            elif event == "stage over":
                stage.close()
            elif event == "failed":
                raise DemoFailed(said["why"])
            elif event == "line":
                if not part.ended(END_S):
                    raise DemoFailed(f"the client did not end well; {part.log_end()}")
                return Line(**said | {"epoch": Epoch(**said["epoch"])})


def _nobody(count: int) -> None:
    """For a stage that nobody began."""


# --- in its own process -----------------------------------------------------------------


class Teller:
    """A watcher that tells its parent."""

    def tell(self, event: str, **facts: Any) -> None:
        print(json.dumps({"event": event, **facts}), flush=True)

    def download(self, came: int, expected: int) -> None:
        del came, expected  # the parent has done that

    def part(self, title: str, pid: int, does: str) -> None:
        self.tell("part", title=title, pid=pid, does=does)

    def way(self, over: str) -> None:
        self.tell("way", over=over)

    @contextmanager
    def stage(
        self, title: str, total: int, unit: str = "batches"
    ) -> Iterator[Callable[[int], None]]:
        self.tell("stage", title=title, total=total, unit=unit)
        told_at = 0.0

        def done(count: int) -> None:
            nonlocal told_at
            now = time.monotonic()
            if now - told_at >= TELL_S:
                told_at = now
                self.tell("done", count=count)

        yield done
        self.tell("stage over")


def main() -> None:
    """End with the parent, or when told to; else tell how it went."""
    _, parent, home, frontend = sys.argv
    end_with_parent(int(parent))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave)
    teller = Teller()
    try:
        with find() as way:
            teller.way(way.what)
            line = run(way, Place(Path(home), frontend), teller)
    except EntrepotError as fault:
        teller.tell("failed", why=str(fault))
        sys.exit(1)
    teller.tell("line", **asdict(line))


def _leave(number: int, _frame: FrameType | None) -> NoReturn:
    """Through whatever is going on, once, so that broker and supplier are ended as well."""
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
    sys.exit(128 + number)


def run(way: Way, place: Place, watch: Watcher) -> Line:
    """Consume an epoch of tokens over ``way``, which is cut and mended in the middle.

    :raises DemoFailed: something that must hold did not.
    """
    with Parts(END_S) as parts, parts.blamed():
        broker, bound = start_broker(parts, place, watch, f"tcp://{way.host}:0", BROKER)
        backend = f"tcp://{way.to(int(bound.rpartition(':')[2]))}"
        medium = way.medium(suppliers.TOKENS.nbytes, SLOTS)
        with Client(place.frontend, medium, name="demo over tcp") as client:
            watch.part("client", os.getpid(), medium.address)
            supplier = _start_supplier(parts, way, backend, watch)
            consumer = Consumer(client, tokens_of_an_epoch(), watch)
            consumer.until(int(CUT_AT * consumer.timed.tally.batches), "over TCP, to the half")
            line = _cut(consumer, way)
            line.over, line.epoch = way.what, consumer.timed.summary()
            line.broker = _verify_broker(client, line.epoch)
            parts.drain(client.drain, [supplier], broker)
    return line


def _start_supplier(parts: Parts, way: Way, backend: str, watch: Watcher) -> Part:
    supplier = way.start(
        parts,
        "tokeniser-3",
        *("supplier", "--serve", f"{suppliers.__name__}:tokens_of_many"),
        *("--product", suppliers.TOKENS_PATTERN, "--backend", backend, "--name", "tokeniser-3"),
        *("--batch", str(BATCH), "--credit", str(2 * BATCH), "--json"),
        environment=SUPPLIER,
    )
    supplier.wait_for("serving")
    watch.part("tokeniser-3", supplier.pid, f"serves {suppliers.TOKENS_PATTERN}, {BATCH} at once")
    return supplier


def _cut(consumer: Consumer, way: Way) -> Line:
    """Cut the line until the broker gives the supplier up, mend it, and consume the rest.

    What the supplier had is lost, and made when it can be reached again, in other slots: what it
    may still have on the way comes too late, and is refused.
    """
    batches = consumer.timed.tally.batches
    with consumer.stage("over TCP, the rest, and a cut", batches) as turn:
        try:
            way.cut()
            cut_at = time.perf_counter()
            moved = _given_up(consumer, turn)
            if consumer.came == batches:
                raise DemoFailed("the line was cut, and all came all the same")
            before = consumer.came
            turn()
            if consumer.came != before:
                raise DemoFailed("a batch came over a line that was cut")
        finally:
            way.mend()
        mended_at = time.perf_counter()
        came_s = 0.0
        while consumer.came < batches:
            turn()
            if not came_s and consumer.came > before:
                came_s = time.perf_counter() - mended_at
    # The rate is that of the line while there is one.
    consumer.timed.seconds -= mended_at - cut_at + came_s
    return Line(way.what, Epoch("", 0), mended_at - cut_at, moved, came_s, {})


def _given_up(consumer: Consumer, turn: Callable[[], None]) -> int:
    """Wait until the broker has given the supplier up; how many orders it had."""
    deadline = time.perf_counter() + GIVE_UP_S
    held = 0
    while time.perf_counter() < deadline:
        turn()
        known = consumer.client.stats()["suppliers"]["list"]
        if not known:
            return held
        held = known[0]["holds"]
        time.sleep(LOOK_S)
    raise DemoFailed(
        f"the line was cut, and {GIVE_UP_S:g} s later the broker still waited for the supplier"
    )


def _verify_broker(client: Client, epoch: Epoch) -> dict[str, Any]:
    """What the broker counted agrees: each order once, nothing failed, nothing left."""
    orders = client.stats()["orders"]
    counted = {name: orders[name] for name in ("placed", "fulfilled", "cancelled", "failed")}
    right = {"placed": epoch.batches, "fulfilled": epoch.batches, "cancelled": 0, "failed": 0}
    if counted != right or orders["open"]:
        raise DemoFailed(f"the broker counts {counted} and {orders['open']} open, not {right}")
    return counted


if __name__ == "__main__":
    main()
