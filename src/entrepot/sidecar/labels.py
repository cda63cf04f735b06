"""Names that strangers choose, as values of labels: short, and only so many. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b

LONGEST = 120
"""Characters of a label's value."""

OTHER = "other"
"""What stands for all that are too many."""


def cut(name: str) -> str:
    """``name``, or its beginning with a hash of all of it: two that differ stay two."""
    if len(name) <= LONGEST:
        return name
    mark = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()
    return f"{name[: LONGEST - len(mark) - 1]}~{mark}"


def largest(
    figures: Iterable[tuple[str, Mapping[str, float]]], by: str, most: int
) -> list[tuple[str, dict[str, float]]]:
    """The ``most`` with the largest figure ``by``, and under :data:`OTHER` the sum of the rest.

    Those of one name are summed, since a label's value may stand there once.
    """
    sums: dict[str, dict[str, float]] = {}
    for name, figure in figures:
        _add(sums.setdefault(cut(name), {}), figure)
    rest = sums.pop(OTHER, {})
    ordered = sorted(sums.items(), key=lambda one: (-one[1].get(by, 0.0), one[0]))
    for _, figure in ordered[most:]:
        _add(rest, figure)
    return [*ordered[:most], (OTHER, rest)] if rest else ordered[:most]


def _add(sums: dict[str, float], figure: Mapping[str, float]) -> None:
    for key, value in figure.items():
        sums[key] = sums.get(key, 0.0) + value
