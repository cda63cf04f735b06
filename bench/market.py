"""What the market does in a second, beside forwarders without logic and beside the peer.

    python bench/market.py                 # minutes
    python bench/market.py --quick         # under a minute
    python bench/market.py --only shm --json out.json

Load comes from processes of their own, over loopback; what is compared is measured in turn, round
by round, and each figure is the median of its rounds.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

if __package__ in (None, ""):  # run as a file
    sys.path.insert(0, str(Path(__file__).parents[1]))

from rich.console import Console

from bench import questions
from bench.orders import orders
from bench.processes import Processes, say, two_ends
from bench.report import Figures, as_json, machine, show
from tests.peer import peer_env


def _orders(figures: Figures, quick: bool) -> None:
    peer = Processes(peer_env.peer_python(say))
    orders(figures, peer, two_ends(), quick)


QUESTIONS: dict[str, Callable[[Figures, bool], None]] = {
    "orders": _orders,
    "scale": questions.scale,
    "shm": questions.shm,
    "mediums": questions.mediums,
    "overlap": questions.overlap,
    "requeue": questions.requeue,
    "idle": questions.idle,
}


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.formatter_class = argparse.RawDescriptionHelpFormatter
    arguments.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    arguments.add_argument("--json", type=Path, metavar="PATH", help="write the figures there too")
    arguments.add_argument("--only", choices=QUESTIONS, help="one question alone")
    asked = arguments.parse_args()
    chosen = [asked.only] if asked.only else list(QUESTIONS)
    figures, began = Figures(), time.monotonic()
    for number, name in enumerate(chosen, 1):
        started = time.monotonic()
        say(f"[{number}/{len(chosen)}] {name} ...")
        QUESTIONS[name](figures, asked.quick)
        say(f"[{number}/{len(chosen)}] {name}: {time.monotonic() - started:.1f} s")
    spent_s = time.monotonic() - began
    console = Console()
    if not console.is_terminal:
        console.width = 130
    show(figures, console, machine())
    if asked.json:
        asked.json.write_text(json.dumps(as_json(figures, asked.quick, spent_s), indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
