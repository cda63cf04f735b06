"""Stores in folders that are full, read-only or gone, and from hosts that are alike.

See ``store_scenarios``.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.needs import namespace

TIMEOUT_S = 100.0


@pytest.mark.parametrize(
    "scenario",
    [
        "a_full_disk",
        "no_more_files",
        "no_room_for_a_store",
        "a_read_only_mount",
        "an_unmounted_folder",
        "a_removed_folder",
        "hosts_with_equal_pids",
    ],
)
def test_a_folder(tmp_path: Path, scenario: str) -> None:
    python = [sys.executable, "-W", "error", "-m", "tests.integration.store_scenarios"]
    done = subprocess.run(
        [*namespace("mount"), *python, scenario, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    print(done.stderr)  # pytest shows it when the next line fails
    assert (done.returncode, done.stderr) == (0, "")
