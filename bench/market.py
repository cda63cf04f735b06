"""What the market does in a second, beside forwarders without logic and beside the peer.

    python bench/market.py                 # minutes
    python bench/market.py --quick         # under a minute
    python bench/market.py --only shm --json out.json

Load comes from processes of their own, over loopback; what is compared is measured in turn, round
by round, and each figure is the median of its rounds.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __package__ in (None, ""):  # run as a file
    sys.path.insert(0, str(Path(__file__).parents[1]))

from bench import questions
from bench.orders import orders
from bench.processes import Processes, say, two_ends
from bench.report import Bar, Figures, Question, Subject, main
from tests.peer import peer_env

WHAT = {
    "gated_per_s": "gated forwarder, 1 supplier: messages/s",
    "gated4_per_s": "gated forwarder, 4 suppliers: messages/s",
    "open_per_s": "open forwarder: messages/s",
    "softs_per_s": "softs 0.1.2, 1 supplier: orders/s",
    "softs4_per_s": "softs 0.1.2, 4 suppliers: orders/s",
    "orders_per_s": "1 supplier, credit 1: orders/s",
    "orders4_per_s": "4 suppliers, credit 1: orders/s",
    "batched_per_s": "ORDERS of 16, credit 16: orders/s",
    "p50_ratio": "one at a time, p50, over the gated forwarder's",
    "scale_ratio": "10,000 waiting and 200 suppliers, over 10 and 1",
    "shm_ratio": "shm, 16 MiB, 8 slots, credit 4, checked, over a memcpy into such a ring",
    "shm_ratio_1mib": "shm, 1 MiB, 64 slots, credit 16, likewise",
    "file_ratio": "a file in memory, 16 MiB, 8 slots, credit 4, checked, over the memcpy",
    "file_over_pwrite": "the same, over writing alone to such a file, which nobody reads",
    "tcp_ratio": "TCP, 16 MiB, 8 slots, credit 4, checked, over a bare loopback socket",
    "tcp_ratio_64kib": "TCP, 64 KiB, 64 slots, credit 16, likewise",
    "orders_tcp_per_s": "1 supplier, credit 1, over TCP: orders/s",
    "overlap_ms": "generate 5 ms + consume 5 ms, credit 2, streamed: ms a sample",
    "alone_per_s": "a call of 5 ms makes one order, credit 1: orders/s",
    "together_per_s": "a call of 5 ms makes up to 16 orders, credit 32: orders/s",
    "requeue_s": "kill -9 of a supplier, until another has its order: s",
    "idle_cpu": "idle broker: share of a core",
    "idle_rss_mb": "idle broker: resident memory, MB",
}
"""Every figure, in the order of the report."""

BARS = (
    Bar("orders_per_s", 0.5, over="gated_per_s"),
    Bar("orders4_per_s", 0.5, over="gated4_per_s"),
    Bar("batched_per_s", 0.7, over="open_per_s"),
    Bar("p50_ratio", 1.4, at_least=False),
    Bar("scale_ratio", 0.6),
    Bar("shm_ratio", 0.5),
    Bar("shm_ratio_1mib", 0.3),
    Bar("file_ratio", 0.4),
    Bar("tcp_ratio", 0.5),
    Bar("tcp_ratio_64kib", 0.3),
    Bar("overlap_ms", 6.0, at_least=False),
    Bar("together_per_s", 12.0, over="alone_per_s"),
    Bar("requeue_s", 1.5, at_least=False),
    Bar("idle_cpu", 0.005, at_least=False),
    Bar("idle_rss_mb", 60.0, at_least=False),
)

MARKET = Subject("The market, measured", WHAT, BARS)


def _orders(figures: Figures, quick: bool) -> None:
    peer = Processes(peer_env.peer_python(say))
    orders(figures, peer, two_ends(), quick)


QUESTIONS: dict[str, Question] = {
    "orders": _orders,
    "scale": questions.scale,
    "shm": questions.shm,
    "mediums": questions.mediums,
    "overlap": questions.overlap,
    "together": questions.together,
    "requeue": questions.requeue,
    "idle": questions.idle,
}


if __name__ == "__main__":
    sys.exit(main(__doc__, MARKET, QUESTIONS))
