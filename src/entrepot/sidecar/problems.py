"""Errors of the API, as problem+json (RFC 9457)."""

from __future__ import annotations

from http import HTTPStatus

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from entrepot.errors import EntrepotError, NoStudy, StoreError
from entrepot.logs import masked

PROBLEM = "application/problem+json"


def problem(
    status: int, detail: str, headers: dict[str, str] | None = None, code: str = ""
) -> JSONResponse:
    """An answer that says what was wrong."""
    said = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": masked(detail),
    }
    if code:
        said["code"] = code
    return JSONResponse(said, status, headers=headers, media_type=PROBLEM)


def handle_problems(app: FastAPI) -> None:
    """Have every error of ``app`` be one."""

    @app.exception_handler(HTTPException)
    async def _http(_request: Request, fault: HTTPException) -> JSONResponse:
        return problem(fault.status_code, str(fault.detail), dict(fault.headers or {}))

    @app.exception_handler(RequestValidationError)
    async def _invalid(_request: Request, fault: RequestValidationError) -> JSONResponse:
        said = "; ".join(
            f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in fault.errors()
        )
        return problem(422, said)

    @app.exception_handler(NoStudy)
    async def _absent(_request: Request, fault: NoStudy) -> JSONResponse:
        return problem(404, str(fault), code=fault.code)

    @app.exception_handler(StoreError)
    async def _store(_request: Request, fault: StoreError) -> JSONResponse:
        return problem(503, str(fault), {"Retry-After": "5"}, fault.code)

    @app.exception_handler(EntrepotError)
    async def _other(_request: Request, fault: EntrepotError) -> JSONResponse:
        return problem(503, str(fault), {"Retry-After": "5"}, fault.code)
