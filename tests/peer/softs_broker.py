"""softs' own Broker, driven, for the benchmark. Runs in the peer's environment."""

from __future__ import annotations

from typing import Any

import softs  # type: ignore[import-not-found]

from tests.peer.lines import commands, serve


class Driven:
    """The commands."""

    broker: Any

    def start(self, frontend: str, backend: str, max_queue_per_product: int = 4096) -> None:
        self.broker = softs.Broker(
            softs.EndpointConfig(frontend, backend), max_queue_per_product=max_queue_per_product
        )
        self.broker.start()

    def stop(self) -> None:
        self.broker.stop()


if __name__ == "__main__":
    serve(commands(Driven()))
