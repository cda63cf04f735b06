"""Shared memory at its limits and at the end of its owners: real processes, real kills.

Each scenario of ``shm_scenarios`` runs in a mount namespace with a ``/dev/shm`` of its own, so
that it may fill it, and count what is in it, whatever else this machine does.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache

import pytest

from tests.integration.needs import lacking

TIMEOUT_S = 90.0

MIB = 1 << 20


@cache
def unshare() -> list[str]:
    """The command that gives a mount namespace here: as root, or as root of a user namespace."""
    found = shutil.which("unshare")
    if found is None:
        lacking("needs unshare, of util-linux")
    command = [found, "--mount", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]
    tried = subprocess.run([*command, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        lacking(f"cannot make a mount namespace here: {tried.stderr.strip()}")
    return command


def run(scenario: str, size: int) -> None:
    """Run a scenario alone in a ``/dev/shm`` of ``size`` bytes; silent, or the test fails."""
    mounted = f'mount -t tmpfs -o size={size} tmpfs /dev/shm && exec "$@"'
    python = [sys.executable, "-W", "error", "-m", "tests.integration.shm_scenarios", scenario]
    done = subprocess.run(
        [*unshare(), "sh", "-c", mounted, "sh", *python],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    print(done.stderr)  # pytest shows it when the next line fails
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("scenario", ["full", "filled_to_the_last_page", "full_of_a_killed_owners"])
def test_a_full_dev_shm(scenario: str) -> None:
    run(scenario, MIB)


@pytest.mark.parametrize(
    "scenario",
    [
        "a_killed_owners_segment_is_swept",
        "a_living_owners_segment_is_not_swept",
        "an_owner_in_another_pid_namespace_is_living_and_then_dead",
        "a_sweeper_in_another_pid_namespace_leaves_the_living",
        "owners_that_start_and_sweep_at_once",
        "an_exit_without_close_leaves_nothing",
    ],
)
def test_owners_that_end(scenario: str) -> None:
    run(scenario, 64 * MIB)


@pytest.mark.parametrize(
    "scenario",
    [
        "a_suppliers_end_leaves_the_clients_segment",
        "a_killed_clients_segments_do_not_stay_mapped",
    ],
)
def test_suppliers_that_end(scenario: str) -> None:
    run(scenario, 64 * MIB)


@pytest.mark.parametrize(
    "scenario",
    [
        "a_forked_childs_end_does_not_unlink",
        "a_forked_child_does_not_keep_a_dead_owner_alive",
    ],
)
def test_forks(scenario: str) -> None:
    run(scenario, 64 * MIB)


def test_ten_thousand_leave_nothing() -> None:
    run("ten_thousand", 64 * MIB)
