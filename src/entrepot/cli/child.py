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


def end_with_parent(parent: int) -> None:
    """Ask the kernel for SIGTERM at the parent's death; end at once if that was before."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit(1)


def run() -> None:
    """Run the command line, for as long as the parent lives."""
    end_with_parent(int(sys.argv[1]))
    del sys.argv[1]
    main()


if __name__ == "__main__":
    run()
