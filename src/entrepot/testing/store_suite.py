"""What the suites of a store have in common: how one is made, and what they wait for."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from entrepot.store import Cursor, Store

PROCESS_TIMEOUT_S = 60.0
"""How long a child process, or a thread, of the suite may take."""

ODD_NAMES = (
    "a",
    "A",
    ".",
    "..",
    "../../escaped",
    "/",
    "//",
    "/absolute",
    "ends/",
    "a//b",
    "a/./b",
    "a/../b",
    ".hidden",
    "two words",
    " ",
    "tab\tand\nline",
    "nul\0",
    "año",
    "an\u0303o",
    "🚀/🌍",
    "%",
    "%2E",
    "%%",
    "a%2Fb",
    "a+b=c&d?e#f",
    "back\\slash",
    "c:colon*star|bar",
    "store.json",
    "names",
    "blobs/ab",
    "a.json",
    "a.json/b",
    "a.json.json",
    "A.JSON/b",
    "spam/trial/7/0",
    "spam/trial/7/0/0",
    "spam/trial/07/0",
    "spam/trial/-1/0",
    "spam/trial/000000/7.0",
    "spam/trial/%30",
    "spam/trial/12345678901234567890/0",
    "spam/trial/999/0",
    "spam/trial/1000/0",
    "spam/trial/1000/12",
    "deep/er/trial/3/1",
    "x/trial/1/trial/2/3",
    "trial/7/0",
    "/trial/7/0",
    "spam/segment/000000",
    "a" * 255,
    "b" * 800,
    "ñ" * 800,
    "🚀" * 800,
    "c" * 99 + "/" + "cccccccccc/" * 60,
    "d" * 300 + "/trial/7/0",
    "d" * 300 + "/trial/7/1",
    "eeeeeeeeeeeeeeeeeeeeeeee/" * 18 + "trial/7/0",
)
"""Every one of them is a name, and no two of them are the same."""


class StoreSuite:
    """How a suite gets its stores; give the first three."""

    forks = True
    """Whether a forked child has the same store."""

    def make(self) -> Store:
        """A new store with nothing in it."""
        raise NotImplementedError("give the suite a store to test")

    def again(self, store: Store, *, read_only: bool = False) -> Store:
        """The same store, opened once more, as another machine would."""
        raise NotImplementedError("give the suite a second look at its store")

    def plant(self, store: Store, key: str, data: bytes) -> None:
        """Have these bytes at the key, as a crash or another program might leave them."""
        raise NotImplementedError("give the suite a way past the rules")

    @contextmanager
    def store(self) -> Iterator[Store]:
        store = self.make()
        try:
            yield store
        finally:
            store.close()

    @contextmanager
    def two(self, *, read_only: bool = False) -> Iterator[tuple[Store, Store]]:
        """One store, opened twice."""
        with self.store() as store:
            other = self.again(store, read_only=read_only)
            try:
                yield store, other
            finally:
                other.close()

    # --- helpers ------------------------------------------------------------------------

    @staticmethod
    def _new(store: Store, cursor: Cursor | None) -> tuple[set[str], Cursor]:
        """The names that are new below ``spam/trial/``, of which none is told of twice."""
        changes = store.changes("spam/trial/", cursor)
        names = [each.name for each in changes.records]
        assert len(names) == len(set(names))
        assert changes.closed == []
        return set(names), changes.cursor

    @staticmethod
    def _until(what: Callable[[], bool]) -> None:
        end = time.monotonic() + PROCESS_TIMEOUT_S
        while not what():
            assert time.monotonic() < end, "what was waited for did not happen"
            time.sleep(0.01)

    def _wait_for_age(self, store: Store, age_s: float) -> None:
        """Until what was put before is as old as that by the store's clock, or older."""
        now = store.now()
        # A store may stamp whole seconds.
        self._until(lambda: store.now() > now + age_s + 1e-3)

    @staticmethod
    def _all_threads(work: Callable[[int], None], count: int) -> None:
        failed: list[BaseException] = []

        def run(me: int) -> None:
            try:
                work(me)
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=run, args=(me,)) for me in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PROCESS_TIMEOUT_S)
            assert not thread.is_alive(), "a thread of the suite does not end"
        if failed:
            raise failed[0]

    @staticmethod
    def _exit_code(child: int) -> int:
        end = time.monotonic() + PROCESS_TIMEOUT_S
        while True:
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            if time.monotonic() > end:
                os.kill(child, 9)
                os.waitpid(child, 0)
                raise AssertionError("a forked child hangs")
            time.sleep(0.005)
