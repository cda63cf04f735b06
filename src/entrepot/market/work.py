"""Orders at their supplier: calling the function that makes them, and writing what it returns."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from entrepot.arguments import checked_several, shown
from entrepot.errors import Closed, ConfigurationError
from entrepot.market.batch import Batch, answers_of
from entrepot.market.function import Function, Kind, Written
from entrepot.market.protocol import Region, Result, WorkItem
from entrepot.market.routing import compile_patterns
from entrepot.market.writes import Writes
from entrepot.mediums import Attachments, Medium
from entrepot.mediums.base import padded
from entrepot.mediums.spare import Spare

if TYPE_CHECKING:
    from entrepot.contract import Contract

REMEMBERED = 4096
"""Product ids whose function is remembered."""

TRUST_S = 0.1
"""Seconds for which a medium is taken to be there without looking again."""

SLOW_S = 0.002
"""A function that took that long may take so again: nothing is kept waiting for it."""

ANY_PROGRAM = 1 << 30
"""No limit of ours on a pattern's size: the broker has one."""


class Work:
    """An order, as a function that fills its slot gets it, or one that makes many.

    :ivar order_id: the client's name for it.
    :ivar product_id: what to make.
    :ivar nbytes: bytes of the slot, and so of ``out``: what a product may have.
    :ivar input: the bytes that came with the order, read-only, or None; good during the call.
    """

    __slots__ = ("_is_revoked", "_lease", "input", "nbytes", "order_id", "product_id")

    def __init__(
        self,
        order_id: str,
        product_id: str,
        nbytes: int,
        input: memoryview | None = None,
        lease: int = 0,
        is_revoked: Callable[[int], bool] | None = None,
    ) -> None:
        self.order_id = order_id
        self.product_id = product_id
        self.nbytes = nbytes
        self.input = input
        self._lease = lease
        self._is_revoked = is_revoked

    @property
    def cancelled(self) -> bool:
        """Whether nobody wants the product any more: its order was cancelled, or its client left.

        To be asked now and then by a function that takes long; it looks at most every 10 ms. What
        the function returns then, such as 0, or raises, is read by nobody.
        """
        return self._is_revoked is not None and self._is_revoked(self._lease)

    def __repr__(self) -> str:
        return f"<Work {self.order_id} of {self.product_id!r}, at most {self.nbytes} bytes>"


Products = Mapping[str, Function] | tuple[Function, Sequence[str]]


class Maker(Writes):
    """Makes what is ordered: chooses the function, calls it, writes, and says how it went.

    Writes may be under way when :meth:`make` returns, and their results come later.

    :param batch: the size of a :class:`Batch` that each function is made one of; None leaves them.
    :param batch_wait_s: for those batches that do not say.
    :param is_revoked: whether the order of a lease was cancelled, for functions that ask.
    :ivar largest: the size of the largest batch; 0 where all functions are plain.
    :ivar waits: whether each product is to have arrived before :meth:`make` returns: for who has
        nothing else to do meanwhile.
    :ivar slow: whether the last function took long.
    """

    def __init__(
        self,
        products: Products,
        contracts: Mapping[str, Contract],
        attachments: Attachments,
        clock: Callable[[], float] = time.monotonic,
        *,
        batch: int | None = None,
        batch_wait_s: float = 0.0,
        is_revoked: Callable[[int], bool] | None = None,
    ) -> None:
        products = _by_pattern(products)
        unknown = [pattern for pattern in contracts if pattern not in products]
        if unknown:
            raise ConfigurationError(
                f"there is a contract for {unknown[0]!r}, which is not among the patterns"
            )
        self.patterns = list(products)
        self._compiled = compile_patterns(self.patterns, ANY_PROGRAM)
        batches: list[Batch] = []
        self._kinds = []
        for pattern, function in products.items():
            if batch is not None and not isinstance(function, Batch):
                function = Batch(function, batch)
            if isinstance(function, Batch):
                function = _same(function, batch_wait_s, batches)
            self._kinds.append(Kind(function, contracts.get(pattern)))
        self.largest = max((each.size for each in batches), default=0)
        self._attachments = attachments
        self._is_revoked = is_revoked
        super().__init__(clock)
        self._remembered: dict[str, Kind] = {}
        self._address = ""
        self._place = ""
        self._medium: Medium | None = None
        self._trusted_until = 0.0
        self._spare = Spare(kept=1)
        self.waits = False
        self.slow = False

    def batch_of(self, product_id: str) -> Batch | None:
        """The batch in which this product's orders are made; None if each is made alone."""
        kind = self._remembered.get(product_id)
        if kind is None:
            try:
                kind = self._kind_of(product_id)
            except ConfigurationError:
                return None  # `make` says so, to the order
        return kind.batch

    def make(self, items: Sequence[WorkItem]) -> list[Result]:
        """Make what was taken together. An error of a function is a result, not an error.

        :returns: the results that are known by now. The others are :attr:`under_way`.
        """
        item = items[0]
        if len(items) == 1 and (not self.largest or self.batch_of(item.product_id) is None):
            result = self._make_one(item)
            return [] if result is None else [result]
        return self._make_many(items)

    # --- one order ----------------------------------------------------------------------

    def _make_one(self, item: WorkItem) -> Result | None:
        try:
            medium = self._medium_at(item.address)
            kind = self._remembered.get(item.product_id) or self._kind_of(item.product_id)
            if kind.in_place:
                written = self._fill(kind, item, medium)
            else:
                written = kind.write(item, medium, self._call(kind, item.product_id), self.waits)
        except Exception as error:
            return self.failure(item, error)
        return self._result(item, written)

    def _fill(self, kind: Kind, item: WorkItem, medium: Medium) -> Written:
        medium.check_range(item.offset, item.nbytes)
        if medium.in_place:
            out = medium.view(item.offset, item.nbytes, writable=True)
        else:
            out = self._scratch(item.nbytes)
        source = None if item.input is None else self._input_of(item.input)
        work = self._work_of(item, source)
        try:
            return kind.filled(item, medium, out, self._call(kind, work, out), self.waits)
        finally:
            _let_go(out)
            if source is not None:
                _let_go(source)

    def _work_of(self, item: WorkItem, source: memoryview | None) -> Work:
        return Work(
            item.order_id, item.product_id, item.nbytes, source, item.lease, self._is_revoked
        )

    def _call(self, kind: Kind, *arguments: Any) -> Any:
        began = self._clock()
        try:
            return kind.function(*arguments)
        finally:
            self.slow = self._clock() - began >= SLOW_S

    # --- many orders in one call --------------------------------------------------------

    def _make_many(self, items: Sequence[WorkItem]) -> list[Result]:
        """One call for all whose client and input are there; the others fail before it."""
        results: dict[int, Result | None] = {}
        begun: list[_Begun] = []
        try:
            for place, item in enumerate(items):
                try:
                    begun.append(self._begin(place, item))
                except Exception as error:
                    results[place] = self.failure(item, error)
            if begun:
                for one, answer in zip(begun, self._answers(begun), strict=True):
                    results[one.place] = self._end(one, answer)
        finally:
            for one in begun:
                one.let_go()
        ordered = (results[place] for place in range(len(items)))
        return [result for result in ordered if result is not None]

    def _begin(self, place: int, item: WorkItem) -> _Begun:
        """What the call needs of an order, but for memory that is not the client's."""
        kind = self._remembered.get(item.product_id) or self._kind_of(item.product_id)
        medium = self._medium_at(item.address)
        medium.check_range(item.offset, item.nbytes)
        out = None
        if kind.in_place and medium.in_place:
            out = medium.view(item.offset, item.nbytes, writable=True)
        source = None
        if item.input is not None:
            try:
                source = self._input_of(item.input)
            except BaseException:
                if out is not None:
                    _let_go(out)
                raise
        work = self._work_of(item, source)
        return _Begun(place, kind, item, work, out)

    def _answers(self, begun: Sequence[_Begun]) -> list[Any]:
        """What the function says of each; what it raises it says of all."""
        kind = begun[0].kind
        works = [one.work for one in begun]
        try:
            if kind.in_place:
                self._lend(begun)
                made = self._call(kind, works, [one.out for one in begun])
            else:
                made = self._call(kind, works)
            return answers_of(kind.name, made, len(begun))
        except Exception as error:
            return [error] * len(begun)

    def _lend(self, begun: Sequence[_Begun]) -> None:
        """Memory to fill for those whose medium is not filled in place: a part of one for each."""
        without = [one for one in begun if one.out is None]
        if not without:
            return
        with self._scratch(sum(padded(one.item.nbytes) for one in without)) as memory:
            start = 0
            for one in without:
                one.out = memory[start : start + one.item.nbytes]
                start += padded(one.item.nbytes)

    def _end(self, one: _Begun, answer: Any) -> Result | None:
        """Write what was made, where the medium is by now: the call may have taken long."""
        item = one.item
        if isinstance(answer, BaseException):
            return self.failure(item, answer)
        try:
            medium = self._medium_at(item.address)
            if one.out is None:
                written = one.kind.write(item, medium, answer, self.waits)
            else:
                written = one.kind.filled(item, medium, one.out, answer, self.waits)
        except Exception as error:
            return self.failure(item, error)
        return self._result(item, written)

    # --- where it goes ------------------------------------------------------------------

    def _input_of(self, region: Region) -> memoryview:
        return self._medium_at(region.address).view(region.offset, region.nbytes)

    def _scratch(self, nbytes: int) -> memoryview:
        """Memory to fill for a medium that is not filled in place: the same again and again.

        But not while a function has kept something that was made over it.
        """
        # Of two sizes that are alike both are served by one block.
        return self._spare.take(1 << max(0, nbytes - 1).bit_length())[:nbytes]

    def _medium_at(self, address: str) -> Medium:
        """Attached; looking whether it is still there costs a system call, and not each time."""
        now = self._clock()
        medium = self._medium
        if medium is not None and now < self._trusted_until:
            if address == self._address:
                return medium
            if medium.place_of(address) == self._place:
                with suppress(Closed):
                    return medium.at(address)
        medium = self._medium = self._attachments.get(address)
        self._address = address
        self._place = medium.place_of(address)
        self._trusted_until = now + TRUST_S
        return medium

    def _kind_of(self, product_id: str) -> Kind:
        for regex, kind in zip(self._compiled, self._kinds, strict=True):
            if regex.fullmatch(product_id):
                if len(self._remembered) >= REMEMBERED:
                    self._remembered.clear()
                self._remembered[product_id] = kind
                return kind
        raise ConfigurationError(
            f"no pattern of this supplier matches {product_id!r}; it has "
            f"{', '.join(self.patterns[:8])}"
        )

    def tidy(self) -> None:
        """Let go of mediums whose owners are gone."""
        self._attachments.drop_gone()


def _by_pattern(products: Any) -> Mapping[str, Function]:
    """``products`` in its first form, whichever it has.

    :raises ConfigurationError: it has neither.
    """
    if isinstance(products, tuple) and len(products) == 2:
        function, patterns = products
        if isinstance(patterns, str):
            raise ConfigurationError(f"patterns are a list, got {patterns!r}; write a list")
        products = dict.fromkeys(checked_several("patterns", patterns), function)
    if not isinstance(products, Mapping):
        raise ConfigurationError(
            f"products are {{pattern: function}}, or (function, [patterns]), got {shown(products)}"
        )
    if not products:
        raise ConfigurationError("a supplier needs at least one pattern and its function")
    for pattern in products:
        if not isinstance(pattern, str):
            raise ConfigurationError(f"a pattern is a str, got {shown(pattern)}")
    return products


class _Begun:
    """An order of a batch under way."""

    __slots__ = ("item", "kind", "out", "place", "work")

    def __init__(
        self, place: int, kind: Kind, item: WorkItem, work: Work, out: memoryview | None
    ) -> None:
        self.place = place
        self.kind = kind
        self.item = item
        self.work = work
        self.out = out

    def let_go(self) -> None:
        if self.out is not None:
            _let_go(self.out)
        if self.work.input is not None:
            _let_go(self.work.input)


def _same(batch: Batch, wait_s: float, known: list[Batch]) -> Batch:
    """One object for all equal batches, which is one of ``known``, or becomes it."""
    if batch.wait_s is None:
        batch = replace(batch, wait_s=wait_s)
    for other in known:
        if other == batch:
            return other
    known.append(batch)
    return batch


def _let_go(view: memoryview) -> None:
    """A function that kept its window must not write to what is another order's by then."""
    try:
        view.release()
    except BufferError:
        pass  # an array was made over it; nothing can take that back
