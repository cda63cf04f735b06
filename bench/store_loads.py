"""A process that claims and finishes as fast as it can, driven: ``python -m bench.store_loads``."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from entrepot.store import EMPTY, Store
from entrepot.store.record import Record, pack_record
from tests.peer.lines import commands, serve

RUNNING = {"state": "running", "point": "lr=0.001,dim=32,opt=adam", "who": "bench", "goal": "min"}
DONE = {**RUNNING, "state": "done", "score": "0.123456789", "tail": "1:0.5 2:0.3 4:0.2 8:0.15"}


class Driven:
    """The commands. ``me`` is a number that no other process has."""

    def open(self, url: str, me: int, durable: bool = True) -> None:
        self._me, self._numbers = me, itertools.count(me * 1_000_000)
        self._store = Store.open(url, durable=durable)

    def pairs(self, seconds: float) -> float:
        """Trials claimed and finished, a second."""

        def pair(number: int) -> None:
            assert self._store.claim(f"bench/trial/{number}/0", EMPTY, RUNNING)
            self._store.bind(f"bench/trial/{number}/0", EMPTY, DONE)

        return self._rate(pair, seconds)

    def claims(self, seconds: float) -> float:
        """Trials claimed, a second."""

        def claim(number: int) -> None:
            assert self._store.claim(f"bench/trial/{number}/0", EMPTY, RUNNING)

        return self._rate(claim, seconds)

    def bare_pairs(self, folder: str, seconds: float) -> float:
        """What a pair asks of the file system at the least, on one directory a process; a second.

        To claim: write, fsync, link, fsync of the directory. To finish: write, fsync, rename, fsync
        of the directory.
        """
        own = Path(folder, f"bare-{self._me}")
        own.mkdir()
        directory = os.open(own, os.O_RDONLY)
        claimed, finished = (_packed(meta) for meta in (RUNNING, DONE))

        def pair(number: int) -> None:
            name, temporary = f"{own}/{number}.0.json", f"{own}/tmp-{number}"
            _write(temporary, claimed)
            os.link(temporary, name)
            os.fsync(directory)
            os.unlink(temporary)  # noqa: PTH108  # bare calls
            _write(temporary, finished)
            os.rename(temporary, name)  # noqa: PTH104
            os.fsync(directory)

        try:
            return self._rate(pair, seconds)
        finally:
            os.close(directory)

    def bare_puts(self, endpoint: str, bucket: str, seconds: float) -> float:
        """Plain PUTs of a record through obstore, to a key of its own each; a second."""
        import obstore
        from obstore.store import S3Store

        store = S3Store(
            bucket,
            config={"endpoint": endpoint, "region": "us-east-1"},
            client_options={"allow_http": True},
        )
        data = _packed(RUNNING)

        def put(number: int) -> None:
            obstore.put(store, f"bare/{self._me}/{number}.0.json", data)

        return self._rate(put, seconds)

    def _rate(self, act: Callable[[int], None], seconds: float) -> float:
        done, began = 0, time.monotonic()
        while (spent := time.monotonic() - began) < seconds:
            act(next(self._numbers))
            done += 1
        return done / spent

    def load(self, url: str, prefix: str) -> dict[str, Any]:
        """Seconds to load what there is for the first time, every record decoded."""
        began = time.monotonic()
        with Store.open(url, read_only=True) as store:
            changes = store.changes(prefix)
            records = len(changes.records) + sum(len(each.records()) for each in changes.closed)
        return {"seconds": time.monotonic() - began, "records": records}

    def close(self) -> None:
        if hasattr(self, "_store"):
            self._store.close()


def _packed(meta: dict[str, str]) -> bytes:
    return pack_record(Record("bench/trial/7/0", EMPTY, meta, 1.5, "bench:1", "0" * 32))


def _write(path: str, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        os.write(descriptor, data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


if __name__ == "__main__":
    serve(commands(Driven()))
