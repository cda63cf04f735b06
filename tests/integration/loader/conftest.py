"""A market, and the ways in which a loader may run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.integration.loader_samples import WAYS
from tests.integration.market_processes import Market, Nursery


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def market(nursery: Nursery) -> Iterator[Market]:
    """One with a broker."""
    with Market(nursery) as market:
        market.start_broker()
        yield market


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Here, and in workers."""
    return WAYS[request.param]


@pytest.fixture(params=["here", "fork"])
def quick_way(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Without the seconds that a spawned worker takes to load torch."""
    return WAYS[request.param]
