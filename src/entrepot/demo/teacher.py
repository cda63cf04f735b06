"""The demonstration's teacher: what it thinks of each message, as products.

It weighs words as naive Bayes does, from messages of which it knows whether they are spam. ::

    entrepot supplier --serve entrepot.demo.teacher:teach --product 'sms/taught/\\d+'
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from entrepot.contract import Contract
from entrepot.demo import suppliers, text
from entrepot.tensors import TensorSpec

PRODUCTS = "sms/taught/{index}"
PATTERN = r"sms/taught/\d+"

TAUGHT = Contract(
    [
        TensorSpec("index", (text.BATCH,), "int32"),
        TensorSpec("tokens", (text.BATCH, text.TOKENS), "int32"),
        TensorSpec("odds", (text.BATCH,), "float32"),
    ]
)
"""A batch of messages, and for each the logarithm of its odds to be spam. Nothing says whether it
is."""

Floats = NDArray[np.float64]


class Teacher:
    """A network of one layer, whose weights are counted and not learned."""

    def __init__(self, epoch: text.Epoch) -> None:
        counts = np.ones((2, text.VOCABULARY))
        members = np.zeros(2)
        for number in range(len(epoch)):
            batch = epoch.token_batch(number)
            for kind in (0, 1):
                rows = (batch["index"] >= 0) & (batch["spam"] == kind)
                np.add.at(counts[kind], batch["tokens"][rows], 1)
                members[kind] += rows.sum()
        counts[:, text.PAD] = 1
        ham, spam = np.log(counts / counts.sum(axis=1, keepdims=True))
        self._weights: Floats = spam - ham
        self._weights[text.PAD] = 0.0
        self._bias = float(np.log(members[1] / members[0]))

    def odds(self, tokens: NDArray[np.int32]) -> NDArray[np.float32]:
        """What it thinks of each row."""
        found: NDArray[np.float32] = (self._weights[tokens].sum(axis=1) + self._bias).astype(
            np.float32
        )
        return found


@cache
def teacher() -> Teacher:
    """The one there is."""
    return Teacher(suppliers.epoch())


def taught(number: int) -> dict[str, NDArray[Any]]:
    """Batch ``number``, and what the teacher thinks of it."""
    batch = suppliers.epoch().token_batch(number)
    tokens = batch["tokens"]
    return {"index": batch["index"], "tokens": tokens, "odds": teacher().odds(tokens)}


def teach(name: str) -> bytearray:
    """The batch that the name asks for."""
    return TAUGHT.encode(**taught(int(name.rpartition("/")[2])))
