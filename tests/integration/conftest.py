"""Fixtures of the tests that run a market's parties, and commands, as processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.cli_terminals import MINE, Terminals
from tests.integration.market_processes import Nursery

pytest.register_assert_rewrite("tests.integration.sms_promises")

# They need engines and images: `make containers` brings them, and collects these.
collect_ignore = (
    [] if os.environ.get("ENTREPOT_CONTAINERS") else ["test_chart.py", "test_cluster.py"]
)


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """The process that forks brokers, suppliers and clients."""
    started = Nursery()
    yield started
    started.close()


@pytest.fixture
def terminals(tmp_path: Path) -> Iterator[Terminals]:
    """Terminals in a folder of their own, which has ``mine.py`` in it."""
    (tmp_path / "mine.py").write_text(MINE)
    terminals = Terminals(tmp_path)
    yield terminals
    terminals.close()
