"""A supplier's function for tests, ours and the peer's: what it does is told by patterns."""

from __future__ import annotations

import os
import re
import signal
import threading
import time

from tests.peer.payload import payload


class Generator:
    """Makes ``payload(product_id, name, nbytes)``, but for products that match a pattern.

    :param fail: raises a ValueError.
    :param hold: waits until ``release`` is called.
    :param die: ends its process with SIGKILL.
    :param slow: sleeps ``slow_s`` before it answers.
    """

    def __init__(
        self,
        name: str = "",
        nbytes: int = 64,
        fail: str = "",
        hold: str = "",
        die: str = "",
        slow: str = "",
        slow_s: float = 0.0,
    ) -> None:
        self.name = name
        self.nbytes = nbytes
        self.slow_s = slow_s
        self._patterns = {"fail": fail, "hold": hold, "die": die, "slow": slow}
        self._released = threading.Event()
        self._calls: list[str] = []
        self._cached: dict[str, bytes] = {}

    def __call__(self, product_id: str) -> bytes:
        self._calls.append(product_id)
        if self._is("die", product_id):
            os.kill(os.getpid(), signal.SIGKILL)
        if self._is("slow", product_id):
            time.sleep(self.slow_s)
        if self._is("hold", product_id):
            self._released.wait()
        if self._is("fail", product_id):
            raise ValueError(f"{self.name} does not make {product_id}")
        if product_id not in self._cached:
            self._cached = {product_id: payload(product_id, self.name, self.nbytes)}
        return self._cached[product_id]

    def release(self) -> None:
        """Let go of what is held, and hold nothing from now on."""
        self._released.set()

    def calls(self) -> list[str]:
        """The products that were asked for so far, each as its call began."""
        return list(self._calls)

    def _is(self, what: str, product_id: str) -> bool:
        pattern = self._patterns[what]
        return bool(pattern) and re.fullmatch(pattern, product_id) is not None
