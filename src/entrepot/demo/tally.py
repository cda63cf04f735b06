"""What a client received of an epoch, held against the epoch that it makes itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import xxhash

from entrepot.demo.text import BATCH, Arrays
from entrepot.errors import DemoFailed


class Tally:
    """Every message once, every byte as expected.

    Args:
        product: what it is a tally of, for messages.
        batches: batches of the epoch.
        expected: makes batch ``n`` here, for comparison.
    """

    def __init__(self, product: str, batches: int, expected: Callable[[int], Arrays]) -> None:
        self.product = product
        self.batches = batches
        self._expected = expected
        self._digests: dict[int, bytes] = {}
        self.messages = 0
        self.nbytes = 0

    def __len__(self) -> int:
        """Batches that came."""
        return len(self._digests)

    def take(self, arrays: Mapping[str, Any], number: int | None = None) -> int:
        """Note a batch that came; which one it is, by the messages in it.

        Raises:
            DemoFailed: it is another than ``number``, came before, or differs from ours.
        """
        first = int(arrays["index"][0])
        if first < 0 or first % BATCH or first // BATCH >= self.batches:
            raise DemoFailed(f"{self.product}: a batch starts with message {first}")
        found = first // BATCH
        if number is not None and found != number:
            raise DemoFailed(f"{self.product}: batch {found} came for batch {number}")
        if found in self._digests:
            raise DemoFailed(f"{self.product}: batch {found} came twice")
        ours = self._expected(found)
        if set(ours) != set(arrays):
            raise DemoFailed(f"{self.product}: batch {found} has {sorted(arrays)}")
        for name, array in ours.items():
            if not np.array_equal(arrays[name], array):
                raise DemoFailed(
                    f"{self.product}: {name!r} of batch {found} is not what it should be"
                )
        self._digests[found] = digest(arrays)
        self.messages += int(np.count_nonzero(arrays["index"] >= 0))
        self.nbytes += sum(array.nbytes for array in ours.values())
        return found

    def missing(self) -> list[int]:
        """Batches that have not come, in their order."""
        return [number for number in range(self.batches) if number not in self._digests]

    def checksum(self) -> str:
        """Of the whole epoch as it came, in the order of its batches."""
        return _combined(self._digests[number] for number in sorted(self._digests))

    def expected_checksum(self) -> str:
        """Of the whole epoch as made here."""
        return _combined(digest(self._expected(number)) for number in range(self.batches))

    def close(self, messages: int) -> None:
        """The epoch is over: all of it must be here.

        Raises:
            DemoFailed: a batch or message is missing, or the checksums differ.
        """
        missing = self.missing()
        if missing:
            raise DemoFailed(
                f"{self.product}: {len(missing)} batches never came, first {missing[0]}"
            )
        if self.messages != messages:
            raise DemoFailed(f"{self.product}: {self.messages} messages came, not {messages}")
        ours, theirs = self.expected_checksum(), self.checksum()
        if ours != theirs:
            raise DemoFailed(f"{self.product}: checksum of the epoch is {theirs}, not {ours}")


def digest(arrays: Mapping[str, Any]) -> bytes:
    """XXH3-128 of a batch: names, dtypes, shapes and bytes, in the order of the names."""
    running = xxhash.xxh3_128()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        running.update(f"{name}:{array.dtype.str}:{array.shape};".encode())
        running.update(array.tobytes())
    return running.digest()


def _combined(digests: Any) -> str:
    running = xxhash.xxh3_128()
    for each in digests:
        running.update(each)
    return running.hexdigest()
