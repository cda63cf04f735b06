"""``python -m entrepot.demo.script PARENT FOLDER MODULE ARGS...``: a module, as if in that folder.

It ends when its parent does.
"""

from __future__ import annotations

import runpy
import sys

from entrepot.cli.child import end_with_parent


def main() -> None:
    """Run it."""
    _, parent, folder, module, *arguments = sys.argv
    end_with_parent(int(parent))
    sys.path.insert(0, folder)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
