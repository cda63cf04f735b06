"""The store's own clock, as this process knows it between two looks at it."""

from __future__ import annotations

import time
from collections.abc import Callable

ANCHOR_S = 60.0
"""After so long the clock is read off the store again, at the next write."""


def uptime() -> float:
    """Seconds that only ever grow, and that a suspended machine does not lose."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class StoreClock:
    """What the store stamped last, and what has passed since by a clock that nobody sets.

    So the machines of a study agree on the time to within what a write takes, whatever their own
    clocks say. Until it is anchored it is this machine's.

    :param uptime: seconds that only grow.
    :param wall: seconds since 1970.
    """

    def __init__(
        self, uptime: Callable[[], float] = uptime, wall: Callable[[], float] = time.time
    ) -> None:
        self._uptime = uptime
        self._since = uptime()
        self._offset = wall() - self._since
        self._anchored = False

    def now(self) -> float:
        """Seconds since 1970."""
        return self._uptime() + self._offset

    def anchor(self, stamp_s: float) -> None:
        """The store has just stamped this time on a write."""
        self._since = self._uptime()
        self._offset = stamp_s - self._since
        self._anchored = True

    @property
    def due(self) -> bool:
        """Whether to look at the store's stamp again."""
        return not self._anchored or self._uptime() - self._since > ANCHOR_S


GRAIN_NS = 50_000_000
"""No file system that stamps parts of a millisecond has ticks longer than this: 20 Hz."""

COARSE_GRAIN_NS = 2_100_000_000
"""FAT stamps every 2 s, others every second, and all of them whole milliseconds."""


class Horizon:
    """The latest time on a file system's clock that has certainly passed there.

    It is the latest that was seen on any file, and what has passed here since. Two writes that a
    file system's clock cannot tell apart have the same time; so a file that was read while its
    time may still be stamped may have been replaced since without a sign.
    """

    def __init__(self, uptime: Callable[[], float] = uptime) -> None:
        self._uptime = uptime
        self._since_ns = 0
        self._latest_ns = 0

    def seen(self, latest_ns: int) -> int:
        """A file with this time was seen just now; the horizon, in ns since 1970."""
        now_ns = int(self._uptime() * 1e9)
        horizon_ns = self._latest_ns + now_ns - self._since_ns if self._latest_ns else 0
        if latest_ns >= horizon_ns:
            self._latest_ns, self._since_ns = latest_ns, now_ns
            return latest_ns
        return horizon_ns


def recurs(stamp_ns: int, horizon_ns: int) -> bool:
    """Whether a write that is yet to come may be stamped with this time."""
    grain_ns = GRAIN_NS if stamp_ns % 1_000_000 else COARSE_GRAIN_NS
    return stamp_ns + grain_ns > horizon_ns
