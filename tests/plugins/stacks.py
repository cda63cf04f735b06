"""What the containers of a stack said, under the report of a test that failed: they are removed
before anybody can look."""

from __future__ import annotations

import json
import re
from collections.abc import Generator
from typing import Any

import pytest

from tests.containers.stack import LIVE, Stack, docker

LINES = 6
"""Of a container's log, the last ones that are worth reading."""

WIDTH = 400

INFORMATION = re.compile(r"I\d{4} |.*level=(INFO|info)")
"""How it begins in logs that are not ours."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        report.sections += [(f"the stack {each.project}", said(each)) for each in list(LIVE)]
    return report


def said(stack: Stack) -> str:
    """A line on each container, and its warnings."""
    try:
        return "\n".join(line for each in stack.containers() for line in lines_of(each))
    except Exception as error:
        # An engine that is gone must not hide why the test failed.
        return f"nothing could be found out: {error!r}"


def lines_of(container: dict[str, Any]) -> list[str]:
    state = container["State"]
    restarts = f", restarted {container['RestartCount']} times" * bool(container["RestartCount"])
    killed = ", out of memory" * bool(state.get("OOMKilled"))
    head = f"{container['Name'][1:]}: {state['Status']}, exit code {state['ExitCode']}"
    log = docker("logs", "--timestamps", container["Id"]).stderr
    worth = [line[:WIDTH] for line in log.splitlines() if is_worth_reading(line)]
    return [f"{head}{restarts}{killed}", *(f"  {line}" for line in worth[-LINES:])]


def is_worth_reading(line: str) -> bool:
    """Whether a line of a log, which begins with its time, is no mere information."""
    said = line.partition(" ")[2]
    try:
        return json.loads(said)["level"] not in ("debug", "info")
    except (ValueError, TypeError, KeyError):
        return not INFORMATION.match(said)
