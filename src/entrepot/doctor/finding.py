"""What one look at something showed."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Level(StrEnum):
    OK = "ok"
    WARN = "warn"
    """It works, and something will hurt."""
    FAIL = "fail"


@dataclass(frozen=True)
class Finding:
    """What one look showed. ``remedy`` is a command or a change that mends it."""

    subject: str
    level: Level
    said: str
    remedy: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def sized(nbytes: int) -> str:
    """``1.5 MiB``: three digits, with the unit that suits."""
    value = float(nbytes)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            break
        value /= 1024
    return f"{value:.3g} {unit}" if value < 1000 else f"{value:.0f} {unit}"


def timed(seconds: float) -> str:
    """``4.2 ms``, ``420 ms``, ``1.5 s``."""
    if seconds >= 1:
        return f"{seconds:.3g} s"
    return f"{seconds * 1e3:.0f} ms" if seconds >= 0.1 else f"{seconds * 1e3:.2g} ms"
