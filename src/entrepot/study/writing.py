"""Files that people get: whole, or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from entrepot.errors import ConfigurationError
from entrepot.store.identity import new_nonce


def write_whole(path: str | os.PathLike[str], data: bytes) -> Path:
    """Write a file, in the place of one that may be there. Who reads it meanwhile has the one or
    the other.

    :raises ConfigurationError: it cannot be written.
    """
    target = Path(path)
    beside = target.with_name(f".{target.name[:100]}.{new_nonce()}")
    try:
        if target.exists() and not target.is_file():  # a pipe, a device
            target.write_bytes(data)
            return target
        try:
            beside.write_bytes(data)
            beside.replace(target)
        finally:
            beside.unlink(missing_ok=True)
    except (OSError, ValueError) as fault:
        why = getattr(fault, "strerror", None) or fault
        raise ConfigurationError(f"cannot write {str(target)!r:.200}: {why}") from fault
    return target
