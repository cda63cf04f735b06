"""The rules of the market: who has which order, and what follows from each event.

A state machine without sockets, threads or clock: ``Ledger.apply(event, now)`` answers with what
is to be said to whom. Eight invariants hold after every step, and have tests of their names
(``tests/unit/market/test_ledger.py``, ``test_ledger_cost.py``):

1. ``ends_once``: an accepted order ends in exactly one of fulfilled, failed, cancelled.
2. ``credit_is_kept``: a supplier holds at most its credit.
3. ``oldest_first``: of orders never dispatched and of equal priority that a ready supplier can
   serve, the oldest goes first; one that comes back goes before them.
4. ``elsewhere_first``: a failed order goes to a supplier that has not failed it while one is
   registered, and waits for that one ``elsewhere_s`` at most; failures and losses are counted
   apart, and each ends the order at its limit.
5. ``cancel_is_safe``: a cancelled order is never dispatched.
6. ``gone_is_gone``: who left or died has no orders and holds none.
7. ``cost``: a step costs the logarithm of what waits, on average over many (see ``queue.py``);
   ``Ticked`` looks at every party.
8. ``retry_is_safe``: an order id that is open is taken as the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from entrepot.market import events as ev
from entrepot.market.member import Client, Supplier
from entrepot.market.membership import Membership
from entrepot.market.open_order import OpenOrder, State
from entrepot.market.protocol import Result
from entrepot.settings import BrokerSettings


class Ledger(Membership):
    """See the module. ``leases`` gives a fresh random 64-bit number at each call, never 0."""

    def __init__(self, settings: BrokerSettings, leases: Callable[[], int]) -> None:
        super().__init__(settings, leases)
        self._handlers: dict[type[ev.Event], Callable[[Any, float], None]] = {
            ev.ClientJoined: self._client_joined,
            ev.Placed: self._placed,
            ev.Moved: self._moved,
            ev.Cancelled: self._cancelled,
            ev.Discarded: self._discarded,
            ev.DrainAsked: self._drain_asked,
            ev.SupplierJoined: self._supplier_joined,
            ev.Ready: self._ready,
            ev.Drained: self._drained,
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
        if self._revoked:
            for supplier, leases in self._revoked.items():
                effects.append(ev.Revoke(supplier.session, leases))
            self._revoked = {}
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
        if self._patience:
            due = min(due, self._patience[0][0])
        return due

    # --- what clients say ---------------------------------------------------------------

    def _placed(self, event: ev.Placed, now: float) -> None:
        client = self.clients.get(event.session)
        if client is None:
            return
        client.hear(now)
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

    def _moved(self, event: ev.Moved, now: float) -> None:
        client = self.clients.get(event.session)
        if client is None:
            return
        client.hear(now)
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
        client.hear(now)
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
            client.hear(now)
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

    # --- what suppliers say -------------------------------------------------------------

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

    # --- time ---------------------------------------------------------------------------

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
        self._end_waits(now)

    def _expire_v1(self, supplier: Supplier, now: float) -> None:
        limit = self._settings.v1_order_timeout_s
        late = [i for i, order in supplier.held.items() if now - order.dispatched_at >= limit]
        for lease in late:
            order = self._unassign(supplier, lease)
            if order.state is not State.ENDED:
                self._lost(supplier, order, lease, f"silent for {limit:g} s", now)


def _since(moment: float | None) -> float:
    """The moment, of which there is one."""
    assert moment is not None
    return moment
