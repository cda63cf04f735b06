"""A descriptor that may be written to whatever happens to it meanwhile."""

from __future__ import annotations

import gc
import os
import select
import threading

import pytest

from entrepot.market.turns import Turns
from entrepot.market.wake import Wake


def readable(fd: int) -> bool:
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(0))


def test_what_was_set_is_seen_once() -> None:
    wake = Wake()
    assert not readable(wake.fd)
    wake.set()
    wake.set()
    assert readable(wake.fd)
    wake.clear()
    wake.clear()
    assert not readable(wake.fd)


def test_it_is_closed_with_its_last_reference() -> None:
    wake = Wake()
    fd, other = wake.fd, wake
    del wake
    os.fstat(fd)
    del other
    gc.collect()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_poking_beside_a_close_never_meets_a_closed_descriptor() -> None:
    """Its number may be another file's by then."""
    faults: list[BaseException] = []
    for _ in range(300):
        turns = Turns()
        turns.open()

        def poke(turns: Turns = turns) -> None:
            try:
                for _ in range(50):
                    turns.poke()
            except BaseException as fault:
                faults.append(fault)

        threads = [threading.Thread(target=poke) for _ in range(3)]
        for thread in threads:
            thread.start()
        turns.close()
        for thread in threads:
            thread.join()
    assert faults == []
    assert Turns().wake_fd == -1
