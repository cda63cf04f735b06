"""softs' own dataset and loader, driven. Runs in the peer's environment."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import softs  # type: ignore[import-not-found]

from tests.peer.lines import commands, serve

MEDIUMS = {"shm": softs.ShmMedium, "tcp": softs.TCPMedium}


def config_of(specs: list[dict[str, Any]]) -> Any:
    """The peer's contract; its tensors' shapes must be tuples, which JSON has not."""
    return softs.BatchConfig(
        [softs.TensorSpec(spec["name"], tuple(spec["shape"]), spec["dtype"]) for spec in specs]
    )


class Driven:
    """The commands."""

    loader: Any
    batches: Iterator[Any]

    def start(
        self,
        endpoint: str,
        product: str,
        specs: list[dict[str, Any]],
        medium: str = "tcp",
        num_slots: int = 8,
        batch_size: int | None = None,
        request_timeout: float = 30.0,
    ) -> None:
        """The bare dataset without a ``batch_size``, the loader with one."""
        kind = softs.SoftIterableDataset if batch_size is None else softs.SoftDataLoader
        options = {} if batch_size is None else {"batch_size": batch_size}
        self.loader = kind(
            product,
            endpoint,
            config_of(specs),
            MEDIUMS[medium],
            num_slots=num_slots,
            request_timeout=request_timeout,
            **options,
        )
        self.batches = iter(self.loader)

    def next(self, count: int = 1) -> list[dict[str, Any]]:
        """``count`` samples or batches, each tensor as nested lists."""
        return [
            {name: tensor.tolist() for name, tensor in next(self.batches).items()}
            for _ in range(count)
        ]

    def set_model(self, product: str) -> None:
        self.loader.set_model(product)


if __name__ == "__main__":
    serve(commands(Driven()))
