"""The market as the sidecar sees it: the broker's figures, asked for again and again."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from entrepot.errors import EntrepotError
from entrepot.logs import in_a_line
from entrepot.sidecar.recent import Recent

log = logging.getLogger(__name__)


class Asked(Protocol):
    """What is asked: a client of the broker."""

    def stats(self, timeout_s: float | None = None) -> dict[str, Any]: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class MarketSeen:
    """What the broker last said.

    :ivar up: whether it answered the last time that it was asked.
    :ivar stats: its last answer; empty before the first.
    :ivar at: when that was, in seconds since 1970.
    :ivar why: why it did not answer, in words.
    """

    up: bool = False
    stats: dict[str, Any] = field(default_factory=dict)
    at: float = 0.0
    why: str = "it has not been asked yet"


class MarketWatch:
    """Asks a broker for its figures in a thread of its own, and keeps the last answer.

    Nobody who looks waits for the broker. One that is not there is asked again, for ever.

    :param make: connects, and raises EntrepotError if nobody answers.
    :param every_s: seconds between two questions.
    :param timeout_s: seconds to wait for an answer.
    :param keep_s: seconds of the past that are kept.
    """

    def __init__(
        self,
        make: Callable[[], Asked],
        *,
        every_s: float,
        timeout_s: float,
        keep_s: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.seen = MarketSeen()
        self.recent = Recent(keep_s, every_s)
        self._make = make
        self._every_s = every_s
        self._timeout_s = timeout_s
        self._clock = clock
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="entrepot-market", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends within the time-out of one question."""
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        client: Asked | None = None
        try:
            while True:
                try:
                    if client is None:
                        client = self._make()
                    self._note(client.stats(self._timeout_s))
                except EntrepotError as fault:
                    self._lost(str(fault))
                if self._over.wait(self._every_s):
                    return
        finally:
            if client is not None:
                client.close()

    def _note(self, stats: dict[str, Any]) -> None:
        now = self._clock()
        self.recent.note(now, stats)
        if not self.seen.up:
            log.info("the broker answers")
        self.seen = MarketSeen(True, stats, now, "")

    def _lost(self, why: str) -> None:
        if self.seen.up or self.seen.why != why:
            log.warning("the broker does not answer: %s", in_a_line(why), extra={"why": why})
        self.seen = MarketSeen(False, self.seen.stats, self.seen.at, why)
