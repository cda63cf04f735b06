"""The last minutes of a few figures, for the page. Pure, and bounded."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Sample:
    """What was seen at one moment.

    :ivar at: seconds since 1970.
    :ivar queued: orders that wait.
    :ivar in_flight: orders that a supplier has.
    :ivar fulfilled: orders fulfilled since the broker began.
    """

    at: float
    queued: int
    in_flight: int
    fulfilled: int


class Recent:
    """Samples of the last ``keep_s`` seconds, at most one each ``every_s``."""

    def __init__(self, keep_s: float, every_s: float) -> None:
        self._keep_s = keep_s
        self._every_s = every_s
        self._samples: deque[Sample] = deque(maxlen=max(2, int(keep_s / every_s) + 1))

    def note(self, at: float, stats: Mapping[str, Any]) -> None:
        """Take note of the broker's figures as they were ``at``."""
        orders = stats["orders"]
        last = self._samples[-1] if self._samples else None
        if last is not None and at < last.at:
            self._samples.clear()  # the clock was set: what was before is nowhere on the axis
        elif last is not None and at < last.at + self._every_s / 2:
            self._samples.pop()
        self._samples.append(Sample(at, orders["queued"], orders["in_flight"], orders["fulfilled"]))

    def samples(self, now: float) -> list[Sample]:
        """Those that are recent, the oldest first."""
        return [each for each in list(self._samples) if each.at > now - self._keep_s]

    def per_s(self, now: float, over_s: float = 30.0) -> float:
        """Orders fulfilled a second, over the last ``over_s`` seconds."""
        seen = [each for each in self.samples(now) if each.at > now - over_s]
        if len(seen) < 2 or seen[-1].at <= seen[0].at:
            return 0.0
        # A broker that was started anew counts from 0.
        return max(0, seen[-1].fulfilled - seen[0].fulfilled) / (seen[-1].at - seen[0].at)
