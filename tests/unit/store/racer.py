"""Claims every name that it can, all at once with others: for tests of who wins.

``python -m tests.unit.store.racer PATH NAMES ME [no-links] [durable]``: says ``ready``, waits for a
line, claims ``spam/trial/<n>/0`` for every n below NAMES, and says which it won, as JSON.
"""

from __future__ import annotations

import json
import sys

from entrepot.store.calls import Calls
from entrepot.store.folder import FolderStore
from tests.unit.store.folder_faults import NoLinks


def main(path: str, names: str, me: str, *options: str) -> None:
    store = FolderStore(
        path,
        durable="durable" in options,
        calls=NoLinks() if "no-links" in options else Calls(),
    )
    print("ready", flush=True)
    sys.stdin.readline()
    won = [n for n in range(int(names)) if store.claim(f"spam/trial/{n}/0", meta={"who": me})]
    print(json.dumps(won), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
