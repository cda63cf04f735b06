"""The demonstration itself: what happens in which order, and what is verified on the way.

Everything that it claims is checked here, and the first claim that does not hold is DemoFailed.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from entrepot.demo import over_tcp, place, search, sms, standing, student, study, suppliers
from entrepot.demo.consumer import (
    LOOK_S,
    PRODUCT_S,
    SLOTS,
    WINDOW,
    Consumer,
    Epoch,
    Open,
    Timed,
    Watcher,
    tokens_of_an_epoch,
)
from entrepot.demo.over_tcp import Line
from entrepot.demo.place import Place, start_broker
from entrepot.demo.processes import Part, Parts
from entrepot.demo.search import Searched, SearchingWatcher
from entrepot.demo.student import Learned, LearningWatcher
from entrepot.demo.study import Studied, StudyWatcher
from entrepot.demo.tally import Tally
from entrepot.errors import DemoFailed, OrderCancelled
from entrepot.market.client import Client
from entrepot.mediums.shm import ShmMedium

SWITCH_AT = 1 / 3
KILL_AT = 1 / 2
"""Where in the epoch of tokens that happens."""

SWITCH_TRIES = 20
"""How often it is tried again to meet an order under way."""

STUCK_S = 0.1
"""How long a stopped supplier is watched, so that what it had just finished has arrived."""


@dataclass
class Summary:
    """What was made, moved and verified."""

    ok: bool = False
    seconds: float = 0.0
    messages: int = 0
    processes: int = 0
    epochs: list[Epoch] = field(default_factory=list)
    switch: dict[str, Any] = field(default_factory=dict)
    kill: dict[str, Any] = field(default_factory=dict)
    broker: dict[str, Any] = field(default_factory=dict)
    line: Line | None = None
    student: Learned | None = None
    study: Studied | None = None
    search: Searched | None = None
    page: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


class AllWatcher(LearningWatcher, StudyWatcher, SearchingWatcher, Protocol):
    """Who is told how it goes."""

    def page(self, url: str, why_none: str) -> None:
        """Where it can be watched."""

    def verified(self, summary: Summary) -> None:
        """It is over, and all of it held."""

    def keeping(self, url: str) -> None:
        """From now on it only goes on."""


def run(
    watch: AllWatcher, *, brief: bool = False, page_port: int = place.PAGE_PORT, keep: bool = False
) -> None:
    """Do all of it.

    :param brief: without the two searches and the page.
    :param page_port: of 127.0.0.1, for the page.
    :param keep: go on with some trade when all is verified, until a signal ends it; not if brief.

    Raises:
        DataUnavailable: the messages are not to be had.
        DemoFailed: something that must hold did not.
    """
    began = time.perf_counter()
    path = sms.locate(watch.download)
    summary = Summary(messages=len(suppliers.epoch().messages))
    with place.made() as here, Parts() as parts, parts.blamed():
        page = None
        if not brief:
            page = place.start_page(parts, here, page_port)
            summary.page = page.url
            summary.processes += 1 if page.part else 0
            watch.page(page.url, page.why_none)
        _over_shared_memory(parts, here, path, watch, summary)
        summary.line = over_tcp.follow(parts, here, watch, path)
        summary.processes += over_tcp.PROCESSES
        ours, theirs = summary.epochs[-1].checksum, summary.line.epoch.checksum
        if ours != theirs:
            raise DemoFailed(f"the tokens that came over TCP have checksum {theirs}, not {ours}")
        summary.student = student.learn(parts, here, watch, path)
        summary.processes += student.PROCESSES
        if not brief:
            summary.study = study.search(parts, here, watch, path)
            summary.processes += 0 if summary.study.left_out else study.PROCESSES
            summary.search = search.search(parts, here, watch, path)
            summary.processes += 0 if summary.search.left_out else search.PROCESSES
        summary.seconds = time.perf_counter() - began
        summary.ok = True
        if keep and page is not None:
            watch.verified(summary)
            watch.keeping(summary.page)
            standing.trade(parts, here, page, watch, path)
    summary.seconds = time.perf_counter() - began
    watch.verified(summary)


def _over_shared_memory(
    parts: Parts, here: Place, path: Path, watch: Watcher, summary: Summary
) -> None:
    """An epoch of each product, a switch from one to the other, and a supplier that is killed."""
    broker, backend = start_broker(parts, here, watch)
    cleaner, *tokenisers = _start_suppliers(parts, backend, path, watch)
    summary.processes += 2 + 1 + len(tokenisers)
    nbytes = max(suppliers.CLEAN.nbytes, suppliers.TOKENS.nbytes)
    medium = ShmMedium.create(nbytes, SLOTS)
    epoch = suppliers.epoch()
    with Client(here.frontend, medium, name="demo") as client:
        clean = Timed(
            suppliers.CLEAN_PRODUCT,
            Tally("sms/clean", len(epoch), epoch.clean_batch),
            suppliers.CLEAN,
        )
        tokens = tokens_of_an_epoch()
        consumer = Consumer(client, tokens, watch)
        consumer.until(int(SWITCH_AT * len(epoch)), "tokens, first third")
        summary.switch = _switch(consumer, clean)
        consumer.until(int(KILL_AT * len(epoch)), "tokens, to the half")
        summary.kill = _kill_one(consumer, *tokenisers)
        summary.epochs = [clean.summary(), tokens.summary()]
        summary.broker = _verify_broker(client, tokenisers[0].title)
        parts.drain(client.drain, [cleaner, *tokenisers[1:]], broker)
    segment = Path("/dev/shm") / medium.address.partition(":")[2]
    if segment.exists():
        raise DemoFailed(f"the client's shared memory {segment} was left behind")


# --- the parts --------------------------------------------------------------------------


def _start_suppliers(parts: Parts, backend: str, path: Path, watch: Watcher) -> list[Part]:
    wanted = [
        ("cleaner", "clean", suppliers.CLEAN_PRODUCT),
        ("tokeniser-1", "tokens", suppliers.TOKENS_PATTERN),
        ("tokeniser-2", "tokens", suppliers.TOKENS_PATTERN),
    ]
    started = [
        parts.start(
            name,
            *("supplier", "--serve", f"{suppliers.__name__}:{function}", "--product", pattern),
            *("--backend", backend, "--name", name, "--credit", "1", "--json"),
            environment={sms.VARIABLE: str(path)},
        )
        for name, function, pattern in wanted
    ]
    for part, (name, _, pattern) in zip(started, wanted, strict=True):
        part.wait_for("serving")
        watch.part(name, part.pid, f"serves {pattern}")
    return started


# --- the stages -------------------------------------------------------------------------


def _switch(consumer: Consumer, clean: Timed) -> dict[str, Any]:
    """Drop the tokens under way and consume the other product, by name: nothing stale may come."""
    client = consumer.client
    dropped, stale = _discard(consumer)
    for _ in range(SWITCH_TRIES):
        if dropped:
            break
        # All that was under way had been made by then: suppliers are fast, and this was stopped.
        consumer.turn()
        dropped, more = _discard(consumer)
        stale |= more
    if not dropped:
        raise DemoFailed("no order was under way at the switch")
    ordered: deque[float] = deque()
    batches = clean.tally.batches

    def names() -> Iterator[str]:
        for _ in range(batches):
            ordered.append(time.perf_counter())
            yield suppliers.CLEAN_PRODUCT

    with consumer.watch.stage("clean, the whole epoch", batches) as done, clean.clock():
        for product in client.stream(names(), prefetch=WINDOW, timeout_s=PRODUCT_S):
            if product.order_id in stale or product.product_id != suppliers.CLEAN_PRODUCT:
                raise DemoFailed(f"{product.product_id} was served after the switch")
            clean.take(product, None, ordered.popleft())
            done(len(clean.tally))
    return {"dropped": dropped, "stale": 0}


def _discard(consumer: Consumer) -> tuple[int, set[str]]:
    """Drop what is under way: how many orders that ended, and all their ids."""
    ordered = {each.order.order_id for each in consumer.open}
    dropped = consumer.client.discard()
    for each in consumer.open:
        try:
            each.order.result(LOOK_S)
        except OrderCancelled:
            continue
        raise DemoFailed(f"batch {each.number} was served after it was discarded")
    consumer.open.clear()
    consumer.to_order = deque(consumer.timed.tally.missing())
    return dropped, ordered


def _kill_one(consumer: Consumer, victim: Part, heir: Part) -> dict[str, Any]:
    """Kill ``victim`` while a batch is in its hands, and consume the rest of the epoch.

    ``heir`` is the only other one that makes the product.
    """
    batches = consumer.timed.tally.batches
    with consumer.stage("tokens, the rest, and a kill -9", batches) as turn:
        # Frozen, it keeps the one batch that it was given: the one that does not come
        # while those that were ordered after it do.
        victim.freeze()
        frozen_at = time.perf_counter()
        while (held := _stuck(consumer, frozen_at)) is None:
            if consumer.came == batches:
                raise DemoFailed(f"{victim.title} was stopped and had no batch in its hands")
            turn()
        victim.kill()
        killed_at = time.perf_counter()
        came_s = 0.0
        while consumer.came < batches:
            turn()
            if not came_s and held not in consumer.open:
                came_s = time.perf_counter() - killed_at
    return {
        "supplier": victim.title,
        "batch": held.number,
        "made_by": heir.title,
        "came_again_after_s": came_s,
        "retired_slots": consumer.client.figures()["retired"],
    }


def _stuck(consumer: Consumer, since: float) -> Open | None:
    """The order that half a window of later ones has overtaken, a while after ``since``."""
    if not consumer.open or time.perf_counter() - since < STUCK_S:
        return None
    oldest = consumer.open[0]
    ordered_since = consumer.open[-1].turn - oldest.turn + 1
    overtaken_by = ordered_since - len(consumer.open)
    # Asked last: it looks for what has arrived up to now.
    return oldest if overtaken_by >= WINDOW // 2 and not oldest.order.done else None


def _verify_broker(client: Client, killed: str) -> dict[str, Any]:
    """What the broker counted agrees: nothing failed, nothing is left, the killed one is gone."""
    stats = client.stats()
    orders = stats["orders"]
    left = orders["open"]
    names = [each["name"] for each in stats["suppliers"]["list"]]
    if orders["failed"] or left or killed in names:
        raise DemoFailed(
            f"the broker counts {orders['failed']} failed and {left} open orders, and knows "
            f"the suppliers {', '.join(names)}"
        )
    return {name: orders[name] for name in ("placed", "fulfilled", "cancelled", "failed")}
