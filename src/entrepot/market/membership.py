"""Who has joined the market, who is silent, away or gone, and what that does to their orders.

Of the rules the part about parties; see ``ledger.py``.
"""

from __future__ import annotations

from collections.abc import Callable

from entrepot.errors import Refused
from entrepot.market import events as ev
from entrepot.market.dispatch import Dispatch
from entrepot.market.member import Client, Supplier, SupplierClass
from entrepot.market.open_order import OpenOrder, Product, State
from entrepot.settings import BrokerSettings


class Membership(Dispatch):
    """See the module."""

    def __init__(self, settings: BrokerSettings, leases: Callable[[], int]) -> None:
        super().__init__(settings, leases)
        self._away_clients: dict[Client, None] = {}
        self._away_suppliers: dict[Supplier, None] = {}
        """Who has been away longest comes first."""
        self._patterns: dict[tuple[int, str], dict[bytes, bool]] = {}
        """Sessions that registered a pattern, and whether for themselves alone."""

    # --- joining ------------------------------------------------------------------------

    def hello_fault(self, event: ev.ClientJoined | ev.SupplierJoined) -> tuple[str, str] | None:
        """Why its session cannot take a HELLO, as a code and a sentence; None if it can.

        One that another has overtaken is of a connection that its party gave up: what it says of
        orders and leases is no longer so.
        """
        party: Client | Supplier | None
        if isinstance(event, ev.ClientJoined):
            party = client = self.clients.get(event.session)
            if client is not None and client.contract != event.contract:
                return "contract_mismatch", (
                    f"this session began under contract {client.contract!r} and cannot go on "
                    f"under {event.contract!r}; begin another session"
                )
        else:
            party = self.suppliers.get(event.session)
        if party is not None and event.seq < party.hello_seq:
            return "stale_hello", (
                f"HELLO {event.seq} of this session came after its HELLO {party.hello_seq}, so it "
                f"is of an earlier connection; count seq up, or begin another session"
            )
        return None

    def _client_joined(self, event: ev.ClientJoined, now: float) -> None:
        fault = self.hello_fault(event)
        if fault is not None:
            self._refuse(event.session, event.seq, *fault)
            return
        client = self.clients.get(event.session)
        # What was said to a client that said nothing since may not have arrived: it would believe
        # that this is the session before, and have its orders here, and wait for them.
        resumed = client is not None and client.spoke
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
        client.hello_seq = event.seq
        missing = [i for i in event.open_orders if i not in client.orders]
        self._effects.append(ev.Welcome(event.session, resumed, missing))

    def _supplier_joined(self, event: ev.SupplierJoined, now: float) -> None:
        fault = self.hello_fault(event)
        if fault is not None:
            self._refuse(event.session, event.seq, *fault)
            return
        supplier = self.suppliers.get(event.session)
        if supplier is not None:
            supplier.hello_seq = event.seq  # also of one that is refused: it has overtaken others
        try:
            self._check_exclusive(event)
            cls = self.queue.class_of(event.version, event.patterns, event.contracts)
        except Refused as refusal:
            # The sentence without the exception's own preamble.
            error = str(refusal).split("): ", 1)[1]
            self._refuse(event.session, event.seq, refusal.code, error)
            return
        cls.terms = event.terms or cls.terms
        resumed = supplier is not None
        if supplier is None:
            supplier = self.suppliers[event.session] = Supplier(
                event.session, event.version, event.name, event.credit, event.batch, now
            )
            supplier.hello_seq = event.seq
        again = self._unregister(supplier) if supplier.cls is not cls else []
        supplier.name = event.name
        supplier.credit = event.credit
        supplier.batch = event.batch
        supplier.cancels = event.cancels
        supplier.heard = now
        supplier.suspect = False
        supplier.started = False
        supplier.free = 0
        self._back(supplier)
        is_news = supplier.cls is None and not cls.suppliers
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
        unwanted = [i for i, o in supplier.held.items() if o.held or o.state is State.ENDED]
        if unwanted and supplier.cancels:  # cancelled while it was away, perhaps
            self._revoked[supplier] = unwanted
        if is_news:
            self._refuse_disagreeing(cls)

    def _refuse_disagreeing(self, cls: SupplierClass) -> None:
        """The first supplier of a class has come: who ordered before, under another contract than
        is supplied now, is told what it would be told if it ordered now."""
        orders: dict[tuple[bytes, Product], list[OpenOrder]] = {}
        for order in self._disagreeing(cls):
            orders.setdefault((order.session, order.product), []).append(order)
        for (session, product), same in orders.items():
            client = self.clients[session]
            if self._disagrees(client, product, 0, [order.order_id for order in same]):
                for order in same:
                    self._unqueue(order)
                    self._end(order, "failed", client)

    def _disagreeing(self, cls: SupplierClass) -> list[OpenOrder]:
        """Orders that nobody was given yet, for what is only supplied under another contract now
        that ``cls`` has come; the first of them first.

        Costs a look at the products on order, as a new class does.
        """
        strange: set[Product] = set()
        for product in self.queue.products.values() if cls.contracts else ():
            self.queue.steps += 1
            if (
                product.queued
                and product.contract is not None
                and product.version == cls.version
                and cls.offered(product.product_id) not in (None, product.contract)
                and self.queue.other_contract(product)
            ):
                strange.add(product)
        found: list[OpenOrder] = []
        for lane in self.queue.lanes() if strange else ():
            if not strange.isdisjoint(lane.products):
                found += [o for o in lane.waiting() if o.product in strange and not o.touched]
        return sorted(found, key=lambda order: order.key)

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

    # --- being there --------------------------------------------------------------------

    def _heard(self, event: ev.Heard, now: float) -> None:
        client = self.clients.get(event.session)
        if client is not None:
            client.hear(now)
        else:
            self._heard_supplier(event.session, now)

    def _heard_supplier(self, session: bytes, now: float) -> Supplier | None:
        supplier = self.suppliers.get(session)
        if supplier is not None:
            supplier.heard = now
            if supplier.suspect:
                supplier.suspect = False
                self._fill(supplier, now)
        return supplier

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

    def _back(self, party: Client | Supplier) -> None:
        party.away_since = None
        if isinstance(party, Client):
            self._away_clients.pop(party, None)
        else:
            self._away_suppliers.pop(party, None)

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

    # --- leaving ------------------------------------------------------------------------

    def _drain_asked(self, event: ev.DrainAsked, now: float) -> None:
        client = self.clients.get(event.session)
        if client is None:
            return
        client.hear(now)
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

    def _drained(self, event: ev.Drained, now: float) -> None:
        supplier = self.suppliers.get(event.session)
        if supplier is None:
            return
        again: list[Supplier] = []
        if not supplier.draining:
            supplier.draining = True
            again = self.queue.drained(supplier)
        self._heard_supplier(event.session, now)
        self._retry(again, now)
        for lease in event.leases:
            if lease in supplier.held:
                self._return(self._unassign(supplier, lease), now)
            else:
                self.figures.stale_answers += 1

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

    def _client_gone(self, client: Client, reason: str) -> None:
        del self.clients[client.session]
        self._back(client)
        for order in list(client.orders.values()):
            if order.state is State.DISPATCHED:
                self._revoke(order)
            else:
                self._unqueue(order)
            # One that a supplier has stays with it, for its credit, and ends with nobody to tell.
            self._end(order, "cancelled", client)
        self._dismiss(client.session, reason)

    def _supplier_gone(self, supplier: Supplier, reason: str, now: float) -> None:
        """Lost without a word: it may still write to the slots of what it holds."""
        self._remove(supplier, reason, now)
        for lease in list(supplier.held):
            order = self._unassign(supplier, lease)
            if order.state is not State.ENDED:
                self._lost(supplier, order, lease, reason, now)

    def _remove(self, supplier: Supplier, reason: str, now: float) -> None:
        del self.suppliers[supplier.session]
        self._back(supplier)
        self._work.pop(supplier, None)
        self._dismiss(supplier.session, reason)
        self._retry(self._unregister(supplier), now)

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

    def _dismiss(self, session: bytes, reason: str) -> None:
        self.figures.dropped[reason] += 1
        self._effects.append(ev.Dismiss(session, reason))
