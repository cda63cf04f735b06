"""A tally notices every way in which an epoch can be wrong."""

from __future__ import annotations

import numpy as np
import pytest

from entrepot.demo.sms import Message
from entrepot.demo.tally import Tally
from entrepot.demo.text import BATCH, Epoch
from entrepot.errors import DemoFailed

MESSAGES = [Message(n % 3 == 0, f"message {chr(97 + n)} of some") for n in range(2 * BATCH + 3)]
EPOCH = Epoch(MESSAGES)


@pytest.fixture
def tally() -> Tally:
    return Tally("p", len(EPOCH), EPOCH.token_batch)


def test_a_whole_epoch_in_any_order_is_right(tally: Tally) -> None:
    for number in (2, 0, 1):
        assert tally.take(EPOCH.token_batch(number), number) == number
    tally.close(len(MESSAGES))
    assert tally.messages == len(MESSAGES)
    assert tally.checksum() == tally.expected_checksum()


def test_a_batch_that_comes_twice(tally: Tally) -> None:
    tally.take(EPOCH.token_batch(1))
    with pytest.raises(DemoFailed, match="batch 1 came twice"):
        tally.take(EPOCH.token_batch(1))


def test_another_batch_than_was_ordered(tally: Tally) -> None:
    with pytest.raises(DemoFailed, match="batch 1 came for batch 0"):
        tally.take(EPOCH.token_batch(1), 0)


def test_a_batch_of_another_product(tally: Tally) -> None:
    with pytest.raises(DemoFailed, match=r"batch 1 has \['index', 'length', 'spam', 'text'\]"):
        tally.take(EPOCH.clean_batch(1))


@pytest.mark.parametrize("name", ["index", "tokens", "length", "spam"])
def test_one_changed_value(tally: Tally, name: str) -> None:
    batch = EPOCH.token_batch(0)
    batch[name].reshape(-1)[-1] += 1
    with pytest.raises(DemoFailed, match=f"'{name}' of batch 0"):
        tally.take(batch)


@pytest.mark.parametrize("first", [-1, 1, 3 * BATCH])
def test_messages_that_start_no_batch(tally: Tally, first: int) -> None:
    batch = EPOCH.token_batch(0)
    batch["index"] = np.arange(first, first + BATCH, dtype=np.int32)
    with pytest.raises(DemoFailed, match=f"starts with message {first}"):
        tally.take(batch)


def test_a_batch_that_never_came(tally: Tally) -> None:
    tally.take(EPOCH.token_batch(0))
    assert tally.missing() == [1, 2]
    with pytest.raises(DemoFailed, match="2 batches never came, first 1"):
        tally.close(len(MESSAGES))


def test_checksums_depend_on_every_byte_and_on_the_order() -> None:
    def of(*numbers: int) -> str:
        tally = Tally("p", len(EPOCH), lambda n: EPOCH.token_batch(numbers[n]))
        return tally.expected_checksum()

    assert len({of(0, 1, 2), of(1, 0, 2), of(0, 1, 1)}) == 3
