"""Files on a full disk, and TCP over a network that is cut. See ``medium_scenarios``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.needs import namespace

TIMEOUT_S = 90.0


def run(before: list[str], scenario: str, *arguments: str) -> None:
    """Silent, or the test fails."""
    python = [sys.executable, "-W", "error", "-m", "tests.integration.medium_scenarios", scenario]
    done = subprocess.run(
        [*before, *python, *arguments],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    print(done.stderr)  # pytest shows it when the next line fails
    assert (done.returncode, done.stderr) == (0, "")


def test_a_full_disk(tmp_path: Path) -> None:
    mounted = f'mount -t tmpfs -o size={4 << 20} tmpfs {tmp_path} && exec "$@"'
    run([*namespace("mount"), "sh", "-c", mounted, "sh"], "a_full_disk", str(tmp_path))


@pytest.mark.parametrize(
    "scenario",
    [
        "a_way_between_machines",
        "a_cut_while_nothing_is_sent",
        "a_cut_in_the_middle_of_a_product",
        "a_cut_while_the_owner_waits",
    ],
)
def test_two_machines(scenario: str) -> None:
    run(namespace("net"), scenario)
