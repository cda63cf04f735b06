"""What a test needs of the machine."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import NoReturn

import pytest


def lacking(what: str) -> NoReturn:
    """Skips the test on somebody's own machine. In CI it fails: there nothing may be missing."""
    if os.environ.get("CI"):
        pytest.fail(f"{what}; in CI that is a failure", pytrace=False)
    pytest.skip(what)


@cache
def namespace(kind: str) -> list[str]:
    """The command that has what follows it run in a new namespace of that kind, as root."""
    missing = [name for name in ("unshare", "nsenter", "ip") if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        lacking(f"needs root, and {', '.join(missing) or 'nothing else'}")
    command = ["unshare", f"--{kind}"]
    tried = subprocess.run([*command, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        lacking(f"cannot make a {kind} namespace here: {tried.stderr.strip()}")
    return command


def memory(nbytes: int, *, shared: int = 0) -> None:
    """Skips a test for which there is no such room, or so much less of it in ``/dev/shm``."""
    said = Path("/proc/meminfo").read_text()
    free = int(said.partition("MemAvailable:")[2].split()[0]) << 10
    if free < nbytes:
        lacking(f"needs {nbytes} bytes of memory, and {free} are free")
    free = shutil.disk_usage("/dev/shm").free
    if free < shared:
        lacking(f"needs {shared} bytes in /dev/shm, and {free} are free")
