"""The messages that the search is about, in batches."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

from entrepot.demo.sms import MEMBER, Message, load
from entrepot.errors import DataUnavailable

COUNT = 600
BATCH = 64


def messages(count: int = COUNT) -> list[Message]:
    """The first ``count`` of the collection, shuffled: the same on every machine.

    :raises DataUnavailable: they are not here, and cannot be fetched.
    """
    try:
        every = load()
    except DataUnavailable as fault:
        folder = os.environ.get("SMS_FOLDER")  # start.py of a container says so
        if not folder:
            raise
        raise DataUnavailable(
            f"{fault}; in a container, put the file {MEMBER} into the folder that is mounted at "
            f"{folder}: under Compose, SMS_DATA=/that/folder docker compose up"
        ) from fault
    random.Random(0).shuffle(every)
    return every[:count]


def batches(every: list[Message], size: int = BATCH) -> Iterator[tuple[list[str], list[int]]]:
    """Texts, and 1 for each that is spam."""
    for first in range(0, len(every), size):
        part = every[first : first + size]
        yield [each.text for each in part], [int(each.spam) for each in part]
