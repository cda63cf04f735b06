"""One order at its supplier: calling the function that makes it, and writing what it returns."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from entrepot.errors import ConfigurationError, NotBytes, ProductTooLarge
from entrepot.market.protocol import ERROR_CHARS, Fault, Region, Result, WorkItem
from entrepot.market.routing import compile_patterns
from entrepot.mediums import Attachments, Medium

if TYPE_CHECKING:
    from entrepot.contract import Contract

REMEMBERED = 4096
"""Product ids whose function is remembered."""

TRUST_S = 0.1
"""Seconds for which a medium is taken to be there without looking again."""

SCRATCH_NBYTES = 64 << 20
"""Bytes that are kept to fill, where a supplier has no window on the client's memory."""

ANY_PROGRAM = 1 << 30
"""No limit of ours on a pattern's size: the broker has one."""


class Work:
    """An order, as a function of two parameters gets it.

    :ivar order_id: the client's name for it.
    :ivar product_id: what to make.
    :ivar nbytes: bytes of the slot, and so of ``out``.
    :ivar input: the bytes that came with the order, read-only, or None; good during the call.
    """

    __slots__ = ("input", "nbytes", "order_id", "product_id")

    def __init__(
        self, order_id: str, product_id: str, nbytes: int, input: memoryview | None = None
    ) -> None:
        self.order_id = order_id
        self.product_id = product_id
        self.nbytes = nbytes
        self.input = input

    def __repr__(self) -> str:
        return f"<Work {self.order_id} of {self.product_id!r}, at most {self.nbytes} bytes>"


Function = Callable[..., Any]
"""``f(product_id) -> bytes``, or ``f(work, out) -> nbytes``."""

Products = Mapping[str, Function] | tuple[Function, Sequence[str]]


class Maker:
    """Makes what is ordered: chooses the function, calls it, writes, and says how it went."""

    def __init__(
        self,
        products: Products,
        contracts: Mapping[str, Contract],
        attachments: Attachments,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if isinstance(products, tuple):
            function, patterns = products
            if isinstance(patterns, str):
                raise ConfigurationError(f"patterns are a list, got {patterns!r}; write a list")
            products = dict.fromkeys(patterns, function)
        if not products:
            raise ConfigurationError("a supplier needs at least one pattern and its function")
        unknown = [pattern for pattern in contracts if pattern not in products]
        if unknown:
            raise ConfigurationError(
                f"there is a contract for {unknown[0]!r}, which is not among the patterns"
            )
        self.patterns = list(products)
        self._compiled = compile_patterns(self.patterns, ANY_PROGRAM)
        self._kinds = [
            _Kind(function, contracts.get(pattern)) for pattern, function in products.items()
        ]
        self._attachments = attachments
        self._clock = clock
        self._remembered: dict[str, _Kind] = {}
        self._address = ""
        self._medium: Medium | None = None
        self._trusted_until = 0.0
        self._memory = bytearray()

    def make(self, item: WorkItem) -> Result:
        """Make one product. An error of the function is a result, not an error."""
        try:
            medium = self._medium_at(item.address)
            kind = self._remembered.get(item.product_id) or self._kind_of(item.product_id)
            if kind.in_place:
                nbytes, checksum = self._fill(kind, item, medium)
            else:
                nbytes, checksum = self._write(kind, item, medium)
        except Exception as error:
            return failure(item, error)
        return Result(item.order_id, item.lease, True, nbytes, checksum)

    def _write(self, kind: _Kind, item: WorkItem, medium: Medium) -> tuple[int, int]:
        made = kind.function(item.product_id)
        if type(made) is not bytes:
            if kind.contract is not None and isinstance(made, Mapping):
                made = kind.contract.encode(**made)
            elif made is None or isinstance(made, str | Mapping):
                raise NotBytes(kind.describe_wrong(made))
        # What was made may be larger than what was ordered, or its buffer too odd to write.
        checksum = medium.write_checksummed(item.offset, made, item.nbytes, lease=item.lease)
        return memoryview(made).nbytes, checksum

    def _fill(self, kind: _Kind, item: WorkItem, medium: Medium) -> tuple[int, int]:
        medium.check_range(item.offset, item.nbytes)
        if medium.in_place:
            out = medium.view(item.offset, item.nbytes, writable=True)
        else:
            out = self._scratch(item.nbytes)
        source = None if item.input is None else self._input_of(item.input)
        work = Work(item.order_id, item.product_id, item.nbytes, source)
        try:
            nbytes = kind.function(work, out)
            if not isinstance(nbytes, int) or isinstance(nbytes, bool):
                raise NotBytes(
                    f"{kind.name} must return how many bytes of `out` it filled, and returned "
                    f"{type(nbytes).__name__}"
                )
            if nbytes < 0 or nbytes > item.nbytes:
                raise ProductTooLarge(
                    f"{kind.name} says that it filled {nbytes} bytes of a slot of {item.nbytes}"
                )
            if medium.in_place:
                return nbytes, medium.checksum(item.offset, nbytes)
            return nbytes, medium.write_checksummed(
                item.offset, out[:nbytes], item.nbytes, lease=item.lease
            )
        finally:
            _let_go(out)
            if source is not None:
                _let_go(source)

    def _input_of(self, region: Region) -> memoryview:
        return self._medium_at(region.address).view(region.offset, region.nbytes)

    def _scratch(self, nbytes: int) -> memoryview:
        """Memory to fill for a medium that is not filled in place: the same again and again."""
        memory = self._memory
        try:
            memory.append(0)  # refused while a function has kept a window on it
            del memory[max(nbytes, SCRATCH_NBYTES) :]
            if len(memory) < nbytes:
                memory.extend(bytes(nbytes - len(memory)))
        except BufferError:
            memory = self._memory = bytearray(nbytes)
        return memoryview(memory)[:nbytes]

    def _medium_at(self, address: str) -> Medium:
        """Attached; looking whether it is still there costs a system call, and not each time."""
        now = self._clock()
        medium = self._medium
        if medium is None or address != self._address or now >= self._trusted_until:
            medium = self._medium = self._attachments.get(address)
            self._address = address
            self._trusted_until = now + TRUST_S
        return medium

    def _kind_of(self, product_id: str) -> _Kind:
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


class _Kind:
    """A function, and how it wants to be called."""

    __slots__ = ("contract", "function", "in_place", "name")

    def __init__(self, function: Function, contract: Contract | None) -> None:
        if not callable(function):
            raise ConfigurationError(
                f"a product's function must be callable, got {type(function).__name__}"
            )
        self.function = function
        self.contract = contract
        self.name = getattr(function, "__qualname__", type(function).__qualname__)
        self.in_place = _required(function, self.name) == 2

    def describe_wrong(self, made: object) -> str:
        if isinstance(made, Mapping):
            return (
                f"{self.name} returned a {type(made).__name__} and no contract says how to lay it "
                f"out; give the supplier contracts={{pattern: contract}}, or return bytes"
            )
        return f"{self.name} must return bytes or an array, and returned {type(made).__name__}"


def _required(function: Function, name: str) -> int:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some built-in functions do not say
        return 1
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = sum(p.default is p.empty for p in positional)
    if required == 2:
        return 2
    takes_one = required == 1 or (
        required == 0 and (positional or any(p.kind == p.VAR_POSITIONAL for p in parameters))
    )
    if not takes_one:
        raise ConfigurationError(
            f"{name} takes {required} arguments; a product's function is f(product_id) -> bytes "
            f"or f(work, out) -> nbytes"
        )
    return 1


def failure(item: WorkItem, error: BaseException) -> Result:
    """The result that says that ``error`` was raised; texts are cut to what a broker takes."""
    try:
        message = str(error)
    except Exception:
        message = "(its message could not be read)"
    fault = Fault(_text(type(error).__name__), _text(message))
    return Result(item.order_id, item.lease, False, error=fault)


def _text(text: str) -> str:
    return text[:ERROR_CHARS].encode("utf-8", "replace").decode()


def _let_go(view: memoryview) -> None:
    """A function that kept its window must not write to what is another order's by then."""
    try:
        view.release()
    except BufferError:
        pass  # an array was made over it; nothing can take that back
