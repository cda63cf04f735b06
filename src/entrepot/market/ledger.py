"""The rules of the market: who has which order, and what follows from each event.

A state machine without sockets, threads or clock: ``Ledger.apply(event, now)`` answers with what
is to be said to whom. Eight invariants hold after every step, and have tests of their names
(``tests/unit/market/test_ledger.py``, ``test_ledger_cost.py``):

1. ``ends_once``: an accepted order ends in exactly one of fulfilled, failed, cancelled.
2. ``credit_is_kept``: a supplier holds at most its credit.
3. ``oldest_first``: of orders never dispatched and of equal priority that a ready supplier can
   serve, the oldest goes first; one that comes back goes before them.
4. ``elsewhere_first``: a failed order goes to a supplier that has not failed it while one is
   registered; failures and losses are counted apart, and each ends the order at its limit.
5. ``cancel_is_safe``: a cancelled order is never dispatched.
6. ``gone_is_gone``: who left or died has no orders and holds none.
7. ``cost``: a step costs the logarithm of what waits, on average over many (see ``queue.py``);
   ``Ticked`` looks at every party.
8. ``retry_is_safe``: an order id that is open is taken as the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any

from entrepot.errors import Refused
from entrepot.market import events as ev
from entrepot.market.figures import Figures
from entrepot.market.protocol import Attempt, Delivery, Order, Result, WorkItem
from entrepot.market.queue import OpenOrder, Queue, State, Supplier
from entrepot.settings import BrokerSettings


class Client:
    """One session that orders."""

    __slots__ = ("away_since", "contract", "heard", "name", "orders", "session", "version")

    def __init__(
        self, session: bytes, version: int, name: str, contract: str | None, now: float
    ) -> None:
        self.session = session
        self.version = version
        self.name = name
        self.contract = contract
        self.orders: dict[str, OpenOrder] = {}
        self.heard = now
        self.away_since: float | None = None


class Ledger:
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
        self._away_clients: dict[Client, None] = {}
        self._away_suppliers: dict[Supplier, None] = {}
        """Who has been away longest comes first."""
        self._deadlines: list[tuple[float, int, OpenOrder]] = []
        self._tie = count()
        self._patterns: dict[tuple[int, str], dict[bytes, bool]] = {}
        """Sessions that registered a pattern, and whether for themselves alone."""
        self._effects: list[ev.Effect] = []
        self._work: dict[Supplier, list[WorkItem]] = {}
        self._handlers: dict[type[ev.Event], Callable[[Any, float], None]] = {
            ev.ClientJoined: self._client_joined,
            ev.Placed: self._placed,
            ev.Moved: self._moved,
            ev.Cancelled: self._cancelled,
            ev.Discarded: self._discarded,
            ev.DrainAsked: self._drain_asked,
            ev.SupplierJoined: self._supplier_joined,
            ev.Ready: self._ready,
            ev.Finished: self._finished,
            ev.V1Finished: self._v1_finished,
            ev.Heard: self._heard,
            ev.Disconnected: self._disconnected,
            ev.Left: self._left,
            ev.Dropped: self._dropped,
            ev.Ticked: self._ticked,
            ev.Paused: self._paused,
        }

    def apply(self, event: ev.Event, now: float) -> list[ev.Effect]:
        """What is to be told to whom because of ``event``, at ``now`` (monotonic seconds)."""
        effects = self._effects = []
        self._handlers[type(event)](event, now)
        if self._work:
            for supplier, items in self._work.items():
                effects.append(ev.Assign(supplier.session, supplier.version, items))
            self._work = {}
        return effects

    def wake_at(self, now: float) -> float:
        """When ``Ticked`` is due next, for what cannot wait for the next beat."""
        settings = self._settings
        due = now + settings.beat_s
        for client in self._away_clients:
            due = min(due, _since(client.away_since) + settings.client_grace_s)
            break
        for supplier in self._away_suppliers:
            due = min(due, _since(supplier.away_since) + settings.reconnect_grace_s)
            break
        if self._deadlines:
            due = min(due, self._deadlines[0][0])
        return due

    # --- clients ------------------------------------------------------------------------

    def _client_joined(self, event: ev.ClientJoined, now: float) -> None:
        client = self.clients.get(event.session)
        resumed = client is not None
        if client is None:
            client = self.clients[event.session] = Client(
                event.session, event.version, event.name, event.contract, now
            )
        else:
            client.heard = now
            client.name = event.name
            self._back(client)
            wanted = set(event.open_orders)
            for order in [o for i, o in client.orders.items() if i not in wanted]:
                self._withdraw(order)
        missing = [i for i in event.open_orders if i not in client.orders]
        self._effects.append(ev.Welcome(event.session, resumed, missing))

    def _placed(self, event: ev.Placed, now: float) -> None:
        client = self.clients.get(event.session)
        if client is None:
            return
        client.heard = now
        settings = self._settings
        refused: list[str] = []
        for asked in event.orders:
            if asked.order_id in client.orders:
                continue
            if (
                len(client.orders) >= settings.max_open_orders
                or self.open_orders >= settings.max_open_orders_total
            ):
                refused.append(asked.order_id)
                continue
            self._place(client, asked, event.seq, now)
        if refused:
            error = (
                f"{len(client.orders):,} orders of this client and {self.open_orders:,} in all are "
                f"open; the limits are {settings.max_open_orders:,} and "
                f"{settings.max_open_orders_total:,}; take products before ordering more"
            )
            self._refuse(event.session, event.seq, "too_many_orders", error, refused)

    def _place(self, client: Client, asked: Order, seq: int, now: float) -> None:
        product = self.queue.product(client.version, asked.product_id, client.contract)
        if client.contract is not None and self.queue.unservable_for_contract(product):
            error = (
                f"product {asked.product_id[:80]!r} is supplied under another contract than "
                f"{client.contract!r}; compare the contracts of client and supplier"
            )
            self._refuse(client.session, seq, "contract_mismatch", error, [asked.order_id])
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

    def _moved(self, event: ev.Moved, now: float) -> None:
        client = self.clients.get(event.session)
        if client is None:
            return
        client.heard = now
        order = client.orders.get(event.order_id)
        if order is None or order.state is not State.PARKED:
            error = f"order {event.order_id[:80]!r} is not parked; only an order told LOST is moved"
            self._refuse(event.session, event.seq, "unknown_order", error)
            return
        order.address = event.address
        order.offset = event.offset
        order.product.parked -= 1
        self._offer(order, now, front=True)

    def _cancelled(self, event: ev.Cancelled, now: float) -> None:
        client = self.clients.get(event.session)
        if client is None:
            return
        client.heard = now
        order = client.orders.get(event.order_id)
        if order is None:
            error = f"this client has no open order {event.order_id[:80]!r}"
            self._refuse(event.session, event.seq, "unknown_order", error)
        elif client.version == 1 and order.state is State.DISPATCHED:
            self._refuse(event.session, event.seq, "not_dispatchable", "Order already dispatched")
        else:
            self._answer_withdrawal(client, event.seq, [order])

    def _discarded(self, event: ev.Discarded, now: float) -> None:
        client = self.clients.get(event.session)
        if client is not None:
            client.heard = now
            self._answer_withdrawal(client, event.seq, list(client.orders.values()))

    def _answer_withdrawal(self, client: Client, seq: int, orders: Iterable[OpenOrder]) -> None:
        kinds: dict[str, list[str]] = {"untouched": [], "touched": [], "held": []}
        for order in orders:
            kinds[self._withdraw(order)].append(order.order_id)
        self._effects.append(
            ev.Answer(
                session=client.session,
                seq=seq,
                untouched=kinds["untouched"],
                touched=kinds["touched"],
                held=kinds["held"],
            )
        )

    def _withdraw(self, order: OpenOrder) -> str:
        """Cancels an order, and says what that means for its slot."""
        if order.state is State.DISPATCHED:
            order.held = True
            return "held"
        self._unqueue(order)
        self._end(order, "cancelled")
        return "touched" if order.touched else "untouched"

    def _drain_asked(self, event: ev.DrainAsked, now: float) -> None:
        client = self.clients.get(event.session)
        if client is None:
            return
        client.heard = now
        if not self._settings.allow_drain:
            error = "draining is turned off here (allow_drain)"
            self._refuse(event.session, event.seq, "forbidden", error)
            return
        drained = [
            s
            for s in self.suppliers.values()
            if not s.draining and (event.name is None or s.name == event.name)
        ]
        again: dict[Supplier, None] = {}
        for supplier in drained:
            supplier.draining = True
            again.update(dict.fromkeys(self.queue.drained(supplier)))
            self._effects.append(ev.Terminate(supplier.session))
        self._retry(again, now)
        self._effects.append(
            ev.Answer(session=event.session, seq=event.seq, terminated=len(drained))
        )

    def _client_gone(self, client: Client, reason: str) -> None:
        del self.clients[client.session]
        self._back(client)
        for order in list(client.orders.values()):
            if order.state is not State.DISPATCHED:
                self._unqueue(order)
            # One that a supplier has stays with it, for its credit, and ends with nobody to tell.
            self._end(order, "cancelled", client)
        self._dismiss(client.session, reason)

    # --- suppliers ----------------------------------------------------------------------

    def _supplier_joined(self, event: ev.SupplierJoined, now: float) -> None:
        try:
            self._check_exclusive(event)
            cls = self.queue.class_of(event.version, event.patterns, event.contracts)
        except Refused as refusal:
            # The sentence without the exception's own preamble.
            error = str(refusal).split("): ", 1)[1]
            self._refuse(event.session, event.seq, refusal.code, error)
            return
        supplier = self.suppliers.get(event.session)
        resumed = supplier is not None
        if supplier is None:
            supplier = self.suppliers[event.session] = Supplier(
                event.session, event.version, event.name, event.credit, event.batch, now
            )
        again = self._unregister(supplier) if supplier.cls is not cls else []
        supplier.name = event.name
        supplier.credit = event.credit
        supplier.batch = event.batch
        supplier.heard = now
        supplier.suspect = False
        supplier.started = False
        supplier.free = 0
        self._back(supplier)
        if supplier.cls is None:
            self.queue.join(supplier, cls)
            cls.in_flight += len(supplier.held)
        for pattern in cls.patterns:
            owners = self._patterns.setdefault((cls.version, pattern), {})
            owners[event.session] = event.exclusive
        self.queue.refresh(supplier)
        holds = set(event.holds)
        missing = [str(lease) for lease in sorted(holds) if lease not in supplier.held]
        self._effects.append(ev.Welcome(event.session, resumed, missing))
        if supplier.draining:
            # Asked while it was away, perhaps.
            self._effects.append(ev.Terminate(event.session))
        self._retry(again, now)
        never_arrived = [lease for lease in supplier.held if lease not in holds]
        for lease in never_arrived:
            self._return(self._unassign(supplier, lease), now)

    def _check_exclusive(self, event: ev.SupplierJoined) -> None:
        for pattern in event.patterns:
            for session, alone in self._patterns.get((event.version, pattern), {}).items():
                if session != event.session and (alone or event.exclusive):
                    holder = self.suppliers[session].name or session.hex()[:8]
                    raise Refused(
                        "pattern_taken",
                        f"pattern {pattern[:80]!r} is registered by supplier {holder!r}, and one "
                        f"of the two asked to be alone; stop that one, or use another pattern",
                    )

    def _unregister(self, supplier: Supplier) -> list[Supplier]:
        """Takes the supplier out of its class. What it holds stays with it.

        Those returned may be given orders that waited for it.
        """
        cls = supplier.cls
        if cls is None:
            return []
        for pattern in cls.patterns:
            owners = self._patterns.get((cls.version, pattern), {})
            owners.pop(supplier.session, None)
            if not owners:
                self._patterns.pop((cls.version, pattern), None)
        cls.in_flight -= len(supplier.held)
        return self.queue.leave(supplier)

    def _ready(self, event: ev.Ready, now: float) -> None:
        supplier = self._heard_supplier(event.session, now)
        if supplier is not None:
            supplier.started = True
            supplier.free = max(0, supplier.credit - len(supplier.held))
            self._fill(supplier, now)

    def _finished(self, event: ev.Finished, now: float) -> None:
        supplier = self._heard_supplier(event.session, now)
        if supplier is None:
            return
        for result in event.results:
            order = supplier.held.get(result.lease)
            if order is None or order.order_id != result.order_id:
                self.figures.stale_answers += 1
                continue
            self._unassign(supplier, result.lease)
            if supplier.started:
                supplier.free = max(0, supplier.credit - len(supplier.held))
            self._settle(supplier, order, result, now)
        self._fill(supplier, now)

    def _v1_finished(self, event: ev.V1Finished, now: float) -> None:
        supplier = self._heard_supplier(event.session, now)
        lease = next(
            (
                lease
                for lease, order in (supplier.held.items() if supplier else ())
                if order.order_id == event.order_id
            ),
            None,
        )
        if supplier is None or lease is None:
            self.figures.stale_answers += 1
            self._refuse(event.session, 0, "unknown_order", "Unknown order")
            return
        order = self._unassign(supplier, lease)
        self._effects.append(ev.Answer(session=event.session, seq=0))
        result = Result(event.order_id, lease, event.success, nbytes=order.nbytes)
        self._settle(supplier, order, result, now)

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

    def _fill(self, supplier: Supplier, now: float) -> None:
        """Gives a supplier what waits for it, up to its credit."""
        while supplier.takes:
            order = self.queue.next_order(supplier)
            if order is None:
                break
            self._assign(supplier, order, now)
        self.queue.refresh(supplier)

    def _offer(self, order: OpenOrder, now: float, *, front: bool) -> None:
        """To a ready supplier if there is one. If there is, nothing that it may take waits."""
        supplier = self.queue.ready_supplier(order)
        if supplier is None:
            self.queue.put(order, front=front)
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

    def _unassign(self, supplier: Supplier, lease: int) -> OpenOrder:
        order = supplier.held.pop(lease)
        order.supplier = None
        order.product.in_flight -= 1
        if supplier.cls is not None:
            supplier.cls.in_flight -= 1
        return order

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

    def _supplier_gone(self, supplier: Supplier, reason: str, now: float) -> None:
        """Lost without a word: it may still write to the slots of what it holds."""
        self._remove(supplier, reason, now)
        for lease in list(supplier.held):
            order = self._unassign(supplier, lease)
            if order.state is not State.ENDED:
                self._lost(supplier, order, lease, reason, now)

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

    def _remove(self, supplier: Supplier, reason: str, now: float) -> None:
        del self.suppliers[supplier.session]
        self._back(supplier)
        self._work.pop(supplier, None)
        self._dismiss(supplier.session, reason)
        self._retry(self._unregister(supplier), now)

    def _retry(self, suppliers: Iterable[Supplier], now: float) -> None:
        """Orders that waited for others may go to these."""
        for supplier in suppliers:
            self._fill(supplier, now)

    # --- both ---------------------------------------------------------------------------

    def _heard_supplier(self, session: bytes, now: float) -> Supplier | None:
        supplier = self.suppliers.get(session)
        if supplier is not None:
            supplier.heard = now
            if supplier.suspect:
                supplier.suspect = False
                self._fill(supplier, now)
        return supplier

    def _heard(self, event: ev.Heard, now: float) -> None:
        client = self.clients.get(event.session)
        if client is not None:
            client.heard = now
        else:
            self._heard_supplier(event.session, now)

    def _back(self, party: Client | Supplier) -> None:
        party.away_since = None
        if isinstance(party, Client):
            self._away_clients.pop(party, None)
        else:
            self._away_suppliers.pop(party, None)

    def _disconnected(self, event: ev.Disconnected, now: float) -> None:
        party = self.clients.get(event.session) or self.suppliers.get(event.session)
        if party is None:
            return
        if party.version == 1:
            self._gone(party, "gone", now)
        elif party.away_since is None:
            party.away_since = now
            if isinstance(party, Client):
                self._away_clients[party] = None
            else:
                self._away_suppliers[party] = None
                self.queue.refresh(party)

    def _left(self, event: ev.Left, now: float) -> None:
        client = self.clients.get(event.session)
        if client is not None:
            self._client_gone(client, "left")
            return
        supplier = self.suppliers.get(event.session)
        if supplier is not None:
            self._remove(supplier, "left", now)
            for lease in list(supplier.held):
                self._return(self._unassign(supplier, lease), now)

    def _dropped(self, event: ev.Dropped, now: float) -> None:
        party = self.clients.get(event.session) or self.suppliers.get(event.session)
        if party is not None:
            self._gone(party, event.reason, now)

    def _gone(self, party: Client | Supplier, reason: str, now: float) -> None:
        if isinstance(party, Client):
            self._client_gone(party, reason)
        else:
            self._supplier_gone(party, reason, now)

    def _paused(self, event: ev.Paused, now: float) -> None:
        """Nobody is suspect, silent or late for what the broker slept through."""
        parties: list[Client | Supplier] = [*self.clients.values(), *self.suppliers.values()]
        for party in parties:
            party.heard = min(now, party.heard + event.seconds)
            if party.away_since is not None:
                party.away_since = min(now, party.away_since + event.seconds)
        for supplier in self.suppliers.values():
            if supplier.version == 1:
                for order in supplier.held.values():
                    order.dispatched_at = min(now, order.dispatched_at + event.seconds)

    def _ticked(self, _event: ev.Ticked, now: float) -> None:
        """Nobody is given an order in this step that is to end in it, or who is to be suspect."""
        settings = self._settings
        self._expire(now)
        for client in list(self.clients.values()):
            if client.away_since is not None and (
                now - client.away_since >= settings.client_grace_s
            ):
                self._client_gone(client, "gone")
            elif client.version > 1 and now - client.heard >= settings.dead_s:
                self._client_gone(client, "silent")
        for supplier in self.suppliers.values():
            if supplier.version > 1 and now - supplier.heard >= settings.suspect_s:
                supplier.suspect = True
                self.queue.refresh(supplier)
        for supplier in list(self._away_suppliers):
            if now - _since(supplier.away_since) >= settings.reconnect_grace_s:
                self._supplier_gone(supplier, "gone", now)
        for supplier in list(self.suppliers.values()):
            if supplier.version == 1:
                self._expire_v1(supplier, now)
            elif now - supplier.heard >= settings.dead_s:
                self._supplier_gone(supplier, "silent", now)

    def _expire_v1(self, supplier: Supplier, now: float) -> None:
        limit = self._settings.v1_order_timeout_s
        late = [i for i, order in supplier.held.items() if now - order.dispatched_at >= limit]
        for lease in late:
            order = self._unassign(supplier, lease)
            if order.state is not State.ENDED:
                self._lost(supplier, order, lease, f"silent for {limit:g} s", now)

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

    # --- ends ---------------------------------------------------------------------------

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

    def _dismiss(self, session: bytes, reason: str) -> None:
        self.figures.dropped[reason] += 1
        self._effects.append(ev.Dismiss(session, reason))

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
        self, session: bytes, seq: int, code: str, error: str, order_ids: list[str] | None = None
    ) -> None:
        self.figures.refused[code] += 1
        self._effects.append(
            ev.Refuse(session=session, seq=seq, code=code, error=error, order_ids=order_ids or [])
        )


def _since(moment: float | None) -> float:
    """The moment, of which there is one."""
    assert moment is not None
    return moment
