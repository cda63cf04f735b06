"""Which of several scores no other beats in every way: a Pareto front. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from entrepot.study.goals import dominates


def front(losses: Sequence[tuple[float, ...]]) -> list[int]:
    """Where in ``losses`` those stand that none of the others dominates, in order; NaN is worst.

    Equals do not beat each other: all of them are there.
    """
    ranked = sorted(
        (tuple(math.inf if math.isnan(one) else one for one in loss), place)
        for place, loss in enumerate(losses)
    )
    kept: list[tuple[tuple[float, ...], int]] = []
    for loss, place in ranked:
        # Only what came before can dominate it. Of two losses the second falls along the front, so
        # that the last one kept decides.
        rivals = kept[-1:] if len(loss) <= 2 else kept
        if not any(dominates(other, loss) for other, _ in rivals):
            kept.append((loss, place))
    return sorted(place for _, place in kept)
