"""What waits, who is ready, and which of the two belong together.

Products that the same classes of suppliers can make, and orders that the same suppliers have
already failed, are alike to every supplier. They wait in one *lane*. A lane is a heap of orders; a
class keeps a heap of its lanes by their first order. Both are corrected when they are read, never
when something elsewhere changes:

- an entry of a class's heap is a lower bound for its lane's first order; one that turns out too
  low is put back with the right key, and an empty lane's is dropped;
- a lane tells of a new first order only those classes that have corrected their entry since;
- an order that was cancelled stays in its lane's heap until it comes up, or until such leftovers
  outnumber what waits.

So a step costs the logarithm of what waits, whatever the number of products. On average over many
steps, to be exact, and for each class that a product belongs to: an order given to one class is
news to the others that could have had it, once. What costs more: a product's first order and a
new class are matched, one against all classes, one against all products on order; a supplier that
comes or goes looks at its class's lanes; and one that has failed orders in many lanes passes over
these lanes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count

from entrepot.market.lane import LEVEL, NO_LEVEL, Lane
from entrepot.market.member import Supplier, SupplierClass
from entrepot.market.open_order import NOBODY, OpenOrder, Product, State
from entrepot.market.routing import Matcher


class Queue:
    """Waiting orders on one side, ready suppliers on the other."""

    def __init__(self, max_products: int, max_idle_classes: int, max_program: int) -> None:
        self.steps = 0
        """Heap operations, matches and looks so far: what the cost of a step is counted in."""
        self._max_products = self._sweep_at = max_products
        self._max_idle_classes = max_idle_classes
        self._max_program = max_program
        self._matcher: Matcher[SupplierClass] = Matcher()
        self._classes: dict[tuple[object, ...], SupplierClass] = {}
        self._idle_classes: OrderedDict[SupplierClass, None] = OrderedDict()
        self.products: dict[tuple[int, str, str | None], Product] = {}
        self._signatures: dict[frozenset[SupplierClass], frozenset[SupplierClass]] = {}
        self._lanes: dict[tuple[frozenset[SupplierClass], frozenset[Supplier]], Lane] = {}
        self._ready: OrderedDict[SupplierClass, None] = OrderedDict()
        self._sequence = count(1)
        self._turns = count(1)

    # --- products and lanes -------------------------------------------------------------

    def product(self, version: int, product_id: str, contract: str | None) -> Product:
        key = (version, product_id, contract)
        product = self.products.get(key)
        if product is None:
            if len(self.products) >= self._sweep_at:
                self._sweep()
            self.steps += 1
            classes = self._matcher.matching(version, product_id, contract)
            product = Product(version, product_id, contract, self._same(classes))
            self.products[key] = product
        return product

    def other_contract(self, product: Product) -> tuple[str, str] | None:
        """The contract under which the id is supplied, if it is not under the order's: its digest,
        and what it is in words."""
        if product.contract is not None and not any(cls.suppliers for cls in product.classes):
            for cls in self._matcher.matching(product.version, product.product_id, None):
                offered = cls.offered(product.product_id)
                if cls.suppliers and offered is not None:
                    return offered, cls.terms.get(offered, "")
        return None

    def _same(self, classes: frozenset[SupplierClass]) -> frozenset[SupplierClass]:
        """One object for all equal sets, so that ten thousand products share it."""
        return self._signatures.setdefault(classes, classes)

    def _sweep(self) -> None:
        """Forgets products that nobody has on order, and what only they needed."""
        self.products = {k: p for k, p in self.products.items() if not p.idle}
        self._sweep_at = max(self._max_products, 2 * len(self.products))
        needed = {p.lane for p in self.products.values()}
        for key, lane in list(self._lanes.items()):
            if not lane.live and lane not in needed:
                del self._lanes[key]
                self._unlink(lane)
        self._signatures = {p.classes: p.classes for p in self.products.values()}

    def _unlink(self, lane: Lane) -> None:
        for cls in lane.classes:
            cls.lanes.pop(lane, None)

    def _lane_of(self, order: OpenOrder) -> Lane:
        product = order.product
        if order.failed_by:
            return self._lane(product.classes, order.failed_by)
        if product.lane is None:
            product.lane = self._lane(product.classes, NOBODY)
        return product.lane

    def _lane(self, classes: frozenset[SupplierClass], failed_by: frozenset[Supplier]) -> Lane:
        lane = self._lanes.get((classes, failed_by))
        if lane is None:
            lane = self._lanes[classes, failed_by] = Lane(classes, failed_by)
            for cls in classes:
                cls.lanes[lane] = None
            lane.open = bool(failed_by) and not self._others(classes, failed_by)
        return lane

    @staticmethod
    def _others(classes: frozenset[SupplierClass], failed_by: frozenset[Supplier]) -> bool:
        """Whether a supplier of these classes is registered that is not one of ``failed_by``."""
        return any(s not in failed_by and not s.draining for cls in classes for s in cls.suppliers)

    # --- waiting orders -----------------------------------------------------------------

    def put(self, order: OpenOrder, *, front: bool = False) -> None:
        """The order waits; with ``front``, before those of its priority never dispatched."""
        band = 0 if front else 1
        level = (2**31 - order.priority) * 2 + band
        order.key = (level << LEVEL) | next(self._sequence)
        order.state = State.QUEUED
        order.product.queued += 1
        self._insert(self._lane_of(order), order)

    def _insert(self, lane: Lane, order: OpenOrder) -> None:
        order.lane = lane
        lane.products.add(order.product)
        lane.live += 1
        heappush(lane.heap, (order.key, order))
        if lane.heap[0][1] is order:
            self._announce(lane, order.key)
        if len(lane.products) > 2 * lane.live + 64:
            lane.products = {o.product for o in lane.waiting()}

    def _announce(self, lane: Lane, key: int) -> None:
        """Tells the classes of a lane about its first order, where they do not know of it."""
        classes: Iterable[SupplierClass] = lane.unaware
        level = key >> LEVEL
        if level < lane.level:
            classes = lane.classes
            if lane.level == NO_LEVEL:
                lane.origin = level
            drop = lane.origin - level
            # Twice as far down, so that priorities that rise and rise are news but a few times.
            lane.level = level if drop < 2 else max(0, level - drop)
        bound = key if level == lane.level else lane.level << LEVEL
        entries = lane.entries
        for cls in classes:
            self.steps += 1
            known = entries.get(cls)
            if (known is None or known > bound) and self._may_serve(cls, lane):
                entries[cls] = bound
                heappush(cls.heap, (bound, lane))
        lane.unaware.clear()

    @staticmethod
    def _may_serve(cls: SupplierClass, lane: Lane) -> bool:
        if lane.open or not lane.failed_by:
            return bool(cls.suppliers)
        return any(s not in lane.failed_by for s in cls.suppliers)

    def remove(self, order: OpenOrder) -> None:
        """A waiting order waits no more. Its state is the caller's to set."""
        lane = order.lane
        order.lane = None
        order.product.queued -= 1
        if lane is None:
            return
        lane.live -= 1
        if len(lane.heap) > 2 * lane.live + 64:
            self.steps += lane.live
            lane.heap = [entry for entry in lane.heap if entry[1].lane is lane]
            heapify(lane.heap)
        self._forget_if_unused(lane)

    def next_order(self, supplier: Supplier) -> OpenOrder | None:
        """Takes out the first order that the supplier may be given, or None."""
        cls = supplier.cls
        if cls is None:
            return None
        heap = cls.heap
        passed: list[tuple[int, Lane]] = []
        found = None
        while heap:
            self.steps += 1
            key, lane = heap[0]
            if lane.entries.get(cls) != key:
                heappop(heap)
                continue
            head = lane.head()
            if head is None:
                heappop(heap)
                del lane.entries[cls]
                lane.unaware.add(cls)
                self._forget_if_unused(lane)
                continue
            if head.key != key:
                lane.entries[cls] = head.key
                lane.unaware.add(cls)
                heapreplace(heap, (head.key, lane))
                continue
            if supplier in lane.failed_by and not lane.open:
                passed.append(heappop(heap))
                continue
            heappop(lane.heap)
            lane.live -= 1
            head.lane = None
            head.product.queued -= 1
            found = head
            break
        for entry in passed:
            heappush(heap, entry)
        return found

    def _forget_if_unused(self, lane: Lane) -> None:
        """Failed orders come in ever new company: an empty lane of theirs is not kept."""
        if lane.failed_by and not lane.live and not lane.entries:
            key = (lane.classes, lane.failed_by)
            if self._lanes.get(key) is lane:
                del self._lanes[key]
                self._unlink(lane)

    # --- ready suppliers ----------------------------------------------------------------

    def refresh(self, supplier: Supplier) -> None:
        """Takes note of whether the supplier may be given an order now."""
        cls = supplier.cls
        if cls is None:
            return
        if supplier.takes:
            cls.ready.setdefault(supplier)
            if cls not in self._ready:
                self._ready[cls] = None
                cls.turn = next(self._turns)
        elif supplier in cls.ready:
            del cls.ready[supplier]
            if not cls.ready:
                del self._ready[cls]

    def rotate(self, supplier: Supplier) -> None:
        """The supplier was given an order and takes more: the others come first."""
        cls = supplier.cls
        if cls is not None and supplier in cls.ready:
            cls.ready.move_to_end(supplier)
            self._ready.move_to_end(cls)
            cls.turn = next(self._turns)

    def ready_supplier(self, order: OpenOrder) -> Supplier | None:
        """The supplier that has been ready longest, of those that may be given the order."""
        ready = self._ready
        if not ready:
            return None
        classes = order.product.classes
        candidates: Iterable[SupplierClass]
        if len(ready) <= len(classes):
            candidates = ready
        else:
            candidates = sorted((c for c in classes if c.ready), key=_turn)
        failed = order.failed_by
        may_repeat = bool(failed) and not self._others(classes, failed)
        for cls in candidates:
            self.steps += 1
            if cls in classes:
                for supplier in cls.ready:
                    if may_repeat or supplier not in failed:
                        return supplier
        return None

    @property
    def ready_count(self) -> int:
        return sum(len(cls.ready) for cls in self._ready)

    # --- suppliers come and go ----------------------------------------------------------

    def class_of(
        self, version: int, patterns: Sequence[str], contracts: Mapping[str, str]
    ) -> SupplierClass:
        """The class of a pattern list, to be joined at once.

        A new one costs a match over the products on order. Raises PatternRefused.
        """
        key = (version, tuple(patterns), tuple(sorted(contracts.items())))
        cls = self._classes.get(key)
        if cls is None:
            cls = SupplierClass(version, patterns, contracts, self._max_program)
            self._classes[key] = cls
            self._matcher.add(cls)
            self._extend(cls)
        self._idle_classes.pop(cls, None)
        return cls

    def _extend(self, cls: SupplierClass) -> None:
        """A new class: the products that it serves move to other lanes."""
        changed = set()
        for product in self.products.values():
            if product.version == cls.version:
                self.steps += 1
                if cls.serves(product.product_id, product.contract):
                    product.classes = self._same(product.classes | {cls})
                    product.lane = None
                    changed.add(product)
        if not changed:
            return
        for lane in list(self._lanes.values()):
            if lane.products.isdisjoint(changed):
                continue
            if lane.products <= changed:
                self._rekey(lane, lane.classes | {cls})
            else:
                self._split(lane, changed)

    def _rekey(self, lane: Lane, classes: frozenset[SupplierClass]) -> None:
        key = (lane.classes, lane.failed_by)
        if self._lanes.get(key) is lane:
            del self._lanes[key]
        for gone in lane.classes - classes:
            gone.lanes.pop(lane, None)
            lane.entries.pop(gone, None)
            lane.unaware.discard(gone)
        classes = self._same(classes)
        alike = self._lanes.get((classes, lane.failed_by))
        if alike is not None:
            self._unlink(lane)
            for product in lane.products:
                product.lane = None
            self._move(lane.waiting(), lambda _: alike)
            lane.live = 0
            return
        lane.classes = classes
        for cls in classes:
            cls.lanes[lane] = None
        self._lanes[classes, lane.failed_by] = lane

    def _split(self, lane: Lane, changed: set[Product]) -> None:
        moving = [order for order in lane.waiting() if order.product in changed]
        for order in moving:
            order.lane = None
            lane.live -= 1
        lane.heap = [entry for entry in lane.heap if entry[1].lane is lane]
        heapify(lane.heap)
        lane.products -= changed
        self._move(moving, self._lane_of)
        self._forget_if_unused(lane)

    def _move(self, orders: list[OpenOrder], to: Callable[[OpenOrder], Lane]) -> None:
        """Puts orders, with the keys that they have, into other lanes."""
        reached = set()
        for order in sorted(orders, key=_key):
            self.steps += 1
            lane = to(order)
            if lane not in reached:
                # It may come before what the classes were told of.
                reached.add(lane)
                lane.unaware.update(lane.classes)
            self._insert(lane, order)

    def join(self, supplier: Supplier, cls: SupplierClass) -> None:
        supplier.cls = cls
        cls.suppliers[supplier] = None
        self._reconsider(cls)
        for lane in cls.lanes:
            self.steps += 1
            lane.unaware.add(cls)
            head = lane.head()
            if head is not None and self._may_serve(cls, lane):
                # An entry may be there that is too high: of what came while all of the class had
                # failed such orders, it was not told.
                known = lane.entries.get(cls)
                if known is None or known > head.key:
                    lane.entries[cls] = head.key
                    heappush(cls.heap, (head.key, lane))

    def leave(self, supplier: Supplier) -> list[Supplier]:
        """Takes the supplier out of its class. Those returned may now be given more orders."""
        cls = supplier.cls
        if cls is None:
            return []
        supplier.free = 0
        self.refresh(supplier)
        supplier.cls = None
        del cls.suppliers[supplier]
        if not cls.suppliers:
            self._idle_classes[cls] = None
            cls.heap.clear()
            for lane in list(cls.lanes):
                lane.entries.pop(cls, None)
                self._forget_if_unused(lane)
        again = self._reconsider(cls)
        self._forget_classes()
        return again

    def drained(self, supplier: Supplier) -> list[Supplier]:
        """The supplier takes no more orders. Those returned may now be given more."""
        self.refresh(supplier)
        return self._reconsider(supplier.cls) if supplier.cls is not None else []

    def _reconsider(self, cls: SupplierClass) -> list[Supplier]:
        """Who is registered has changed: may those who failed an order try it again?

        Ready suppliers that now may are returned, who has been ready longest first.
        """
        classes: set[SupplierClass] = set()
        for lane in cls.lanes:
            if lane.failed_by:
                self.steps += 1
                was_open = lane.open
                lane.open = not self._others(lane.classes, lane.failed_by)
                if lane.open and not was_open:
                    lane.unaware.update(lane.classes)
                    head = lane.head()
                    if head is not None:
                        self._announce(lane, head.key)
                        classes.update(one for one in lane.classes if one.ready)
        return [supplier for one in sorted(classes, key=_turn) for supplier in one.ready]

    def _forget_classes(self) -> None:
        while len(self._idle_classes) > self._max_idle_classes:
            cls, _ = self._idle_classes.popitem(last=False)
            self._matcher.discard(cls)
            self._classes = {k: c for k, c in self._classes.items() if c is not cls}
            for product in self.products.values():
                self.steps += 1
                if cls in product.classes:
                    product.classes = self._same(product.classes - {cls})
                    product.lane = None
            for lane in list(cls.lanes):
                self._rekey(lane, lane.classes - {cls})

    # --- figures ------------------------------------------------------------------------

    def classes(self) -> Iterable[SupplierClass]:
        return (cls for cls in self._classes.values() if cls.suppliers)

    def lanes(self) -> Iterable[Lane]:
        """Every lane in which something waits."""
        return [lane for lane in self._lanes.values() if lane.live]


def _turn(cls: SupplierClass) -> int:
    return cls.turn


def _key(order: OpenOrder) -> int:
    return order.key
