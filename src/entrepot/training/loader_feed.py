"""The half of a loader that has the client: keeps orders open, and makes batches of what comes.

It runs in the process that trains, or in each worker, and makes its client where it runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice, repeat
from typing import Any

from entrepot.arguments import checked_text
from entrepot.errors import (
    BrokerUnavailable,
    EntrepotError,
    NoFreeSlot,
    OrderCancelled,
    OrderTimeout,
)
from entrepot.market.client import Client
from entrepot.market.product import Product
from entrepot.market.protocol import ID_CHARS
from entrepot.market.window import Window
from entrepot.mediums.base import Medium
from entrepot.training.epochs import Runs, chunks
from entrepot.training.loader_batches import Batch, Form
from entrepot.training.loader_plan import Plan, Plans

LOOK_S = 0.02
"""Longest wait without a look at the plan."""

IDLE_S = (0.001, 0.02)
"""Shortest and longest sleep between two looks, for a feed that has nothing to do."""

NAMED_AT_ONCE = 256
"""Indices that are computed together: a few cost as much as one."""

INDEX = "{index}"
"""What stands for the index in a pattern of product ids."""

MakeMedium = Callable[[int, int], Medium]


@dataclass(frozen=True)
class Setup:
    """What a feed needs to know; it goes to workers, so all of it can be pickled by a spawn.

    :ivar medium: makes one, of so many bytes in so many slots.
    :ivar products: the id for an index; None where the plan's source says it.
    :ivar ordered: whether indexed products are taken in their order.
    """

    endpoint: str
    form: Form
    medium: MakeMedium
    prefetch: int
    slots: int
    products: Callable[[int], str] | None
    ordered: bool
    timeout_s: float | None
    name: str


@dataclass(slots=True)
class Packet:
    """A batch, and what it is of.

    :ivar number: of the plan under which all of it was ordered.
    :ivar turn: which batch of the plan it is, over all workers.
    :ivar offsets: of indexed products.
    :ivar samples: how many; 0 for one that says only that there is nothing more.
    :ivar fault: raised in place of a batch.
    """

    number: int
    turn: int = 0
    offsets: list[int] = field(default_factory=list)
    samples: int = 0
    data: Any = None
    fault: Exception | None = None

    def pin_memory(self) -> Packet:
        """Called by DataLoader's thread that pins, where there is one."""
        from torch.utils.data._utils.pin_memory import pin_memory

        self.data = pin_memory(self.data)  # type: ignore[no-untyped-call]
        return self


class Feed:
    """Carries out plans.

    :param worker: which one of ``workers`` it is: it makes every so many-th batch.
    """

    def __init__(self, setup: Setup, plans: Plans, worker: int = 0, workers: int = 1) -> None:
        self._setup = setup
        self._plans = plans
        self._worker = worker
        self._workers = workers
        self.client: Client | None = None

    def packets(self) -> Generator[Packet, None, None]:
        """Batches and faults, until a plan says that nothing is wanted any more."""
        setup = self._setup
        contract = setup.form.contract
        medium = setup.medium(max(contract.nbytes, 1), setup.slots)
        try:
            client = Client(
                setup.endpoint,
                medium,
                name=setup.name and f"{setup.name}-{self._worker}",
                timeout_s=setup.timeout_s,
                contract=contract,
            )
        except BaseException:
            medium.close()
            raise
        with client:
            self.client = client
            while True:
                plan = self._plans.read()
                if plan.closed or self._plans.orphaned():
                    return
                yield from self._carried_out(plan, client)

    def _is_over(self, plan: Plan) -> bool:
        return self._plans.number() != plan.number or self._plans.orphaned()

    def _carried_out(self, plan: Plan, client: Client) -> Iterator[Packet]:
        """One plan, until there is another."""
        ordered = plan.shard is not None and self._setup.ordered
        window: Window[int] = Window(client, self._setup.prefetch, ordered=ordered)
        fault: Exception | None = None
        try:
            yield from self._batches(plan, window)
        except _Replaced:
            pass
        except OrderCancelled as error:
            fault = None if self._is_over(plan) else error  # a switch has cancelled it
        except Exception as error:  # also of a function of the user's
            fault = error
        finally:
            window.discard()
        if fault is not None:
            yield Packet(plan.number, fault=fault)
        pause_s, longest_s = IDLE_S
        while not self._is_over(plan):
            # DataLoader takes turns: who waits for another worker has to be answered by this one.
            yield Packet(plan.number)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, longest_s)

    def _batches(self, plan: Plan, window: Window[int]) -> Iterator[Packet]:
        form = self._setup.form
        size = form.rows or 1
        jobs = _Jobs(self._named(plan, size))
        turn = self._worker
        while True:
            batch = Batch(form)
            offsets: list[int] = []
            while len(offsets) < size:
                taken = self._next(plan, window, jobs)
                if taken is None:
                    break
                offset, product = taken
                with product:
                    batch.add(product)
                offsets.append(offset)
            if not offsets:
                return
            kept = offsets if plan.shard is not None else []
            yield Packet(plan.number, turn, kept, len(offsets), batch.finish())
            turn += self._workers

    def _next(self, plan: Plan, window: Window[int], jobs: _Jobs) -> tuple[int, Product] | None:
        """The next product, and its offset; None when there are no more."""
        timeout_s = self._setup.timeout_s
        since = time.monotonic()
        while True:
            if self._is_over(plan):
                raise _Replaced
            if self._fill(window, jobs):
                if not len(window):
                    return None
                taken = window.take(LOOK_S)
                if taken is not None:
                    return taken
            waited_s = time.monotonic() - since
            if timeout_s is not None and waited_s >= timeout_s:
                raise self._too_late(plan, window, waited_s)

    def _fill(self, window: Window[int], jobs: _Jobs) -> bool:
        """Order more where there is room; False if nothing is open, for want of it or a broker."""
        wanted = window.wanted()
        if wanted and (some := jobs.take(wanted)):
            offsets, names = zip(*some, strict=True)
            if not (window.connected(LOOK_S) and window.place(offsets, names, LOOK_S)):
                jobs.put_back(some)
                return len(window) > 0
        return True

    def _too_late(self, plan: Plan, window: Window[int], waited_s: float) -> EntrepotError:
        setup = self._setup
        if not window.connected(0):
            return BrokerUnavailable(setup.endpoint, waited_s, "waiting for a sample")
        if not len(window):
            return NoFreeSlot(
                f"no slot became free in {waited_s:.3g} s: suppliers have all {setup.slots} and "
                f"have not finished what was ordered before; see entrepot stats, or give more "
                f"prefetch"
            )
        what = repr(plan.source) if plan.source else "the products"
        return OrderTimeout(
            f"none of {len(window)} orders for {what} has a product after {waited_s:.3g} s "
            f"(timeout_s); see whether a supplier makes it, under this contract: entrepot stats"
        )

    def _named(self, plan: Plan, size: int) -> Iterator[tuple[int, str]]:
        """What to order, with its offset."""
        shard = plan.shard
        if shard is None:
            yield from repeat((0, plan.source))
            return
        products = self._setup.products
        gaps = Runs(plan.done).gaps(len(shard))
        mine = chain.from_iterable(chunks(gaps, size, self._worker, self._workers))
        while block := list(islice(mine, NAMED_AT_ONCE)):
            for offset, index in zip(block, shard.indices(block), strict=True):
                if plan.source or products is None:
                    yield offset, plan.source.replace(INDEX, str(index))
                else:
                    yield offset, checked_text("a product id", products(index), ID_CHARS)


class _Replaced(Exception):
    """There is another plan."""


class _Jobs:
    """What is still to be ordered."""

    def __init__(self, named: Iterator[tuple[int, str]]) -> None:
        self._named = named
        self._back: list[tuple[int, str]] = []

    def take(self, most: int) -> list[tuple[int, str]]:
        back, self._back = self._back, []
        return back or list(islice(self._named, most))

    def put_back(self, some: list[tuple[int, str]]) -> None:
        self._back = some
