"""A process where there is no torch, which serves a stage or calls one.

``python -m tests.integration.stages.torchless_party``; see :mod:`tests.peer.lines`.
"""

from __future__ import annotations

import sys
import threading
from importlib import import_module, metadata
from importlib.util import find_spec
from typing import Any

import numpy as np

from entrepot.market.client import Client
from entrepot.mediums import Medium, ShmMedium, TCPMedium
from entrepot.stages import RemoteStage, StageServer
from tests.peer.lines import commands, serve

SLOT_NBYTES = 1 << 18
SLOTS = 4


def slots(medium: str) -> Medium:
    """A client's."""
    if medium == "tcp":
        return TCPMedium.create(SLOT_NBYTES, SLOTS)
    return ShmMedium.create(SLOT_NBYTES, SLOTS)


def tokens(texts: list[str]) -> Any:
    """The bytes of each text, as a row; 0 where a row ends earlier."""
    encoded = [text.encode() for text in texts]
    ids = np.zeros((len(encoded), max(map(len, encoded), default=0)), np.int64)
    for row, each in zip(ids, encoded, strict=True):
        row[: len(each)] = list(each)
    return ids


class Driven:
    """The commands."""

    def imported(self, name: str) -> str:
        """What comes of importing it: "" when it can be."""
        try:
            import_module(name)
        except ImportError as error:
            return f"{type(error).__name__}: {error}"
        return ""

    def got(self, name: str) -> str:
        """What comes of asking :mod:`entrepot.stages` for it."""
        try:
            getattr(import_module("entrepot.stages"), name)
        except ImportError as error:
            return f"{type(error).__name__}: {error}"
        return ""

    def found(self, name: str) -> list[str]:
        """Where it is installed, loaded, or could be loaded from."""
        found = [str(each.metadata["Name"]) for each in metadata.distributions()]
        return [*(each for each in (*found, *sys.modules) if each == name), *_spec(name)]

    def serve(self, backend: str) -> None:
        """Serve the stage; returns once it is registered."""
        server = StageServer(backend, "tokens", tokens, version="1", name="torchless")
        threading.Thread(target=server.run, daemon=True).start()
        server.wait_registered(30)

    def call(self, frontend: str, medium: str, texts: list[str]) -> tuple[str, Any]:
        """The ids' dtype, and the ids."""
        with Client(frontend, slots(medium)) as client:
            ids = RemoteStage(client, "tokens", version="1", timeout_s=30)(texts)
            return str(ids.dtype), ids.tolist()


def _spec(name: str) -> list[str]:
    spec = find_spec(name)
    return [] if spec is None else [str(spec.origin)]


if __name__ == "__main__":
    serve(commands(Driven()))
