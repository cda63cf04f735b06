"""The API: figures of the broker, studies and trials."""

from __future__ import annotations

import asyncio
import json
import time
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any, Literal

from fastapi import APIRouter, HTTPException, Path, Query, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel
from starlette.convertors import Convertor, register_url_convertor

from entrepot.sidecar.market import MarketWatch
from entrepot.sidecar.shown import said_study, said_trial
from entrepot.sidecar.studies import ABANDONED, StoreWatch
from entrepot.study.plain import plain

MOST = 1_000
"""Trials in one answer."""

KEEP_ALIVE_S = 15.0
"""Seconds after which a stream without news says so, lest somebody in between closes it."""

BIGGEST = 2**53 - 1
"""The largest whole number that every reader of JSON keeps."""


class _Whole(Convertor[str]):
    """Any text in a path. ``path``, which the framework has, ends at the end of a line."""

    regex = r"[\s\S]+"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("whole", _Whole())

State = Literal["running", "done", "pruned", "failed", "released", "abandoned"]
StudyName = Annotated[str, Path(description="The study's name; it may have slashes.")]


class Problem(BaseModel):
    """What went wrong (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str


_PROBLEM = {"application/problem+json": {"schema": Problem.model_json_schema()}}
_INVALID: dict[int | str, dict[str, Any]] = {
    422: {"description": "An argument that cannot be.", "content": _PROBLEM}
}
_ABSENT: dict[int | str, dict[str, Any]] = {
    **_INVALID,
    404: {"description": "There is none of that name.", "content": _PROBLEM},
    503: {"description": "The store cannot be read.", "content": _PROBLEM},
}


def routes(
    market: MarketWatch,
    store: StoreWatch | None,
    *,
    max_listeners: int,
    clock: Callable[[], float] = time.time,
) -> APIRouter:
    """The routes below ``/api/v1``."""
    router = APIRouter(prefix="/api/v1", tags=["api"])
    listeners = asyncio.Semaphore(max_listeners)

    def followed() -> StoreWatch:
        if store is None:
            raise HTTPException(
                404, "no store is followed: start it with --store, or ENTREPOT_SIDECAR__STORE"
            )
        return store

    @router.get("/stats")
    def stats() -> dict[str, Any]:
        """What the broker last said, and whether it still answers."""
        seen = market.seen
        return {"up": seen.up, "at": seen.at, "why": seen.why, "stats": plain(seen.stats)}

    @router.get("/studies", responses=_ABSENT)
    def studies(
        limit: Annotated[int, Query(ge=1, le=MOST)] = 100,
        after: Annotated[int, Query(ge=0, le=BIGGEST, description="Studies to pass over.")] = 0,
    ) -> dict[str, Any]:
        """The studies, what was written last first."""
        watch = followed()
        seen = watch.seen
        every = list(seen.studies.values())
        shown = every[after : after + limit]
        now = clock()
        return {
            "up": seen.up,
            "at": seen.at,
            "why": seen.why,
            "total": len(every) + seen.left_out,
            "studies": [said_study(each, now) for each in shown],
            "next": after + limit if after + limit < len(every) else None,
        }

    @router.get("/studies/{study:whole}/trials/{trial}/curve", responses=_ABSENT)
    def curve(study: StudyName, trial: Annotated[int, Path(ge=0, le=BIGGEST)]) -> dict[str, Any]:
        """What a trial has reported, whole."""
        return {"trial": trial, "reports": plain(followed().curve(study, trial))}

    @router.get("/studies/{study:whole}/trials", responses=_ABSENT)
    def trials(
        study: StudyName,
        state: Annotated[State | None, Query(description="Only those in this state.")] = None,
        after: Annotated[
            int | None, Query(ge=0, le=BIGGEST, description="The last trial that was shown.")
        ] = None,
        limit: Annotated[int, Query(ge=1, le=MOST)] = 100,
    ) -> dict[str, Any]:
        """Trials, by number. ``next`` is what to give as ``after`` for more; null at the end."""
        watch = followed()
        every = watch.trials(study)
        start = 0 if after is None else bisect_right(every, after, key=lambda one: one.trial)
        seen = watch.seen.studies.get(study)
        silent = {each.trial for each in seen.abandoned} if seen is not None else set()
        found: list[dict[str, Any]] = []
        more = False
        for attempt in every[start:]:
            said = said_trial(attempt)
            if attempt.trial in silent:
                said["state"] = ABANDONED
            if state is not None and said["state"] != state:
                continue
            if len(found) == limit:
                more = True
                break
            found.append(said)
        return {"trials": found, "next": found[-1]["trial"] if more else None}

    @router.get("/studies/{study:whole}", responses=_ABSENT)
    def study(study: StudyName) -> dict[str, Any]:
        """One study."""
        watch = followed()
        seen = watch.seen.studies.get(study)
        if seen is None:
            watch.trials(study)  # says that there is none
            raise HTTPException(404, f"no study is named {study!r:.100} in this store")
        return said_study(seen, clock())

    @router.get(
        "/events",
        response_class=StreamingResponse,
        responses={
            200: {"content": {"text/event-stream": {}}},
            503: {"description": "Too many listen.", "content": _PROBLEM},
        },
    )
    async def events(request: Request) -> StreamingResponse:
        """News, as they come: a stream of server-sent events, ``stats`` and ``studies``."""
        if listeners.locked():
            raise HTTPException(
                503, "too many listen already; ask again, or raise ENTREPOT_SIDECAR__MAX_LISTENERS"
            )
        await listeners.acquire()
        return StreamingResponse(
            _news(request, market, store, listeners.release),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )

    return router


async def _news(
    request: Request,
    market: MarketWatch,
    store: StoreWatch | None,
    done: Callable[[], None],
) -> AsyncIterator[str]:
    told: tuple[object, object] = (None, None)
    quiet_since = time.monotonic()
    try:
        while not await request.is_disconnected():
            seen = (market.seen, None if store is None else store.seen)
            if seen[0] is not told[0]:
                yield _event(
                    "stats",
                    {
                        "up": seen[0].up,
                        "why": seen[0].why,
                        "at": seen[0].at,
                        "orders": seen[0].stats.get("orders", {}),
                    },
                )
            if seen[1] is not None and seen[1] is not told[1]:
                yield _event(
                    "studies",
                    {
                        "up": seen[1].up,
                        "why": seen[1].why,
                        "at": seen[1].at,
                        "states": {
                            each.name: each.states for each in list(seen[1].studies.values())[:100]
                        },
                    },
                )
            if seen != told:
                told, quiet_since = seen, time.monotonic()
            elif time.monotonic() - quiet_since > KEEP_ALIVE_S:
                quiet_since = time.monotonic()
                yield ": nothing new\n\n"
            await asyncio.sleep(0.25)
    finally:
        done()


def _event(name: str, said: dict[str, Any]) -> str:
    return f"event: {name}\ndata: {json.dumps(plain(said))}\n\n"
