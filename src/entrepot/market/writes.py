"""Writes of a supplier that are under way, and what is said of each when it has arrived, or not."""

from __future__ import annotations

import threading
from collections.abc import Callable

from entrepot.errors.root import sentence_of
from entrepot.logs import Traces
from entrepot.market.function import Written
from entrepot.market.protocol import ERROR_CHARS, Fault, Result, WorkItem
from entrepot.mediums import Post, Receipt


class Writes:
    """What was made, and is on its way to its clients.

    :ivar gathered: writes that wait to be pushed together, about.
    :ivar gathered_since: when the first of them was made, on the clock.
    :ivar traces: of what functions raised.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.gathered = 0
        self.gathered_since = 0.0
        self._clock = clock
        self._lock = threading.Lock()
        self._under_way: list[tuple[WorkItem, Result, Receipt]] = []
        self._posts: list[Post] = []
        self.traces = Traces("entrepot.market.", "entrepot.mediums.")
        self._raised: dict[int, tuple[WorkItem, BaseException]] = {}

    def _result(self, item: WorkItem, written: Written) -> Result | None:
        """What is said of it, if it is known to have arrived."""
        nbytes, checksum, receipt = written
        result = Result(item.order_id, item.lease, True, nbytes, checksum)
        if receipt is None:
            return result
        if not self.gathered:
            self.gathered_since = self._clock()
        self.gathered += 1
        with self._lock:
            self._under_way.append((item, result, receipt))
            if receipt.post not in self._posts:
                self._posts.append(receipt.post)
        return None

    @property
    def under_way(self) -> bool:
        """Whether there are results to come of what was made."""
        return bool(self._under_way)

    @property
    def clients(self) -> int:
        """Clients to which something is under way."""
        return len(self._posts)

    def push(self) -> bool:
        """Have the writes that were gathered leave; whether others had left before.

        Waits for the clients to take them.
        """
        earlier = len(self._under_way) > self.gathered
        self.gathered = 0
        for post in list(self._posts):
            post.push()
        return earlier

    def settled(self) -> list[Result]:
        """Results that are known by now. Does not wait, and may be called from any thread."""
        for post in list(self._posts):
            post.look()
        return self._over()

    def wait(self) -> list[Result]:
        """Wait for some results, and have these."""
        self.gathered = 0
        for post in list(self._posts):
            if post.under_way:
                post.wait()
                break
        return self._over()

    def wait_for_last(self) -> list[Result]:
        """Wait for the result of what was made last, and have all that are known."""
        self.gathered = 0
        with self._lock:
            last = self._under_way[-1][2] if self._under_way else None
        while last is not None and not last.done:
            last.post.wait()
        return self._over()

    def descriptors(self) -> list[int]:
        """What can be read when there are more results."""
        return [fd for post in list(self._posts) if (fd := post.fileno()) >= 0]

    def _over(self) -> list[Result]:
        with self._lock:
            under_way = self._under_way
            over = [one for one in under_way if one[2].done]
            if len(over) == len(under_way):
                under_way.clear()
                self._posts.clear()
            elif over:
                self._under_way = [one for one in under_way if not one[2].done]
        return [
            result if receipt.error is None else self.failure(item, receipt.error)
            for item, result, receipt in over
        ]

    def failure(self, item: WorkItem, error: BaseException) -> Result:
        """The result that says that ``error`` was raised, which is kept for :meth:`raised`."""
        self._raised[item.lease] = item, error
        return failure(item, error)

    def raised(self, lease: int) -> tuple[WorkItem, BaseException] | None:
        """What failed under this lease, and of what: once."""
        return self._raised.pop(lease, None)


def failure(item: WorkItem, error: BaseException) -> Result:
    """The result that says that ``error`` was raised; texts are cut to what a broker takes."""
    fault = Fault(_text(type(error).__name__), _text(sentence_of(error)))
    return Result(item.order_id, item.lease, False, error=fault)


def _text(text: str) -> str:
    return text[:ERROR_CHARS].encode("utf-8", "replace").decode()
