"""Sizes as people write them: ``1MiB``, ``64 KiB``, ``1.5MB`` or ``4096``, and back."""

from __future__ import annotations

import re

from entrepot.errors import ConfigurationError

UNITS = {
    "B": 1,
    "kB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
}

_FACTORS = {unit.lower(): factor for unit, factor in UNITS.items()} | {"": 1}
_SIZE = re.compile(r"\s*([0-9][0-9_]*(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*")


def parse_size(text: str) -> int:
    """The number of bytes that ``text`` says; case does not matter, and no unit means bytes.

    :raises ConfigurationError: it is no size, less than one byte, or a part of one.
    """
    match = _SIZE.fullmatch(text)
    factor = _FACTORS.get(match[2].lower()) if match else None
    if match is None or factor is None:
        units = ", ".join(unit for unit in UNITS if unit != "B")
        raise ConfigurationError(
            f"{text[:80]!r} is not a size; write a number of bytes, or one with a unit ({units}) "
            f"such as 1MiB"
        )
    digits = match[1].replace("_", "")
    if factor == 1 and float(digits) % 1:
        raise ConfigurationError(
            f"{text[:80]!r} is no whole number of bytes; a unit may be missing, as in "
            f"{digits[:20]}MiB"
        )
    nbytes = int(float(digits) * factor) if "." in digits else int(digits) * factor
    if nbytes < 1:
        raise ConfigurationError(f"{text[:80]!r} is less than one byte")
    return nbytes


def show_size(nbytes: int) -> str:
    """The shortest exact form of a size: ``1MiB``, ``1536``."""
    for unit in ("GiB", "MiB", "KiB"):
        if nbytes and nbytes % UNITS[unit] == 0:
            return f"{nbytes // UNITS[unit]}{unit}"
    return str(nbytes)
