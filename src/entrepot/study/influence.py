"""How much each knob decides: rank correlation, from the trials that are done. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from entrepot.study.text import Value

Pair = tuple[Mapping[str, Value], float]
"""A point's values, and the score that it reached."""


def influence(pairs: Sequence[Pair]) -> dict[str, float]:
    """``|Spearman's rho|`` between each knob and the score, the greatest first.

    Values are ranked, with equal ones sharing the mean of their ranks; those that are not all
    numbers are ranked alphabetically. A knob that only some points have is judged by those. It is
    0.0 for fewer than two points, and for a knob or a score that never varied. Scores that are
    not finite are left out.

    A rank correlation sees what goes up or down with the knob. A knob with its best in the middle
    of its range, or that matters only beside another, has less than is its due.
    """
    pairs = [pair for pair in pairs if math.isfinite(pair[1])]
    names = list(dict.fromkeys(name for values, _ in pairs for name in values))
    found = {}
    for name in names:
        having = [(values[name], score) for values, score in pairs if name in values]
        found[name] = abs(
            _correlation(ranks([value for value, _ in having]), ranks([s for _, s in having]))
        )
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def ranks(values: Sequence[Value]) -> list[float]:
    """The rank of each value from 1 on, equal ones with the mean of theirs."""
    keys = ranked_as(values)
    order = sorted(range(len(keys)), key=keys.__getitem__)
    found = [0.0] * len(keys)
    start = 0
    while start < len(order):
        end = start
        while end < len(order) and keys[order[end]] == keys[order[start]]:
            end += 1
        for place in order[start:end]:
            found[place] = (start + 1 + end) / 2
        start = end
    return found


def ranked_as(values: Sequence[Value]) -> Sequence[Any]:
    """What the values are compared by: themselves where all are numbers, else their text."""
    return list(values) if all(map(is_number, values)) else list(map(str, values))


def is_number(value: object) -> bool:
    """Whether it is a number, which a truth value is not here."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _correlation(left: Sequence[float], right: Sequence[float]) -> float:
    """Pearson's, of ranks: 0.0 where one of them never varies."""
    count = len(left)
    if count < 2:
        return 0.0
    mean = (count + 1) / 2  # of any ranks
    along = sum((one - mean) * (other - mean) for one, other in zip(left, right, strict=True))
    across = math.sqrt(
        sum((one - mean) ** 2 for one in left) * sum((one - mean) ** 2 for one in right)
    )
    return max(-1.0, min(1.0, along / across)) if across else 0.0
