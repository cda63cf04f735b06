"""What the tests of commands leave as it was."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _package_logger() -> Iterator[None]:
    """Each command sends the package's log to its own standard error, which a test closes."""
    package = logging.getLogger("entrepot")
    before = (package.handlers[:], package.level, package.propagate)
    yield
    package.handlers[:], package.level, package.propagate = before
