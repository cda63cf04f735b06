"""Memory that is used again is nobody's any more."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from entrepot.mediums.spare import KEPT, LEAST_NBYTES, MOST_NBYTES, Spare, own
from tests.unit.mediums.places import place


def test_memory_is_used_again_once_nobody_has_a_window_on_it() -> None:
    spare = Spare()
    first = spare.take(LEAST_NBYTES)
    block = place(first)
    second = spare.take(LEAST_NBYTES)
    assert place(second) != block
    part = first[5:6].toreadonly()
    del first
    third = spare.take(LEAST_NBYTES)
    assert place(third) not in (block, place(second))
    del part
    assert place(spare.take(LEAST_NBYTES)) == block


@pytest.mark.parametrize(
    "made",
    [
        lambda window: np.frombuffer(window, np.float32),
        lambda window: np.ndarray((4, LEAST_NBYTES // 16), np.float32, window),
        lambda window: np.ndarray((4, LEAST_NBYTES // 16), np.float32, own(window))[1:, ::2],
        lambda window: memoryview(window)[8:16],
        own,
    ],
    ids=["frombuffer", "ndarray", "a view of one", "a slice", "a window to keep"],
)
def test_memory_that_something_was_made_over_is_not_used_again(
    made: Callable[[memoryview], Any],
) -> None:
    spare = Spare()
    window = spare.take(LEAST_NBYTES)
    window[:] = b"a" * LEAST_NBYTES
    array = made(window)
    before = bytes(array)
    try:
        window.release()  # as a supplier does when an order is over
    except BufferError:
        pass
    del window
    others = [spare.take(LEAST_NBYTES) for _ in range(2 * KEPT)]
    for other in others:
        other[:] = b"z" * LEAST_NBYTES
    assert bytes(array) == before


def test_few_blocks_are_kept_and_none_of_another_size() -> None:
    spare = Spare()
    sizes = [LEAST_NBYTES + n for n in range(3 * KEPT)]
    windows = [spare.take(nbytes) for nbytes in sizes]
    assert [len(window) for window in windows] == sizes
    windows.clear()
    assert len(spare._free) == KEPT
    for nbytes in (0, 1, LEAST_NBYTES - 1, MOST_NBYTES + 1):
        assert len(spare.take(nbytes)) == nbytes
    assert len(spare._free) == KEPT


def test_only_what_is_all_of_its_memory_may_be_kept() -> None:
    window = Spare().take(LEAST_NBYTES)
    kept = own(window)
    assert kept is not None
    assert place(kept) == place(window)
    assert own(window[1:]) is None
    assert own(memoryview(bytes(5))) is None


def test_threads_never_share_memory() -> None:
    spare = Spare()
    wrong: list[int] = []

    def use(number: int) -> None:
        for _ in range(300):
            window = spare.take(LEAST_NBYTES)
            window[:] = bytes([number]) * LEAST_NBYTES
            if window != bytes([number]) * LEAST_NBYTES:
                wrong.append(number)
            window.release()

    threads = [threading.Thread(target=use, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
