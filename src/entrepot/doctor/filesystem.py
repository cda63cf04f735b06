"""Which kind of file system a path is on."""

from __future__ import annotations

from pathlib import Path

NETWORK_FILESYSTEMS = ("nfs", "cifs", "smb", "fuse", "9p", "ceph", "lustre", "gpfs", "beegfs")


def filesystem_of(path: Path) -> str:
    """The kind of file system that ``path`` is on, as the kernel calls it."""
    best, kind = "", "unknown"
    try:
        resolved = str(path.resolve())
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return kind
    for line in mounts.splitlines():
        _, where, what, *_ = line.split(" ")
        where = where.replace("\\040", " ")
        inside = resolved == where or resolved.startswith(where.rstrip("/") + "/")
        if inside and len(where) >= len(best):
            best, kind = where, what
    return kind
