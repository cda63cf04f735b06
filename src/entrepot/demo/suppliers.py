"""What the demonstration's suppliers serve. Each function is all that a supplier has to be.

A product by name: whoever orders it gets the supplier's next batch. ::

    entrepot supplier --serve entrepot.demo.suppliers:clean --product sms/clean

A family by pattern: the name says which batch, any supplier makes the same one, and a client that
orders each once consumes exactly an epoch. ::

    entrepot supplier --serve entrepot.demo.suppliers:tokens --product 'sms/tokens/batch-\\d+'

The same, for many orders in one call. ::

    entrepot supplier --serve entrepot.demo.suppliers:tokens_of_many --batch 8 \\
        --product 'sms/tokens/batch-\\d+'
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING

from entrepot.contract import Contract
from entrepot.demo import sms, text
from entrepot.tensors import TensorSpec

if TYPE_CHECKING:
    from entrepot.market.work import Work

CLEAN_PRODUCT = "sms/clean"
TOKENS_PRODUCT = "sms/tokens/batch-{}"
TOKENS_PATTERN = r"sms/tokens/batch-\d+"

_ROWS = (
    TensorSpec("index", (text.BATCH,), "int32"),
    TensorSpec("spam", (text.BATCH,), "uint8"),
    TensorSpec("length", (text.BATCH,), "int32"),
)

CLEAN = Contract([*_ROWS, TensorSpec("text", (text.BATCH, text.TEXT_NBYTES), "uint8")])
"""A batch of cleaned texts."""

TOKENS = Contract([*_ROWS, TensorSpec("tokens", (text.BATCH, text.TOKENS), "int32")])
"""A batch of token ids."""


@cache
def epoch() -> text.Epoch:
    """The messages, loaded once."""
    return text.Epoch(sms.load())


@cache
def _turns() -> Iterator[int]:
    """Which batch is next, epoch after epoch."""
    return itertools.cycle(range(len(epoch())))


def clean(_name: str) -> bytearray:
    """The next batch of cleaned texts, whoever asks."""
    return CLEAN.encode(**epoch().clean_batch(next(_turns())))


def tokens(name: str) -> bytearray:
    """The batch of token ids that the name asks for."""
    number = int(name.rpartition("-")[2])
    return TOKENS.encode(**epoch().token_batch(number))


def tokens_of_many(works: list[Work]) -> list[bytearray]:
    """The batches of token ids that the orders' names ask for, one for each."""
    return [tokens(work.product_id) for work in works]
