"""A client that only asks the broker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from entrepot.market.client import Client


@contextmanager
def asking(endpoint: str, timeout_s: float) -> Iterator[Client]:
    """A client of the broker at ``endpoint`` with the least memory there is."""
    from entrepot.market.client import Client
    from entrepot.mediums.shm import ShmMedium

    with Client(endpoint, ShmMedium.create(1, 1), timeout_s=timeout_s) as client:
        yield client
