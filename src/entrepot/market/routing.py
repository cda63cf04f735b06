"""Which suppliers can make a product: pattern lists, and what matches what.

Suppliers that register the same list form one *class*. A product is matched once against all
classes, in time linear in its length (RE2), and the answer is kept with the product.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

import re2

from entrepot.errors import PatternRefused

_SET_NBYTES = 64 << 20
"""Memory that the matcher over all classes may use."""

_SET_INSTRUCTIONS = 100_000
"""Compiled size up to which that memory cannot run out: RE2's automaton needs room for some
twenty states of four bytes an instruction. Beyond it, RE2 may answer "none" where it means "out of
memory", so there a miss is looked at again, class by class."""


def _options() -> Any:
    options = re2.Options()
    options.log_errors = False
    return options


def compile_patterns(patterns: Sequence[str], max_program: int) -> list[Any]:
    """The compiled patterns, or PatternRefused naming the one that cannot be served, and why.

    RE2's language: no lookaround, no back-references, no ``\\Z``, counts up to 1,000.
    ``max_program`` bounds one pattern's compiled size, in instructions.
    """
    if not patterns:
        raise PatternRefused("pattern_refused", "a supplier registers at least one pattern")
    options = _options()
    compiled = []
    for pattern in patterns:
        shown = pattern if len(pattern) <= 80 else pattern[:77] + "..."
        try:
            regex = re2.compile(pattern, options)
        except (re2.error, UnicodeEncodeError) as fault:
            reason = fault.args[0] if fault.args else "not a pattern"
            if isinstance(reason, bytes):
                reason = reason.decode("utf-8", "replace")
            raise PatternRefused(
                "pattern_refused",
                f"pattern {shown!r}: {reason}; patterns are RE2 (no lookaround, "
                f"back-references or \\Z, counts up to 1,000)",
            ) from fault
        if regex.programsize > max_program:
            raise PatternRefused(
                "pattern_refused",
                f"pattern {shown!r} compiles to {regex.programsize:,} instructions, "
                f"more than the {max_program:,} allowed; split it into several patterns",
            )
        compiled.append(regex)
    return compiled


class Routes:
    """What is matched against products: one class's patterns, for one protocol version."""

    __slots__ = ("_compiled", "contracts", "instructions", "patterns", "version")

    def __init__(
        self,
        version: int,
        patterns: Sequence[str],
        contracts: Mapping[str, str],
        max_program: int,
    ) -> None:
        self.version = version
        self.patterns = tuple(patterns)
        self.contracts = dict(contracts)
        self._compiled = compile_patterns(self.patterns, max_program)
        self.instructions: int = sum(regex.programsize for regex in self._compiled)

    def serves(self, product_id: str, contract: str | None) -> bool:
        """Whether one of the patterns matches the whole id, under an agreeing contract."""
        for pattern, regex in zip(self.patterns, self._compiled, strict=True):
            if self._agrees(pattern, contract) and regex.fullmatch(product_id) is not None:
                return True
        return False

    def _agrees(self, pattern: str, contract: str | None) -> bool:
        offered = self.contracts.get(pattern)
        return offered is None or contract is None or offered == contract


R = TypeVar("R", bound=Routes)


class Matcher(Generic[R]):
    """All classes at once: a few microseconds a product over 200 of them."""

    def __init__(self) -> None:
        self._routes: dict[R, None] = {}
        self._sets: dict[int, _Set[R]] | None = None

    def add(self, routes: R) -> None:
        self._routes[routes] = None
        self._sets = None

    def discard(self, routes: R) -> None:
        if self._routes.pop(routes, self) is not self:
            self._sets = None

    def __iter__(self) -> Iterator[R]:
        return iter(self._routes)

    def __len__(self) -> int:
        return len(self._routes)

    def matching(self, version: int, product_id: str, contract: str | None) -> frozenset[R]:
        """The classes of ``version`` that serve the product."""
        if self._sets is None:
            # Made when first asked for: a burst of new classes costs one compilation.
            versions = {routes.version for routes in self._routes}
            self._sets = {v: _Set(r for r in self._routes if r.version == v) for v in versions}
        return (
            self._sets[version].matching(product_id, contract) if version in self._sets else _NONE
        )


_NONE: frozenset[Any] = frozenset()


class _Set(Generic[R]):
    """The patterns of all classes of one version, compiled into one automaton."""

    def __init__(self, routes: Iterable[R]) -> None:
        self._routes = list(routes)
        options = _options()
        options.max_mem = _SET_NBYTES
        automaton = re2.Set.FullMatchSet(options)
        self._owners: list[R] = []
        for one in self._routes:
            for pattern in one.patterns:
                automaton.Add(pattern)
                self._owners.append(one)
        self._exact = sum(one.instructions for one in self._routes) <= _SET_INSTRUCTIONS
        automaton.Compile()
        self._automaton = automaton

    def matching(self, product_id: str, contract: str | None) -> frozenset[R]:
        hits = {self._owners[i] for i in self._automaton.Match(product_id) or ()}
        if not hits and not self._exact:
            return frozenset(one for one in self._routes if one.serves(product_id, contract))
        return frozenset(
            one for one in hits if not one.contracts or one.serves(product_id, contract)
        )
