"""softs' own encoding, driven: makes and reads version-1 messages. Runs in its environment."""

from __future__ import annotations

from typing import Any

from softs.market import protocol  # type: ignore[import-not-found]

from tests.peer.lines import serve


def request(command: str, fields: dict[str, Any]) -> list[str]:
    """The frames of a message with a command, as the peer makes them, in hex."""
    return [frame.hex() for frame in protocol.make_request(command.encode(), fields)]


def read_request(frames: list[str]) -> tuple[str, dict[str, Any]]:
    """The command and fields that the peer reads in ``frames``."""
    command, fields = protocol.parse_request([bytes.fromhex(frame) for frame in frames])
    return command.decode(), fields


def read_answer(frames: list[str]) -> dict[str, Any]:
    fields: dict[str, Any] = protocol.decode_payload(bytes.fromhex(frames[-1]))
    return fields


def accept(kind: str, fields: dict[str, Any]) -> None:
    """The peer's own check of what a message holds."""
    getattr(protocol, kind)(**fields)


if __name__ == "__main__":
    serve(
        {
            "request": request,
            "read_request": read_request,
            "read_answer": read_answer,
            "accept": accept,
        }
    )
