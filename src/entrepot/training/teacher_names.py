"""From a product's name to what is captured for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import re2

from entrepot.arguments import checked_kind
from entrepot.capture.spec import parse_io_spec
from entrepot.errors import ConfigurationError, NotServed
from entrepot.market.routing import compile_patterns

SPEC_PATTERN = r"(?:inputs|outputs)\[[^\]]*\](?:\|(?:inputs|outputs)\[[^\]]*\])?"
"""Every name that :func:`entrepot.capture.parse_io_spec` reads; some that it does not."""

INDEX = "index"
"""The group of a pattern that chooses a batch."""

INDEX_CHARS = 18
"""Longest index, in digits."""

REMEMBERED = 4096
"""Names whose meaning is remembered."""

MAX_PROGRAM = 1 << 20


@dataclass(frozen=True, slots=True)
class Asked:
    """What one product is made of.

    :ivar inputs: modules whose inputs are in it.
    :ivar outputs: modules whose outputs are.
    :ivar index: of which sample; None for any next one.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    index: int | None = None

    @property
    def modules(self) -> Asked:
        """The same of any sample."""
        return self if self.index is None else replace(self, index=None)


class Names:
    """Product ids as a teacher reads them: specifications, and names of its owner's.

    :param names: ``{pattern: template}``. The template is a specification, in which ``\\1`` and
        ``\\g<name>`` stand for groups of the pattern. A group called ``index`` is the number of
        the sample.
    :raises PatternRefused: a pattern is none.
    :raises ConfigurationError: it is no mapping of texts.
    """

    def __init__(self, names: Mapping[str, str]) -> None:
        checked_kind("names", names, Mapping, "write {'layer_(\\\\d+)': 'outputs[layers.\\\\1]'}")
        for pattern, template in names.items():
            checked_kind("a pattern in names", pattern, str, "it is an RE2 pattern")
            checked_kind("what a name stands for", template, str, "write outputs[layers.\\\\1]")
        self.patterns = [*names, SPEC_PATTERN]
        compiled = compile_patterns(list(names), MAX_PROGRAM) if names else []
        self._templates = list(zip(compiled, names.values(), strict=True))
        self._remembered: dict[str, Asked] = {}

    def asked(self, product_id: str) -> Asked:
        """What ``product_id`` asks for.

        :raises NotServed: no pattern matches it, or its index is no number.
        :raises SpecError: it, or what it stands for, cannot be read.
        """
        asked = self._remembered.get(product_id)
        if asked is None:
            if len(self._remembered) >= REMEMBERED:
                self._remembered.clear()
            asked = self._remembered[product_id] = self._read(product_id)
        return asked

    def _read(self, product_id: str) -> Asked:
        for pattern, template in self._templates:
            match = pattern.fullmatch(product_id)
            if match is not None:
                try:
                    spec = match.expand(template)
                except (re2.error, IndexError, LookupError) as error:
                    raise ConfigurationError(
                        f"{template!r}, which {pattern.pattern!r} stands for, names a group that "
                        f"the pattern lacks: {error}"
                    ) from None
                index = match.groupdict().get(INDEX)
                return _asked(spec, None if index is None else _number(product_id, index))
        if not product_id.startswith(("inputs[", "outputs[")):
            known = [pattern.pattern for pattern, _ in self._templates[:8]]
            raise NotServed(
                f"this teacher has no product {product_id[:120]!r}; it has "
                f"{', '.join([*known, 'inputs[a|b]|outputs[c]'])}"
            )
        return _asked(product_id, None)


def _asked(spec: str, index: int | None) -> Asked:
    inputs, outputs = parse_io_spec(spec)
    return Asked(tuple(inputs), tuple(outputs), index)


def _number(product_id: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= INDEX_CHARS):
        raise NotServed(
            f"{product_id[:120]!r} has {text[:40]!r} for a sample's number; it is at most "
            f"{INDEX_CHARS} digits"
        )
    return int(text)
