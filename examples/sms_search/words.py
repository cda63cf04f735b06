"""Text to numbers, without torch: what the tokenising machine does."""

from __future__ import annotations

import re
from collections.abc import Sequence
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

WORD = re.compile("[a-z0-9']+")

VOCABULARY = 4_096
"""Numbers of words. 0 is no word; several words may share a number."""

WIDTH = 32
"""Words of a message that count."""


def clean(text: str) -> list[str]:
    """The words of a message."""
    return WORD.findall(text.lower())


def tokens(texts: Sequence[str]) -> NDArray[np.int64]:
    """A row of :data:`WIDTH` numbers for each text: its first words, and zeros."""
    made = np.zeros((len(texts), WIDTH), np.int64)
    for row, text in zip(made, texts, strict=True):
        for place, word in enumerate(clean(text)[:WIDTH]):
            row[place] = crc32(word.encode()) % (VOCABULARY - 1) + 1
    return made
