"""Where a file that is a medium may be, and what it is called: names, directories, machines."""

from __future__ import annotations

import os
import re
from hashlib import blake2b
from pathlib import Path

from entrepot.arguments import shown
from entrepot.errors import (
    BadAddress,
    ConfigurationError,
    MediumDenied,
    MediumError,
    MediumFull,
    MediumGone,
)
from entrepot.mediums import owned
from entrepot.mediums.owned import OPEN_FLAGS, Place

SCHEME = "file"
PREFIX = "entrepot-"
NETWORK_PREFIX = "entrepot-net-"
NAME = re.compile(r"entrepot-(net-[0-9a-f]{8}-)?[0-9a-f]{32}")

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
"""One for all containers of a machine, which share its locks."""


def open_in(directory: Path, name: str, address: str) -> int:
    try:
        at = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise MediumError(f"{directory} cannot be opened: {error}") from error
    try:
        return os.open(name, os.O_RDWR | OPEN_FLAGS, dir_fd=at)
    except FileNotFoundError:
        raise MediumGone(
            f"{address} is not in {directory}: its owner has ended, or made it in another "
            f"directory than this one"
        ) from None
    except PermissionError:
        raise MediumDenied(
            f"{address} belongs to another user; run as the same one, or have the client make it "
            f"with mode=0o660 and share a group"
        ) from None
    except OSError as error:
        raise BadAddress(f"{address} cannot be opened: {error}") from error
    finally:
        os.close(at)


def name_of(address: str) -> str:
    scheme, _, name = address.partition(":")
    if scheme != SCHEME or not NAME.fullmatch(name):
        raise BadAddress(
            f"{address[:200]!r} is not an address of a file, which reads "
            f"file:entrepot-<32 hex digits>"
        )
    return name


def directory_at(root: str | os.PathLike[str]) -> Path:
    given: object = root
    if not isinstance(given, str | os.PathLike) or not os.fspath(given):
        raise ConfigurationError(f"root is the path of a directory, got {shown(root)}")
    directory = Path(root).absolute()
    if not directory.is_dir():
        where = str(directory)
        named = where if where.isprintable() else shown(where)
        raise ConfigurationError(f"{named} is not a directory; make it, or choose another")
    return directory


def place_in(directory: Path, network: bool) -> Place:
    prefix = f"{NETWORK_PREFIX}{_machine()}-" if network else PREFIX

    def refused(nbytes: int, error: Exception) -> MediumFull:
        return full(directory, nbytes, error)

    def unusable(error: OSError) -> MediumError:
        if isinstance(error, PermissionError):
            return MediumDenied(f"this user may not make files in {directory}: {error}")
        return MediumError(f"cannot make, or lock, a file in {directory}: {error}")

    return Place(directory, prefix, refused, unusable)


def _machine() -> str:
    """8 hex digits of this machine, until it restarts."""
    try:
        said = BOOT_ID.read_bytes()
    except OSError:
        said = os.uname().nodename.encode()
    return blake2b(said, digest_size=4).hexdigest()


def full(directory: Path, nbytes: int, error: Exception) -> MediumFull:
    return MediumFull(
        f"{nbytes} bytes were asked for, but in {directory} {owned.free_bytes(directory)} "
        f"({error}); ask for fewer or smaller slots, or choose another directory"
    )
