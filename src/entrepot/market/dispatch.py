"""Orders go to suppliers, come back from them, and end.

The lower half of the rules; see ``ledger.py``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from heapq import heapify, heappop, heappush
from itertools import count

from entrepot.market import events as ev
from entrepot.market.figures import Figures
from entrepot.market.member import Client, Supplier
from entrepot.market.open_order import NOBODY, OpenOrder, Product, State
from entrepot.market.protocol import Attempt, Delivery, Order, Result, WorkItem
from entrepot.market.queue import Queue
from entrepot.settings import BrokerSettings


class Dispatch:
    """See the module. ``leases`` gives a fresh random 64-bit number at each call, never 0."""

    def __init__(self, settings: BrokerSettings, leases: Callable[[], int]) -> None:
        self._settings = settings
        self._leases = leases
        self.queue = Queue(
            settings.max_products, settings.max_idle_classes, settings.max_pattern_program
        )
        self.clients: dict[bytes, Client] = {}
        self.suppliers: dict[bytes, Supplier] = {}
        self.figures = Figures()
        self.open_orders = 0
        self._deadlines: list[tuple[float, int, OpenOrder]] = []
        self._tie = count()
        self._patience: deque[tuple[float, int, OpenOrder]] = deque()
        """Until when failed orders wait for another supplier, the first to be due first; and which
        wait of the order it is, since it may begin to wait twice at one moment."""
        self._effects: list[ev.Effect] = []
        self._work: dict[Supplier, list[WorkItem]] = {}
        self._revoked: dict[Supplier, list[int]] = {}

    # --- orders go out ------------------------------------------------------------------

    def _place(self, client: Client, asked: Order, seq: int, now: float) -> None:
        product = self.queue.product(client.version, asked.product_id, client.contract)
        if client.contract is not None and self._disagrees(client, product, seq, [asked.order_id]):
            return
        deadline = None if asked.deadline_s is None else now + asked.deadline_s
        order = OpenOrder(
            client.session,
            asked.order_id,
            product,
            asked.address,
            asked.offset,
            asked.nbytes,
            now,
            asked.input,
            asked.priority,
            deadline,
        )
        client.orders[asked.order_id] = order
        self.open_orders += 1
        self.figures.placed += 1
        if deadline is not None:
            self._note_deadline(deadline, order)
        self._offer(order, now, front=False)

    def _disagrees(self, client: Client, product: Product, seq: int, ids: Sequence[str]) -> bool:
        """Whether the product is only supplied under another contract; the client is told so."""
        other = self.queue.other_contract(product)
        if other is not None:
            error = (
                f"product {product.product_id[:80]!r} is supplied under contract {other[0]!r}, "
                f"and ordered under {client.contract!r}; give both sides the same"
            )
            self._refuse(client.session, seq, "contract_mismatch", error, ids, other[1])
        return other is not None

    def _offer(self, order: OpenOrder, now: float, *, front: bool) -> None:
        """To a ready supplier if there is one. If there is, nothing that it may take waits."""
        supplier = self.queue.ready_supplier(order)
        if supplier is None:
            self.queue.put(order, front=front)
            if order.failed_by:
                self._wait_for_others(order, now)
            return
        self._assign(supplier, order, now)
        if supplier.free > 0:
            self.queue.rotate(supplier)
        else:
            self.queue.refresh(supplier)

    def _assign(self, supplier: Supplier, order: OpenOrder, now: float) -> None:
        lease = self._leases()
        order.state = State.DISPATCHED
        order.lease = lease
        order.supplier = supplier
        order.dispatched_at = now
        if not order.touched:
            order.touched = True
            self.figures.wait.add(now - order.placed_at)
        supplier.held[lease] = order
        supplier.free -= 1
        order.product.in_flight += 1
        if supplier.cls is not None:
            supplier.cls.in_flight += 1
        item = WorkItem(
            order.order_id,
            lease,
            order.product.product_id,
            order.address,
            order.offset,
            order.nbytes,
            order.input,
        )
        self._work.setdefault(supplier, []).append(item)

    def _fill(self, supplier: Supplier, now: float) -> None:
        """Gives a supplier what waits for it, up to its credit."""
        while supplier.takes:
            order = self.queue.next_order(supplier)
            if order is None:
                break
            self._assign(supplier, order, now)
        self.queue.refresh(supplier)

    def _retry(self, suppliers: Iterable[Supplier], now: float) -> None:
        """Orders that waited for others may go to these."""
        for supplier in suppliers:
            self._fill(supplier, now)

    # --- orders come back ---------------------------------------------------------------

    def _unassign(self, supplier: Supplier, lease: int) -> OpenOrder:
        order = supplier.held.pop(lease)
        order.supplier = None
        order.product.in_flight -= 1
        if supplier.cls is not None:
            supplier.cls.in_flight -= 1
        return order

    def _settle(self, supplier: Supplier, order: OpenOrder, result: Result, now: float) -> None:
        """A supplier answered for an order."""
        self.figures.service.add(now - order.dispatched_at)
        if order.state is State.ENDED:
            return
        if result.success and result.nbytes <= order.nbytes:
            supplier.served += 1
            self._end(order, "fulfilled")
            delivery = Delivery(order.order_id, result.lease, result.nbytes, result.checksum)
            version = order.product.version
            self._effects.append(ev.Fulfil(order.session, version, delivery))
            return
        order.failures += 1
        if result.success:
            kind = "ProductTooLarge"
            said = f"{result.nbytes} bytes were reported for a slot of {order.nbytes}"
        else:
            kind = result.error.type if result.error else "Failed"
            said = result.error.message if result.error else ""
        order.attempts.append(Attempt(supplier.name, kind, said))
        if order.held:
            self._fail(order, "cancelled")
        elif order.failures >= self._settings.max_order_attempts:
            self._fail(order, "attempts")
        else:
            order.failed_by |= {supplier}
            self._return(order, now)

    def _return(self, order: OpenOrder, now: float) -> None:
        """An order comes back from a supplier that will not write to its slot any more."""
        if order.state is State.ENDED:
            return
        if order.held:
            self._fail(order, "cancelled")
        elif order.deadline is not None and order.deadline <= now:
            self._fail(order, "deadline")
        else:
            self._offer(order, now, front=True)

    def _lost(
        self, supplier: Supplier, order: OpenOrder, lease: int, reason: str, now: float
    ) -> None:
        order.losses += 1
        order.attempts.append(Attempt(supplier.name, "Lost", f"the supplier is {reason}"))
        if order.held or order.losses >= self._settings.max_order_losses:
            self._fail(order, "lost", lease)
        elif order.product.version == 1:
            # Version 1 cannot be told to move; its slot is written twice at worst, alike.
            self._return(order, now)
        elif order.deadline is not None and order.deadline <= now:
            self._fail(order, "deadline", lease)
        else:
            order.state = State.PARKED
            order.product.parked += 1
            self._effects.append(ev.Lose(order.session, order.order_id, lease))

    def _withdraw(self, order: OpenOrder) -> str:
        """Cancels an order, and says what that means for its slot."""
        if order.state is State.DISPATCHED:
            self._revoke(order)
            order.held = True
            return "held"
        self._unqueue(order)
        self._end(order, "cancelled")
        return "touched" if order.touched else "untouched"

    def _revoke(self, order: OpenOrder) -> None:
        """Its supplier is told, once, that nobody wants it any more, if it wants to be."""
        supplier = order.supplier
        if supplier is not None and supplier.cancels and not order.held:
            self._revoked.setdefault(supplier, []).append(order.lease)

    # --- until when they wait -----------------------------------------------------------

    def _wait_for_others(self, order: OpenOrder, now: float) -> None:
        """A failed order waits for a supplier that has not failed it, but not for ever."""
        if len(self._patience) > 2 * self.open_orders + 64:
            self._patience = deque(entry for entry in self._patience if _still_waits(*entry[1:]))
        order.wait = next(self._tie)
        self._patience.append((now + self._settings.elsewhere_s, order.wait, order))

    def _end_waits(self, now: float) -> None:
        """Orders that have waited for others long enough: whoever is ready may have them."""
        while self._patience and self._patience[0][0] <= now:
            _, wait, order = self._patience.popleft()
            if _still_waits(wait, order):
                self.queue.remove(order)
                order.failed_by = NOBODY
                self._offer(order, now, front=True)

    def _note_deadline(self, deadline: float, order: OpenOrder) -> None:
        if len(self._deadlines) > 2 * self.open_orders + 64:
            self._deadlines = [e for e in self._deadlines if e[2].state is not State.ENDED]
            heapify(self._deadlines)
        heappush(self._deadlines, (deadline, next(self._tie), order))

    def _expire(self, now: float) -> None:
        while self._deadlines and self._deadlines[0][0] <= now:
            order = heappop(self._deadlines)[2]
            if order.state in (State.QUEUED, State.PARKED):
                self._unqueue(order)
                self._fail(order, "deadline")

    # --- orders end ---------------------------------------------------------------------

    def _unqueue(self, order: OpenOrder) -> None:
        if order.state is State.PARKED:
            order.product.parked -= 1
        else:
            self.queue.remove(order)

    def _end(self, order: OpenOrder, outcome: str, client: Client | None = None) -> None:
        client = client or self.clients[order.session]
        del client.orders[order.order_id]
        order.state = State.ENDED
        self.open_orders -= 1
        self.figures.outcomes[outcome] += 1

    def _fail(self, order: OpenOrder, reason: str, lease: int = 0) -> None:
        self._end(order, "cancelled" if reason == "cancelled" else "failed")
        self._effects.append(
            ev.Fail(
                order.session,
                order.product.version,
                order.order_id,
                reason,
                order.attempts,
                lease,
            )
        )

    def _refuse(
        self,
        session: bytes,
        seq: int,
        code: str,
        error: str,
        order_ids: Sequence[str] = (),
        terms: str = "",
    ) -> None:
        self.figures.refused[code] += 1
        effect = ev.Refuse(
            session=session, seq=seq, code=code, error=error, order_ids=order_ids, terms=terms
        )
        self._effects.append(effect)


def _still_waits(wait: int, order: OpenOrder) -> bool:
    """Whether the order waits for others, and this is the wait that it began last."""
    return order.state is State.QUEUED and bool(order.failed_by) and order.wait == wait
