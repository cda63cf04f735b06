"""Removing blobs from a bucket while others put the same ones.

A bucket has no deletion that depends on an object's age, so gc and writers tell each other. Who
removes a blob first puts ``tmp/gc-<hex>``, and looks at the blob once more after that; who writes a
blob that may have been there looks for that object afterwards. Whatever the order, one of them sees
the other: either gc finds the blob young again, or the writer finds the tomb, waits until it is
gone, and puts the blob again if it went with it. A blob that was not there when it was put costs
its writer nothing: what gc is about to remove is there.

A tomb stays when gc was killed, or does not know whether its deletion was carried out. Writers wait
for a tomb only as long as a living gc needs, and a later gc takes it away.
"""

from __future__ import annotations

import time

from entrepot.errors import StoreError
from entrepot.store import layout
from entrepot.store.clock import uptime
from entrepot.store.cursor import Tag
from entrepot.store.proof import PROBE
from entrepot.store.requests import Requests, tag_of

TOMB = f"{layout.TMP}/gc-"
CLOCK = f"{layout.TMP}/clock-"

LEFT_S = 3600.0
"""Age, in seconds, of a tomb that nobody stands at any more."""

POLL_S = 0.05


def tomb_of(key: str) -> str:
    """The key of a blob's tomb."""
    return TOMB + key.rpartition("/")[2]


class Tombs:
    """The tombs of one bucket."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests

    def none_for(self, key: str) -> bool:
        """Whether the blob, which was written just now, is there and stays."""
        requests, tomb, doing = self._requests, tomb_of(key), f"put {key}"
        until = uptime() + self._patience_s
        while requests.head(tomb, doing) is not None and uptime() < until:
            time.sleep(POLL_S)
        return requests.head(key, doing) is not None

    def remove(self, key: str, tag: Tag) -> bool:
        """See :meth:`entrepot.store.primitives.Primitives._remove_blob`."""
        requests, tomb, doing = self._requests, tomb_of(key), f"remove {key}"
        if not requests.create(tomb, b"", doing):
            return False  # another gc stands there
        began, unsure = uptime(), False
        try:
            there = requests.head(key, doing)
            if there is None:
                return True
            if tag_of(there) != tag or uptime() - began > self._patience_s / 2:
                return False
            unsure = True
            requests.drop(key, doing)
            unsure = False
            return True
        finally:
            if not unsure:
                self._take_away(tomb)

    def sweep(self, now: float) -> None:
        """Take away the tombs, and the probes of openings, that nobody can be waiting at."""
        for key, meta in list(self._requests.below(layout.TMP)):
            left = meta["last_modified"].timestamp() < now - LEFT_S
            if left and key.startswith((TOMB, PROBE)):
                self._take_away(key)

    def _take_away(self, key: str) -> None:
        try:
            self._requests.drop(key, f"remove {key}")
        except StoreError:  # the next gc takes it
            pass

    @property
    def _patience_s(self) -> float:
        return 4 * self._requests.settings.timeout_s
