"""The stack of ``docker-compose.yml``, from images that were built here.

These tests run with ``make containers``, which brings the engine and builds the images, and not
with the others: they are collected where ``ENTREPOT_CONTAINERS`` is set.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.containers.faults.course import Course, Run, watched
from tests.containers.stack import Stack

collect_ignore_glob = [] if os.environ.get("ENTREPOT_CONTAINERS") else ["test_*.py"]


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """All services but Grafana, whose image is in no registry that is reached here."""
    stack = Stack(f"entrepot-test-{os.getpid()}")
    try:
        stack.up()
        yield stack
    finally:
        stack.down()


@pytest.fixture(scope="session")
def course() -> Course:
    """Faults, and what was seen of them; the stack is gone when this returns."""
    with watched(f"entrepot-faults-{os.getpid()}") as stack:
        return Run(stack).whole()
