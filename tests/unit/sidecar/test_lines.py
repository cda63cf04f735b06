"""How long a connection may hold what others need."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from uvicorn import Config
from uvicorn.server import ServerState

from entrepot.sidecar import lines
from entrepot.sidecar.lines import Line

ASK = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
WAIT_S = 20
SHORT_S = 0.05
"""For a request that does not come; one that does may be late on a busy machine."""


def app(nbytes: int) -> Callable[..., Awaitable[None]]:
    async def answer(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x" * nbytes, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    return answer


@asynccontextmanager
async def serving(
    nbytes: int = 1, kind: type[Line] = Line
) -> AsyncIterator[tuple[int, ServerState]]:
    config = Config(app(nbytes), log_config=None)
    config.load()
    state = ServerState()
    server = await asyncio.get_running_loop().create_server(
        lambda: kind(config, state, {}), "127.0.0.1", 0
    )
    try:
        yield server.sockets[0].getsockname()[1], state
    finally:
        server.close()
        for line in list(state.connections):
            assert isinstance(line, Line)
            line.cut()
        await asyncio.wait([*state.tasks, asyncio.create_task(asyncio.sleep(0))])


async def end(reader: asyncio.StreamReader) -> bytes:
    """What comes until the other side ends the connection."""
    try:
        return await asyncio.wait_for(reader.read(), WAIT_S)
    except ConnectionError:
        return b""


@pytest.mark.parametrize("begun", [b"", b"GET / HTTP/1.1\r\nHo", ASK + b"GET /", ASK + b"\r\n"])
def test_a_request_that_does_not_come_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, begun: bytes
) -> None:
    monkeypatch.setattr(lines, "HEAD_S", WAIT_S if ASK in begun else SHORT_S)

    class Hears(Line):
        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            monkeypatch.setattr(lines, "HEAD_S", SHORT_S)

    async def scene() -> None:
        async with serving(kind=Hears) as (port, state):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(begun)
            said = await end(reader)
            assert said.startswith(b"HTTP/1.1 200" if ASK in begun else b"")
            assert not state.connections
            writer.close()

    asyncio.run(scene())


def test_an_answer_that_nobody_takes_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "TAKE_S", 0.05)

    async def scene() -> None:
        over = asyncio.Event()

        class Watched(Line):
            def connection_lost(self, exc: Exception | None) -> None:
                super().connection_lost(exc)
                over.set()

        async with serving(nbytes=32 << 20, kind=Watched) as (port, state):
            with socket.create_connection(("127.0.0.1", port)) as line:
                line.sendall(ASK)
                await asyncio.wait_for(over.wait(), WAIT_S)
                assert not state.connections

    asyncio.run(scene())


def test_of_too_many_the_one_that_is_silent_longest_is_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lines, "MOST", 2)

    async def scene() -> None:
        async with serving() as (port, _):
            first, one = await asyncio.open_connection("127.0.0.1", port)
            second, two = await asyncio.open_connection("127.0.0.1", port)
            two.write(ASK)
            assert await asyncio.wait_for(second.readline(), WAIT_S) == b"HTTP/1.1 200 OK\r\n"
            third, three = await asyncio.open_connection("127.0.0.1", port)
            assert await end(first) == b""
            three.write(ASK)
            assert await asyncio.wait_for(third.readline(), WAIT_S) == b"HTTP/1.1 200 OK\r\n"
            for writer in (one, two, three):
                writer.close()

    asyncio.run(scene())
