"""Fixtures of the tests that run a market's parties as processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.market_processes import Nursery


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """The process that forks brokers, suppliers and clients."""
    started = Nursery()
    yield started
    started.close()
