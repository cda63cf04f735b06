"""A supplier's function: how it wants to be called, and what is made of what it returns."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import xxhash

from entrepot.arguments import checked_function
from entrepot.errors import ConfigurationError, NotBytes, ProductTooLarge
from entrepot.market.batch import Batch
from entrepot.market.protocol import WorkItem
from entrepot.mediums import Medium, Receipt
from entrepot.mediums.buffers import as_bytes, copy_summed

if TYPE_CHECKING:
    from entrepot.contract import Contract

Function = Callable[..., Any]
"""``f(product_id) -> bytes``, ``f(work, out) -> nbytes``, or a :class:`Batch`. Who is given ``out``
may leave it alone, and return a list of buffers in place of ``nbytes``."""

Written = tuple[int, int, Receipt | None]
"""Bytes of a product, their checksum, and what tells that they arrived, where that is not known."""


class Kind:
    """A function, and how it wants to be called.

    :ivar batch: what ``function`` is the function of; None for a plain one.
    :ivar in_place: whether it fills the slot, or the slots, itself.
    :raises ConfigurationError: it cannot be called, or not with what a product's function gets; or
        a call only begins, since it is async or a generator.
    """

    __slots__ = ("batch", "contract", "function", "in_place", "name")

    def __init__(self, function: Function, contract: Contract | None) -> None:
        self.batch = function if isinstance(function, Batch) else None
        if isinstance(function, Batch):
            function = function.function
        self.name = getattr(function, "__qualname__", type(function).__qualname__)
        self.function = checked_function(f"a product's function, {self.name},", function)
        self.contract = contract
        self.in_place = self._required() == 2

    def _required(self) -> int:
        """How many arguments the function wants."""
        try:
            parameters = inspect.signature(self.function).parameters.values()
        except (TypeError, ValueError):  # some built-in functions do not say
            return 1
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        positional = [p for p in parameters if p.kind in kinds]
        required = sum(p.default is p.empty for p in positional)
        if required == 2:
            return 2
        takes_one = required == 1 or (
            required == 0 and (positional or any(p.kind == p.VAR_POSITIONAL for p in parameters))
        )
        if not takes_one:
            whose, forms = "product's", "f(product_id) -> bytes or f(work, out) -> nbytes"
            if self.batch is not None:
                whose, forms = "batch's", "f(works) -> results or f(works, outs) -> sizes"
            raise ConfigurationError(
                f"{self.name} takes {required} arguments; a {whose} function is {forms}"
            )
        return 1

    def write(self, item: WorkItem, medium: Medium, made: Any, waits: bool) -> Written:
        """Write what the function returned.

        :param waits: wait until it has arrived.
        :raises NotBytes: it is nothing that has bytes.
        :raises MediumError: it could not be written, or has more bytes than the slot.
        """
        final = False
        if type(made) is not bytes:
            if self.contract is not None and isinstance(made, Mapping):
                made = self.contract.encode(**made)
                final = True
            elif made is None or isinstance(made, str | Mapping):
                raise NotBytes(self._describe_wrong(made))
        # What was made may be larger than what was ordered, or its buffer too odd to write.
        checksum, receipt = _put(item, medium, made, waits, final)
        nbytes = len(made) if type(made) is bytes else memoryview(made).nbytes
        return nbytes, checksum, receipt

    def _describe_wrong(self, made: object) -> str:
        if isinstance(made, Mapping):
            return (
                f"{self.name} returned a {type(made).__name__} and no contract says how to lay it "
                f"out; give the supplier contracts={{pattern: contract}}, or return bytes"
            )
        return f"{self.name} must return bytes or an array, and returned {type(made).__name__}"

    def filled(
        self, item: WorkItem, medium: Medium, out: memoryview, nbytes: Any, waits: bool
    ) -> Written:
        """The function filled ``nbytes`` of ``out``, as it says: that, checked.

        Or it left ``out`` alone, and ``nbytes`` is a list of buffers that are to be there.

        :param waits: as in :meth:`write`.
        :raises NotBytes: it is no number.
        :raises ProductTooLarge: it cannot be that many.
        :raises MediumError: what is filled could not be sent on, or its client is gone.
        """
        if isinstance(nbytes, list):
            return self._joined(item, medium, out, [as_bytes(part) for part in nbytes], waits)
        if not isinstance(nbytes, int) or isinstance(nbytes, bool):
            raise NotBytes(
                f"{self.name} must return how many bytes of `out` it filled, or a list of buffers, "
                f"and returned {type(nbytes).__name__}"
            )
        if nbytes < 0 or nbytes > item.nbytes:
            raise ProductTooLarge(
                f"{self.name} says that it filled {nbytes} bytes of a slot of {item.nbytes}"
            )
        if medium.in_place:
            return nbytes, medium.checksum(item.offset, nbytes), None
        return nbytes, *_put(item, medium, out[:nbytes], waits, False)

    def _joined(
        self, item: WorkItem, medium: Medium, out: memoryview, parts: list[memoryview], waits: bool
    ) -> Written:
        """The function returned buffers, which are written one after the other."""
        nbytes = sum(map(len, parts))
        if nbytes > item.nbytes:
            raise ProductTooLarge(
                f"{self.name} returned {nbytes} bytes in {len(parts)} buffers, for a slot of "
                f"{item.nbytes}"
            )
        offset, limit, lease = item.offset, item.nbytes, item.lease
        if not medium.in_place:
            if waits:
                return nbytes, medium.write_parts(offset, parts, limit, lease=lease), None
            return nbytes, *medium.post_parts(offset, parts, limit, lease=lease)
        running = xxhash.xxh3_64()
        start = 0
        for part in parts:
            end = start + len(part)
            copy_summed(out[start:end], part, running)
            start = end
        return nbytes, running.intdigest(), None


def _put(
    item: WorkItem, medium: Medium, made: Any, waits: bool, final: bool
) -> tuple[int, Receipt | None]:
    if waits:
        return medium.write_checksummed(item.offset, made, item.nbytes, lease=item.lease), None
    return medium.post(item.offset, made, item.nbytes, lease=item.lease, final=final)
