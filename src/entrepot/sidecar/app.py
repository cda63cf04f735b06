"""The sidecar as a whole: watches, API, metrics, probes and page."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.responses import PlainTextResponse, Response
from fastapi.staticfiles import StaticFiles
from prometheus_client.exposition import choose_encoder
from starlette.types import ASGIApp, Receive, Scope, Send

from entrepot import __version__
from entrepot.errors import ConfigurationError
from entrepot.market.client import Client
from entrepot.market.dealer import check_connectable
from entrepot.mediums.shm import ShmMedium
from entrepot.settings import Settings
from entrepot.sidecar.api import routes
from entrepot.sidecar.auth import Guard, read_token
from entrepot.sidecar.market import MarketWatch
from entrepot.sidecar.metrics import registry_of
from entrepot.sidecar.page import pages
from entrepot.sidecar.problems import handle_problems, problem
from entrepot.sidecar.studies import StoreWatch
from entrepot.store.opening import check_url, open_store

PROBES = ("/healthz", "/readyz")
EVENTS = "/api/v1/events"

LOOK_ATTEMPTS = 2
"""How often a look at a bucket that does not answer is tried before that is said."""

STATIC = Path(__file__).with_name("static")

_HEADERS = {
    # Nothing that the page needs comes from anywhere else, and nobody frames it.
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; "
    "base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


class HeadAsGet:
    """What can be asked for with GET can be with HEAD; the server leaves the body out.

    But for the stream of news, which never ends.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "HEAD" and scope["path"] != EVENTS:
            scope = {**scope, "method": "GET"}
        await self._app(scope, receive, send)


def watches_of(settings: Settings) -> tuple[MarketWatch, StoreWatch | None]:
    """What watches the broker and the store that are set; neither is started.

    :raises ConfigurationError: neither a broker nor a store can ever be where the settings say.
    """
    mine = settings.sidecar
    check_connectable(settings.client.endpoint)
    if mine.store is not None:
        check_url(mine.store)

    def ask() -> Client:
        medium = ShmMedium.create(1, 1)
        try:
            return Client(
                settings.client.endpoint, medium, name="sidecar", timeout_s=mine.timeout_s
            )
        except BaseException:
            medium.close()
            raise

    market = MarketWatch(
        ask, every_s=mine.market_every_s, timeout_s=mine.timeout_s, keep_s=mine.keep_s
    )
    if mine.store is None:
        return market, None
    url = mine.store
    # It looks again anyway: what a patient look would wait for is not known to anybody meanwhile.
    attempts = min(LOOK_ATTEMPTS, settings.store.attempts)
    brief = settings.store.model_copy(update={"attempts": attempts})
    store = StoreWatch(
        lambda: open_store(url, read_only=True, settings=brief),
        every_s=mine.store_every_s,
        stale_s=mine.stale_s,
        most=mine.max_followed,
    )
    return market, store


def create_app(
    settings: Settings,
    market: MarketWatch | None = None,
    store: StoreWatch | None = None,
    clock: Callable[[], float] = time.time,
) -> FastAPI:
    """The application. Watches that are not given are made from the settings.

    :raises ConfigurationError: the token cannot be read, or no broker or store can ever be where
        the settings say.
    """
    mine = settings.sidecar
    if market is None:
        if store is not None:
            raise ConfigurationError("a store's watch was given without the market's; give both")
        market, store = watches_of(settings)
    guard = Guard(read_token(mine.token_file))
    registry = registry_of(
        market, store, max_products=mine.max_products, max_studies=mine.max_studies, clock=clock
    )
    watches = [watch for watch in (market, store) if watch is not None]

    @asynccontextmanager
    async def life(_app: FastAPI) -> AsyncIterator[None]:
        for watch in watches:
            watch.start()
        try:
            yield
        finally:
            for watch in watches:
                watch.stop()

    app = FastAPI(
        title="Entrepot",
        version=__version__,
        description="What the broker and the store know.",
        lifespan=life,
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/v1/openapi.json",
    )
    handle_problems(app)

    @app.middleware("http")
    async def guarded(
        request: Request, go_on: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        path = request.url.path
        is_open = path in PROBES or path == "/metrics"
        if not (is_open and mine.open_metrics) and not guard.allows(
            request.headers.get("authorization")
        ):
            asks = 'Basic realm="entrepot", charset="UTF-8"' if path == "/" else "Bearer"
            refused: Response = problem(
                401, "give the token: Authorization: Bearer ...", {"WWW-Authenticate": asks}
            )
            return refused
        response = await go_on(request)
        response.headers.update(_HEADERS)
        return response

    @app.get("/healthz", tags=["probes"], response_class=PlainTextResponse)
    async def healthz() -> str:
        """Whether the process is alive; asks nobody."""
        return "ok\n"

    @app.get(
        "/readyz",
        tags=["probes"],
        response_class=PlainTextResponse,
        responses={503: {"description": "The broker does not answer."}},
    )
    async def readyz() -> Response:
        """Whether the broker answers."""
        seen = market.seen
        if seen.up:
            return PlainTextResponse("ok\n")
        return PlainTextResponse(f"the broker does not answer: {seen.why}\n", 503)

    @app.get("/metrics", tags=["probes"], response_class=PlainTextResponse)
    def metrics(request: Request) -> Response:
        """For Prometheus."""
        encode, kind = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(registry), headers={"Content-Type": kind})

    app.add_middleware(HeadAsGet)
    app.include_router(routes(market, store, max_listeners=mine.max_listeners, clock=clock))
    app.include_router(pages(market, store, settings, clock))
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    return app
