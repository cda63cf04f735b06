"""A heart for a trial: its record is written now and then, however long an epoch is."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from entrepot.errors import StoreError, TrialLost
from entrepot.logs import why_of
from entrepot.study.held import Held, beat

if TYPE_CHECKING:
    from entrepot.store.base import Store

logger = logging.getLogger(__name__)


class Heart:
    """Beats for one trial at a time, in a thread that lives from :meth:`start` to :meth:`stop`.

    :param every_s: seconds between two beats.
    """

    def __init__(self, store: Store, every_s: float) -> None:
        self._store = store
        self._every_s = every_s
        self._over: threading.Event | None = None
        self._thread: threading.Thread | None = None

    def start(self, held: Held) -> None:
        """Beat for this one from now on."""
        self.stop()
        self._over = over = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(held, over), name=f"trial {held.trial} beat", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Beat no more; any number of times."""
        thread, self._thread = self._thread, None
        if self._over is not None:
            self._over.set()
        if thread is not None and thread.is_alive():
            thread.join()

    def _run(self, held: Held, over: threading.Event) -> None:
        seen = held.beat
        while not over.wait(self._every_s):
            if held.beat == seen:  # nothing was reported since
                try:
                    beat(self._store, held)
                except TrialLost:
                    return  # the next report says so where it is heard
                except StoreError as fault:
                    logger.warning(
                        "a trial's beat is not written: %s",
                        why_of(fault),
                        extra={"why": str(fault)},
                    )
            seen = held.beat
