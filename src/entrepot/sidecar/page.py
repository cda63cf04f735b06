"""The page: what a person likes to keep open. Made here whole, with nothing from elsewhere."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader, StrictUndefined

from entrepot import __version__
from entrepot.errors import ConfigurationError, NoStudy
from entrepot.logs import masked
from entrepot.settings import Settings
from entrepot.sidecar.drawn import Chart, chart, parts, spark
from entrepot.sidecar.market import MarketWatch
from entrepot.sidecar.recent import Sample
from entrepot.sidecar.studies import StoreWatch, StudySeen
from entrepot.study.table import shown
from entrepot.study.trials import Attempt

ROWS = 50
"""Studies, products, suppliers, and trials of each state, on one page."""

LEAST_S = 60.0
"""The least time, in seconds, that the chart spans."""

STATES = ("done", "pruned", "failed", "released", "running", "abandoned")
"""In the order in which a bar shows them."""


def pages(
    market: MarketWatch,
    store: StoreWatch | None,
    settings: Settings,
    clock: Callable[[], float] = time.time,
) -> APIRouter:
    """The routes of the page."""
    router = APIRouter(include_in_schema=False)
    templates = Environment(
        loader=PackageLoader("entrepot.sidecar"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters.update(number=number, ago=ago, seconds=seconds, value=shown)
    templates.globals.update(version=__version__, states=STATES, bar=bar)

    @router.get("/", response_class=HTMLResponse)
    def index() -> str:
        now = clock()
        seen = market.seen
        samples = market.recent.samples(now)
        said = None if store is None else store.seen
        return templates.get_template("index.html").render(
            now=now,
            market=seen,
            endpoint=masked(settings.client.endpoint),
            per_s=market.recent.per_s(now),
            queue=depth_chart(samples, now, settings.sidecar.keep_s),
            stats=seen.stats,
            store=said,
            url=masked(settings.sidecar.store or ""),
            studies=[] if said is None else list(said.studies.values())[:ROWS],
            stale_s=settings.sidecar.stale_s,
            rows=ROWS,
            rescue=rescue_line(settings),
        )

    @router.get("/studies", response_class=HTMLResponse)
    def study(name: str = Query(max_length=1_000)) -> HTMLResponse:
        found = None if store is None else store.seen.studies.get(name)
        if store is None or found is None:
            said = templates.get_template("absent.html").render(name=name)
            return HTMLResponse(said, 404)
        try:
            short = store.shortlist(name, ROWS)
        except NoStudy:
            return HTMLResponse(templates.get_template("absent.html").render(name=name), 404)
        page = templates.get_template("study.html").render(
            now=clock(),
            study=found,
            store=store.seen,
            table=short,
            sparks={row.trial: spark(_tail(row.attempted)) for row in short.rows},
            rows=ROWS,
            rescue=rescue_line(settings),
            stale_s=settings.sidecar.stale_s,
        )
        return HTMLResponse(page)

    @router.get("/docs", response_class=HTMLResponse)
    def docs(request: Request) -> str:
        said = request.app.openapi()
        return templates.get_template("docs.html").render(calls=calls_of(said))

    return router


def calls_of(said: dict[str, Any]) -> list[dict[str, Any]]:
    """The calls of an OpenAPI document, for people."""
    return [
        {
            "method": method.upper(),
            "path": path,
            "said": call.get("description", ""),
            "parameters": [
                {
                    "name": each["name"],
                    "where": each["in"],
                    "needed": each.get("required", False),
                    "said": each.get("description", ""),
                    "default": each["schema"].get("default"),
                }
                for each in call.get("parameters", [])
            ],
            "answers": {code: answer["description"] for code, answer in call["responses"].items()},
        }
        for path, methods in said["paths"].items()
        for method, call in methods.items()
    ]


def depth_chart(samples: Sequence[Sample], now: float, keep_s: float) -> Chart:
    """Queued and in flight, over the last minutes: as many as there were, and one at least."""
    first = samples[0].at if samples else now
    return chart(
        [each.at for each in samples],
        {
            "queued": [each.queued for each in samples],
            "in flight": [each.in_flight for each in samples],
        },
        (now - min(keep_s, max(LEAST_S, now - first)), now),
    )


def bar(states: Mapping[str, int]) -> list[tuple[str, float, float]]:
    """The parts of a bar of 100, in the order of :data:`STATES`."""
    return parts({state: states.get(state, 0) for state in STATES}, 100.0)


def rescue_line(settings: Settings) -> Callable[[StudySeen, int], str]:
    """The command that rescues a trial."""
    url = masked(settings.sidecar.store or "STORE")

    def line(study: StudySeen, trial: int) -> str:
        return f"entrepot study rescue {shlex.quote(url)} {shlex.quote(study.name)} --trial {trial}"

    return line


def _tail(attempt: Attempt) -> list[float]:
    """The best so far of a trial; nothing where it cannot be read."""
    try:
        return list(attempt.tail.best)
    except ConfigurationError:
        return []


# --- in words ---------------------------------------------------------------------------


def number(value: float) -> str:
    """A count, or a rate."""
    if isinstance(value, int):
        return f"{value:,}"
    if not math.isfinite(value):
        return "not a number" if math.isnan(value) else f"{value}"
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:,.2f}"


def seconds(value: float) -> str:
    """A duration."""
    if value < 1:
        return f"{value * 1000:.0f} ms"
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if value >= 2 * size:
            return f"{value / size:.0f} {unit}"
    return f"{value:.0f} s"


def ago(at: float, now: float) -> str:
    """How long it is since ``at``."""
    return "never" if not at else f"{seconds(max(0.0, now - at))} ago"
