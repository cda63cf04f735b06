"""Rules whose every duration is shorter, so that a test need not wait for the real ones.

A duration is what has a unit (``for: 10m``, ``[5m]``, ``offset 10m``), and a number that a metric
in seconds is compared with (``entrepot_order_oldest_age_seconds > 120``). All are divided alike;
nothing else is touched. That the real ones are right is what promtool's rules-test.yml says.
"""

from __future__ import annotations

import re

SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

_WITH_UNIT = re.compile(r"(for: |\[|offset )(\d+)(ms|s|m|h|d)\b")
_OF_METRIC = re.compile(r"(\w+_seconds(?:\{[^}]*\})? [<>]=? )(\d+)\b")


def shortened(rules: str, factor: float) -> str:
    """The text of a rules file, with its durations divided by ``factor``."""

    def with_unit(found: re.Match[str]) -> str:
        before, number, unit = found.groups()
        return f"{before}{round(1000 * int(number) * SECONDS[unit] / factor)}ms"

    def of_metric(found: re.Match[str]) -> str:
        return f"{found[1]}{int(found[2]) / factor:g}"

    return _OF_METRIC.sub(of_metric, _WITH_UNIT.sub(with_unit, rules))
