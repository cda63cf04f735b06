"""Which suppliers can make a product: pattern lists, and what matches what.

Suppliers that register the same list form one *class*. A product is matched once against all
classes, in time linear in its length (RE2), and the answer is kept with the product.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

import re2

from entrepot.errors import PatternRefused

_SET_NBYTES = 64 << 20
"""Memory that one automaton over many classes may use."""

_SET_INSTRUCTIONS = 100_000
"""Compiled size up to which that memory cannot run out: RE2 needs room for some twenty states of
four bytes an instruction. Without it RE2 answers "none", or will not compile at all, so classes
beyond this size have an automaton of their own, and one that is larger by itself has none."""

_LIST = 4
"""A list of patterns may be this many times as large as the largest pattern."""


def _options(nbytes: int) -> Any:
    options = re2.Options()
    options.log_errors = False
    options.max_mem = nbytes
    return options


def compile_patterns(patterns: Sequence[str], max_program: int) -> list[Any]:
    """The compiled patterns, or PatternRefused naming the one that cannot be served, and why.

    RE2's language: no lookaround, no back-references, no ``\\Z``, counts up to 1,000.
    ``max_program`` bounds one pattern's compiled size, in instructions, and four times as much
    that of them all.
    """
    if not patterns:
        raise PatternRefused("pattern_refused", "a supplier registers at least one pattern")
    # RE2 refuses what needs more memory, at 96 bytes an instruction.
    options = _options(max(8 << 20, 128 * max_program))
    compiled = []
    total = 0
    for pattern in patterns:
        shown = pattern if len(pattern) <= 80 else pattern[:77] + "..."
        try:
            regex = re2.compile(pattern, options)
        except (re2.error, UnicodeEncodeError) as fault:
            reason = fault.args[0] if isinstance(fault, re2.error) else "not Unicode text"
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
        total += regex.programsize
        if total > _LIST * max_program:
            raise PatternRefused(
                "pattern_refused",
                f"{len(patterns):,} patterns compile to more than the {_LIST * max_program:,} "
                f"instructions allowed in all; start several suppliers",
            )
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

    def offered(self, product_id: str) -> str | None:
        """The contract of the first pattern that matches the whole id."""
        for pattern, regex in zip(self.patterns, self._compiled, strict=True):
            if regex.fullmatch(product_id) is not None:
                return self.contracts.get(pattern)
        return None

    def _agrees(self, pattern: str, contract: str | None) -> bool:
        offered = self.contracts.get(pattern)
        return offered is None or contract is None or offered == contract


R = TypeVar("R", bound=Routes)


class Matcher(Generic[R]):
    """All classes at once: a few microseconds a product over 200 of them."""

    def __init__(self) -> None:
        self._sets: dict[int, list[_Set[R]]] = {}
        self._set_of: dict[R, _Set[R]] = {}

    def add(self, routes: R) -> None:
        if routes in self._set_of:
            return
        sets = self._sets.setdefault(routes.version, [])
        for one in sets:
            if one.instructions + routes.instructions <= _SET_INSTRUCTIONS:
                break
        else:
            one = _Set()
            sets.append(one)
        one.add(routes)
        self._set_of[routes] = one

    def discard(self, routes: R) -> None:
        one = self._set_of.pop(routes, None)
        if one is not None:
            one.discard(routes)
            if not one.instructions:
                self._sets[routes.version].remove(one)

    def __iter__(self) -> Iterator[R]:
        return iter(self._set_of)

    def __len__(self) -> int:
        return len(self._set_of)

    def matching(self, version: int, product_id: str, contract: str | None) -> frozenset[R]:
        """The classes of ``version`` that serve the product."""
        found = [one.matching(product_id, contract) for one in self._sets.get(version, ())]
        return found[0] if len(found) == 1 else _NONE.union(*found)


_NONE: frozenset[Any] = frozenset()


class _Set(Generic[R]):
    """Classes of one version whose patterns are compiled into one automaton.

    That is done when first asked for: a burst of new classes costs one compilation.
    """

    def __init__(self) -> None:
        self.instructions = 0
        self._routes: dict[R, None] = {}
        self._owners: list[R] = []
        self._automaton: Any = None

    def add(self, routes: R) -> None:
        self._routes[routes] = None
        self.instructions += routes.instructions
        self._automaton = None

    def discard(self, routes: R) -> None:
        del self._routes[routes]
        self.instructions -= routes.instructions
        self._automaton = None

    def matching(self, product_id: str, contract: str | None) -> frozenset[R]:
        if self.instructions > _SET_INSTRUCTIONS:
            return frozenset(one for one in self._routes if one.serves(product_id, contract))
        if self._automaton is None:
            self._compile()
        hits = {self._owners[i] for i in self._automaton.Match(product_id) or ()}
        return frozenset(
            one for one in hits if not one.contracts or one.serves(product_id, contract)
        )

    def _compile(self) -> None:
        self._owners = [one for one in self._routes for _ in one.patterns]
        self._automaton = re2.Set.FullMatchSet(_options(_SET_NBYTES))
        for one in self._routes:
            for pattern in one.patterns:
                self._automaton.Add(pattern)
        self._automaton.Compile()
