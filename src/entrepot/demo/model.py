"""What the demonstration's study searches: how to learn to tell spam, from labels, with numpy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from entrepot.demo import sms, text

Floats = NDArray[np.float64]

EPOCHS = 6
LEARNED, HELD_OUT = 2_000, 1_000
"""Messages that are learned from, and those by which it is judged."""

ROWS = 50
"""Messages a step."""


@cache
def data() -> tuple[NDArray[np.int32], Floats]:
    """Tokens of each message, and 1 for those that are spam."""
    messages = sms.load()[: LEARNED + HELD_OUT]
    cleaned = [text.clean(each.text) for each in messages]
    vocabulary = text.Vocabulary(cleaned[:LEARNED])
    tokens = np.zeros((len(cleaned), text.TOKENS), np.int32)
    for row, each in zip(tokens, cleaned, strict=True):
        ids = vocabulary.encode(each)[: text.TOKENS]
        row[: len(ids)] = ids
    return tokens, np.array([float(each.spam) for each in messages])


def learn(point: Mapping[str, Any], seed: int) -> Iterator[float]:
    """The loss on messages that were held out, after each epoch.

    :param point: ``rate``; ``decay`` of the weights; ``adaptive``, whether words that are seldom
        seen move farther.
    """
    tokens, spam = data()
    chance = np.random.default_rng(seed)
    weights: Floats = np.zeros(text.VOCABULARY)
    moved: Floats = np.full(text.VOCABULARY, 1e-8)
    bias = 0.0
    for _ in range(EPOCHS):
        order = chance.permutation(LEARNED)
        for first in range(0, LEARNED, ROWS):
            rows = order[first : first + ROWS]
            wrong = _probability(weights[tokens[rows]].sum(axis=1) + bias) - spam[rows]
            gradient: Floats = np.zeros(text.VOCABULARY)
            np.add.at(gradient, tokens[rows], (wrong / len(rows))[:, None])
            gradient[text.PAD] = 0.0
            bias -= point["rate"] * float(wrong.mean())
            moved += gradient**2
            scale = np.sqrt(moved) if point["adaptive"] else 1.0
            weights = weights * (1 - point["decay"]) - point["rate"] * gradient / scale
        own = _probability(weights[tokens[LEARNED:]].sum(axis=1) + bias)
        said = spam[LEARNED:]
        yield float(-(said * np.log(own) + (1 - said) * np.log(1 - own)).mean())


def _probability(odds: Floats) -> Floats:
    found: Floats = 1 / (1 + np.exp(-np.clip(odds, -25, 25)))
    return found
