"""Memory that is used again is nobody's any more."""

from __future__ import annotations

import gc
import threading
from typing import Any

import numpy as np
import torch

from entrepot.mediums.spare import KEPT, LEAST_NBYTES
from entrepot.stages.recycling import Recycling
from entrepot.stages.torch.tensors import tensor_of
from entrepot.stages.values import Bits, owned

MANY = LEAST_NBYTES // 4


def place(array: Any) -> int:
    where: int = array.ctypes.data
    return where


def test_memory_comes_back_and_is_used_again() -> None:
    recycling = Recycling()
    source = np.arange(MANY, dtype=np.float32)
    first = recycling.copy(source)
    where = place(first)
    second = recycling.copy(source)
    assert place(second) != where
    del first
    third = recycling.copy(source[::-1])
    assert place(third) == where
    np.testing.assert_array_equal(third, source[::-1])
    np.testing.assert_array_equal(second, source)


def test_what_was_made_of_it_keeps_it() -> None:
    """A tensor, a view of a tensor, a window of numpy's, and bits of another dtype."""
    recycling = Recycling()
    source = np.arange(MANY, dtype=np.float32)
    made: list[Any] = [
        torch.from_numpy(recycling.copy(source)),
        torch.from_numpy(recycling.copy(source)).view(2, -1)[1, 3:],
        torch.from_numpy(recycling.copy(source)).requires_grad_(True).detach().t(),
        recycling.copy(source).reshape(4, -1)[1:],
        torch.from_numpy(recycling.copy(source)).numpy()[5:],
        tensor_of(owned(Bits(source.view(np.uint16), "bfloat16"), recycling.copy))[9:],
    ]
    before = [np.array(_elements(each)) for each in made]
    gc.collect()
    others = [recycling.copy(np.full(MANY, -1, np.float32)) for _ in range(10)]
    for each, was in zip(made, before, strict=True):
        np.testing.assert_array_equal(_elements(each), was)
    del others


def _elements(made: Any) -> Any:
    if isinstance(made, torch.Tensor):
        return made.float().numpy() if made.dtype == torch.bfloat16 else made.numpy()
    return made


def test_a_block_comes_back_when_nothing_is_made_over_it_any_more() -> None:
    recycling = Recycling()
    block = recycling.take(LEAST_NBYTES)
    block[:8] = bytes(range(8))
    array = np.ndarray(4, np.int16, block[:8])
    where = place(np.frombuffer(block, np.uint8))
    del block
    gc.collect()
    other = recycling.take(LEAST_NBYTES)
    other[:] = b"x" * LEAST_NBYTES
    assert array.tobytes() == bytes(range(8))
    del array
    assert place(np.frombuffer(recycling.take(LEAST_NBYTES), np.uint8)) == where
    assert recycling.take(3) == bytes(3)


def test_little_is_kept() -> None:
    recycling = Recycling()
    several = [recycling.copy(np.zeros(MANY + n, np.float32)) for n in range(3 * KEPT)]
    several.clear()
    assert len(recycling._free) == KEPT
    assert recycling.copy(np.zeros(3, np.float32)).tolist() == [0, 0, 0]
    assert len(recycling._free) == KEPT


def test_threads_never_share_memory() -> None:
    recycling = Recycling()
    wrong: list[int] = []

    def use(number: int) -> None:
        source = np.full(MANY, number, np.float32)
        for _ in range(200):
            made = recycling.copy(source)
            if not (made == number).all():
                wrong.append(number)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
