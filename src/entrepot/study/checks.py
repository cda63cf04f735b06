"""Arguments of samplers and pruners, refused where they were typed."""

from __future__ import annotations

import math
import operator
from numbers import Real

from entrepot.errors import ConfigurationError


def whole(what: str, given: object, least: int | None = None, most: int | None = None) -> int:
    """``given`` as an int.

    :raises ConfigurationError: it is not a whole number, or not from ``least`` to ``most``.
    """
    number = None
    if not isinstance(given, bool):
        try:
            number = operator.index(given)  # type: ignore[arg-type]  # what has none raises
        except TypeError:
            pass
    if number is None or not _within(number, least, most):
        raise ConfigurationError(f"{what} is {given!r:.60}; it is a whole number{_to(least, most)}")
    return number


def number(
    what: str, given: object, least: float | None = None, most: float | None = None
) -> float:
    """``given`` as a float; infinities pass where the bounds let them.

    :raises ConfigurationError: it is not a number, or not from ``least`` to ``most``.
    """
    if not isinstance(given, bool) and isinstance(given, Real):
        try:
            found = float(given)
        except OverflowError:
            found = math.nan
        if not math.isnan(found) and _within(found, least, most):
            return found
    raise ConfigurationError(f"{what} is {given!r:.60}; it is a number{_to(least, most)}")


def _within(found: float, least: float | None, most: float | None) -> bool:
    return (least is None or found >= least) and (most is None or found <= most)


def _to(least: float | None, most: float | None) -> str:
    return ("" if least is None else f" from {least:,}") + ("" if most is None else f" to {most:,}")
