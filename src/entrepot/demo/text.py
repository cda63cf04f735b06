"""Clean and tokenise messages into arrays of one shape, with numpy and nothing else.

A batch holds ``BATCH`` messages; the last one of an epoch is filled up with rows whose ``index``
is -1. Everything here is a pure function of the messages, so that a client can make an epoch
itself and compare.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from entrepot.demo.sms import Message

BATCH = 8
"""Messages in a batch."""

TOKENS = 40
"""Tokens kept of a message; 9 of 10 messages have fewer."""

TEXT_NBYTES = 1024
"""Bytes kept of a cleaned message; the longest has 900."""

VOCABULARY = 4_096
"""Words that have an id of their own, :data:`PAD` and :data:`UNKNOWN` among them."""

PAD = 0
UNKNOWN = 1

Arrays = dict[str, NDArray[Any]]

_SPACE = re.compile(r"\s+")
_URL = re.compile(r"(?:https?://|www\.)\S+")
_NUMBER = re.compile(r"[0-9]+(?:[.,:][0-9]+)*")
_TOKEN = re.compile(r"<[a-z]+>|[^\W\d_]+(?:'[^\W\d_]+)?|[^\w\s]")


def clean(text: str) -> str:
    """Lower case, one form of each character, and a word for each address and number."""
    text = unicodedata.normalize("NFKC", html.unescape(text)).lower()
    text = text.replace("\N{RIGHT SINGLE QUOTATION MARK}", "'").replace("<#>", " <number> ")
    text = _URL.sub(" <address> ", text)
    text = _NUMBER.sub(" <number> ", text)
    return _SPACE.sub(" ", text).strip()


def words(cleaned: str) -> list[str]:
    """The tokens of a cleaned text, as words."""
    return _TOKEN.findall(cleaned)


class Vocabulary:
    """Ids for the commonest words of some texts; the same texts give the same ids anywhere."""

    def __init__(self, texts: Iterable[str], size: int = VOCABULARY) -> None:
        counted = Counter(word for text in texts for word in words(text))
        ranked = sorted(counted, key=lambda word: (-counted[word], word))
        self.words: tuple[str, ...] = ("<pad>", "<unknown>", *ranked[: size - 2])
        self._ids: Mapping[str, int] = {word: id_ for id_, word in enumerate(self.words)}

    def __len__(self) -> int:
        return len(self.words)

    def encode(self, cleaned: str) -> list[int]:
        """The ids of a cleaned text's tokens."""
        return [self._ids.get(word, UNKNOWN) for word in words(cleaned)]

    def decode(self, ids: Iterable[int]) -> str:
        """The words of ``ids``, without the filling."""
        return " ".join(self.words[id_] for id_ in ids if id_ != PAD)


class Epoch:
    """All messages as batches, each made when it is asked for."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self.messages = messages
        self.cleaned = [clean(message.text) for message in messages]
        self.vocabulary = Vocabulary(self.cleaned)

    def __len__(self) -> int:
        """How many batches an epoch has."""
        return -(-len(self.messages) // BATCH)

    def clean_batch(self, number: int) -> Arrays:
        """Batch ``number`` as text: UTF-8 bytes, filled up with zeros."""
        batch = self._rows(number)
        batch["text"] = np.zeros((BATCH, TEXT_NBYTES), np.uint8)
        batch["length"] = np.zeros(BATCH, np.int32)
        for row, index in self._members(number):
            encoded = self.cleaned[index].encode()[:TEXT_NBYTES]
            batch["text"][row, : len(encoded)] = np.frombuffer(encoded, np.uint8)
            batch["length"][row] = len(encoded)
        return batch

    def token_batch(self, number: int) -> Arrays:
        """Batch ``number`` as token ids, filled up with :data:`PAD`."""
        batch = self._rows(number)
        batch["tokens"] = np.full((BATCH, TOKENS), PAD, np.int32)
        batch["length"] = np.zeros(BATCH, np.int32)
        for row, index in self._members(number):
            ids = self.vocabulary.encode(self.cleaned[index])[:TOKENS]
            batch["tokens"][row, : len(ids)] = ids
            batch["length"][row] = len(ids)
        return batch

    def _members(self, number: int) -> Iterable[tuple[int, int]]:
        if not 0 <= number < len(self):
            raise IndexError(f"there is no batch {number}: an epoch has 0 to {len(self) - 1}")
        first = number * BATCH
        return enumerate(range(first, min(first + BATCH, len(self.messages))))

    def _rows(self, number: int) -> Arrays:
        """What both kinds of batch share: which messages, and whether each is spam."""
        index = np.full(BATCH, -1, np.int32)
        spam = np.zeros(BATCH, np.uint8)
        for row, member in self._members(number):
            index[row] = member
            spam[row] = self.messages[member].spam
        return {"index": index, "spam": spam}
