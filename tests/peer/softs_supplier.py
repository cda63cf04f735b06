"""softs' own Supplier, driven. Runs in the peer's environment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import softs  # type: ignore[import-not-found]
import torch

from tests.peer.generator import Generator
from tests.peer.lines import commands, serve
from tests.peer.softs_loader import config_of

MEDIUMS = {
    "shm": softs.ShmMedium,
    "file": softs.FilesystemMedium,
    "tcp": softs.TCPMedium,
}


def batches(specs: list[dict[str, Any]]) -> Callable[[str], bytes]:
    """A function for products named ``<anything>_<k>``: every tensor is full of k."""
    config = config_of(specs)

    def make(product_id: str) -> bytes:
        value = int(product_id.rpartition("_")[2])
        data: bytes = config.encode(
            **{
                spec.name: torch.full(spec.shape, value, dtype=spec.torch_dtype)
                for spec in config.specs
            }
        )
        return data

    return make


class Driven:
    """The commands."""

    supplier: Any
    generator: Generator

    def start(
        self,
        endpoint: str,
        patterns: list[str],
        medium: str = "tcp",
        specs: list[dict[str, Any]] | None = None,
        **behaviour: Any,
    ) -> int:
        self.generator = Generator(**behaviour)
        self.supplier = softs.Supplier(
            batches(specs) if specs else self.generator, patterns, endpoint, MEDIUMS[medium], 0
        )
        self.supplier.start()
        peer_id: int = self.supplier._peer_id
        return peer_id

    def calls(self) -> list[str]:
        return self.generator.calls()

    def release(self) -> None:
        self.generator.release()

    def running(self) -> bool:
        return bool(self.supplier._main_thread.is_alive())

    def stop(self, release: bool = True) -> None:
        """GOODBYE, and the end of its thread unless that is held."""
        if release:
            self.generator.release()
        self.supplier.stop()


if __name__ == "__main__":
    serve(commands(Driven()))
