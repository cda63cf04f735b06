"""A process that claims, driven: ``python -m tests.stores.racer`` is one machine of many."""

from __future__ import annotations

import os
import time
from typing import Any

from entrepot.errors import MissingBlob
from entrepot.store import Store
from tests.peer.lines import commands, serve


class Driven:
    """The commands."""

    def open(self, url: str, **options: Any) -> None:
        self._store = Store.open(url, **options)

    def race(self, names: list[str]) -> list[str]:
        """Claim every name; those that were won."""
        mine = {"pid": str(os.getpid())}
        return [name for name in names if self._store.claim(name, meta=mine)]

    def claims(self, start: str, seconds: float) -> float:
        """Claim names that nobody else has, ``<start>/0`` and so on; claims a second."""
        number, began = 0, time.monotonic()
        while (spent := time.monotonic() - began) < seconds:
            assert self._store.claim(f"{start}/trial/{number}/0")
            number += 1
        return number / spent

    def keep_putting(self, seconds: float, blobs: int, pause_s: float, grace_s: float) -> int:
        """Put the same blobs again and again, and get each one back at once; how many times.

        :param grace_s: gc's: it may have taken what a busy machine has got back only after it.
        """
        puts, until = 0, time.monotonic() + seconds
        while time.monotonic() < until:
            for number in range(blobs):
                data, began = f"blob {number}".encode(), time.monotonic()
                try:
                    assert self._store.get(self._store.put(data)) == data
                except MissingBlob:
                    if time.monotonic() - began < grace_s:
                        raise
                puts += 1
            time.sleep(pause_s)
        return puts

    def close(self) -> None:
        self._store.close()


if __name__ == "__main__":
    serve(commands(Driven()))
