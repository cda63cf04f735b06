"""``python -m entrepot.cli.child PARENT ARGS...``: a command that ends when its parent does.

The demonstration starts its parts so: whatever ends it, even a kill -9, ends them.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from entrepot.cli import main

PR_SET_PDEATHSIG = 1


def run() -> None:
    """Ask the kernel for SIGTERM at the parent's death, then run the command line."""
    parent = int(sys.argv[1])
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it ended before we asked
        sys.exit(1)
    main(sys.argv[2:])


if __name__ == "__main__":
    run()
