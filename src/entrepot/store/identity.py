"""Who writes: names that no two processes of any two machines have in common."""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_UNSAFE = re.compile(r"[^A-Za-z0-9_]+")


def new_nonce() -> str:
    """32 hex digits from the system's source, others in every process, forked or not."""
    return os.urandom(16).hex()


@cache
def host() -> str:
    """This machine's name, of letters, digits and ``_``; at most 40."""
    return _UNSAFE.sub("_", os.uname().nodename)[:40] or "host"


@cache
def boot() -> str:
    """8 hex digits of this machine until it restarts."""
    try:
        return _BOOT_ID.read_text().replace("-", "")[:8]
    except OSError:
        return "0" * 8


def temporary_name(nonce: str) -> str:
    """``<host>-<boot id>-<pid>-<nonce>``: containers and hosts may well have equal pids."""
    return _prefix(os.getpid()) + nonce


def default_writer() -> str:
    """Host and process, for people who read a record."""
    return _writer(os.getpid())


@cache
def _prefix(pid: int) -> str:
    return f"{host()}-{boot()}-{pid}-"


@cache
def _writer(pid: int) -> str:
    return f"{host()}:{pid}"
