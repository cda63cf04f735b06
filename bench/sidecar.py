"""The sidecar under more than anybody has: 100,000 trials, 1,000 studies, 10,000 products.

    python bench/sidecar.py                # a minute
    python bench/sidecar.py --quick        # half of it

A real server on loopback, asked over HTTP by this process; its broker and its store are in memory,
for what they cost themselves is measured elsewhere.
"""

from __future__ import annotations

import http.client
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

if __package__ in (None, ""):  # run as a file
    sys.path.insert(0, str(Path(__file__).parents[1]))

import psutil
import uvicorn

from bench.report import Bar, Figures, Question, Subject, main
from entrepot.settings import Settings
from entrepot.sidecar.app import create_app
from entrepot.sidecar.market import MarketWatch
from entrepot.sidecar.studies import StoreWatch
from entrepot.store.memory import MemoryStore
from entrepot.study import Space, report, take
from tests.unit.sidecar.figures import figures as broker_figures
from tests.unit.sidecar.figures import product, watch

TRIALS, STUDIES, PRODUCTS = 100_000, 1_000, 10_000
SPACE = Space().real("lr", 0.0, 1.0)

WHAT = {
    "scrape_ms": f"a scrape of /metrics with {TRIALS:,} trials, warm: ms",
    "page_ms": "the page of all studies beside them: ms",
    "study_page_ms": f"the page of the study with {TRIALS:,} trials: ms",
    "first_look_s": f"the first look at {TRIALS:,} trials, in a thread of its own: s",
    "next_look_ms": "a look after one change among them: ms",
    "trials_mb": f"memory that {TRIALS:,} trials take in the sidecar, the store left out: MB",
    "studies_scrape_kb": f"a scrape with {STUDIES:,} studies: kB",
    "studies_page_kb": f"the page with {STUDIES:,} studies: kB",
    "studies_page_ms": "and how long it takes: ms",
    "products_scrape_kb": f"a scrape with {PRODUCTS:,} products on order: kB",
    "products_page_kb": f"the page with {PRODUCTS:,} products on order: kB",
    "products_page_ms": "and how long it takes: ms",
}

SIDECAR = Subject("The sidecar", WHAT, (Bar("scrape_ms", 100.0, at_least=False),))


class Asked:
    """A connection to a served sidecar that is kept, as that of Prometheus is."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def get(self, path: str) -> tuple[int, float]:
        """Bytes, and milliseconds.

        :raises RuntimeError: another status than 200.
        """
        began = time.perf_counter()
        self._connection.request("GET", path)
        answer = self._connection.getresponse()
        nbytes = len(answer.read())
        took_ms = (time.perf_counter() - began) * 1e3
        if answer.status != 200:
            raise RuntimeError(f"{path} was answered with {answer.status}")
        return nbytes, took_ms


@contextmanager
def served(market: MarketWatch, store: StoreWatch | None) -> Iterator[Asked]:
    """Watches that look when they are told to, served."""
    app = create_app(Settings(), market, store)
    config = uvicorn.Config(app, port=0, log_level="error", lifespan="off", timeout_keep_alive=600)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield Asked(server.servers[0].sockets[0].getsockname()[1])
    finally:
        server.should_exit = True
        thread.join()


def _watched(store: MemoryStore) -> StoreWatch:
    return StoreWatch(store.view, every_s=5.0, stale_s=3600.0, most=10_000)


def _run(store: MemoryStore, study: str, trial: int) -> None:
    point = SPACE.point(lr=trial % TRIALS / TRIALS)
    take(store, point, study=study, trial=trial, me="bench", goal="min")
    scores = [trial + 1.0, trial + 0.5]
    report(store, point, scores, study=study, trial=trial, me="bench", state="done")


def _rss_mb() -> float:
    return float(psutil.Process().memory_info().rss) / 1e6


def trials(figures: Figures, quick: bool) -> None:
    """One study of many trials."""
    store = MemoryStore()
    for trial in range(TRIALS):
        _run(store, "large", trial)
    studies, before_mb = _watched(store), _rss_mb()
    began = time.perf_counter()
    studies.look()
    figures.add(first_look_s=time.perf_counter() - began, trials_mb=_rss_mb() - before_mb)
    with served(watch(broker_figures()), studies) as asked:
        asked.get("/metrics")
        asked.get("/")
        for round_ in range(5 if quick else 20):
            figures.add(scrape_ms=asked.get("/metrics")[1], page_ms=asked.get("/")[1])
            figures.add(study_page_ms=asked.get("/studies?name=large")[1])
            _run(store, "large", TRIALS + round_)
            began = time.perf_counter()
            studies.look()
            figures.add(next_look_ms=(time.perf_counter() - began) * 1e3)


def many_studies(figures: Figures, quick: bool) -> None:
    """Many studies of few trials."""
    store = MemoryStore()
    for study in range(STUDIES):
        for trial in range(3):
            _run(store, f"study-{study}", trial)
    studies = _watched(store)
    studies.look()
    with served(watch(broker_figures()), studies) as asked:
        for _ in range(5 if quick else 20):
            nbytes, took_ms = asked.get("/")
            figures.add(studies_page_kb=nbytes / 1e3, studies_page_ms=took_ms)
            figures.add(studies_scrape_kb=asked.get("/metrics")[0] / 1e3)


def products(figures: Figures, quick: bool) -> None:
    """Many products on order."""
    stats = broker_figures()
    stats["products"] = [product(f"product-{number}", number) for number in range(PRODUCTS)]
    with served(watch(stats), None) as asked:
        for _ in range(5 if quick else 20):
            nbytes, took_ms = asked.get("/")
            figures.add(products_page_kb=nbytes / 1e3, products_page_ms=took_ms)
            figures.add(products_scrape_kb=asked.get("/metrics")[0] / 1e3)


QUESTIONS: dict[str, Question] = {"trials": trials, "studies": many_studies, "products": products}


if __name__ == "__main__":
    sys.exit(main(__doc__, SIDECAR, QUESTIONS))
