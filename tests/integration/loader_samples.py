"""What loaders' tests train on: products that say what they are; see ``market_products``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from entrepot import Contract, ShmMedium, TensorSpec
from entrepot.mediums import shm
from entrepot.training import SoftDataLoader
from tests.integration.market_processes import Market
from tests.integration.market_products import Made, read

NBYTES = 256
CONTRACT = Contract([TensorSpec("said", (NBYTES,), "bytes")])

WAYS: dict[str, dict[str, Any]] = {
    "here": {},
    "fork": {"num_workers": 2, "multiprocessing_context": "fork"},
    "spawn": {"num_workers": 2, "multiprocessing_context": "spawn"},
}
"""Where samples are made into batches."""

LIMIT_S = 60.0


def loader_of(market: Market, product_id: str | None = None, **options: Any) -> SoftDataLoader:
    """A loader at that market's broker."""
    options = {"timeout_s": LIMIT_S} | options
    return SoftDataLoader(market.frontend, CONTRACT, product_id, **options)


def train(**options: Any) -> dict[str, Any]:
    """Options of a loader of indexed products."""
    return {"products": "train/{index}"} | options


def samples_of(data: Any) -> list[Made]:
    """What the samples of a batch, or one sample, say of themselves; each must be whole."""
    said = data["said"]
    rows = [said] if said.ndim == 1 else list(said)
    found = []
    for row in rows:
        whole = bytes(row.numpy() if hasattr(row, "numpy") else row)
        named = whole.split(b"\0")[0].decode()
        found.append(read(named, whole))
    return found


def products_of(data: Any) -> list[str]:
    return [made.product_id for made in samples_of(data)]


def indices_of(batches: Iterable[Any]) -> list[int]:
    """The indices of indexed products, in the order in which they came."""
    return list(_indices(batches))


def _indices(batches: Iterable[Any]) -> Iterator[int]:
    for batch in batches:
        for product in products_of(batch):
            yield int(product.rpartition("/")[2])


# --- what is left -----------------------------------------------------------------------


def noted(folder: Path, slot_nbytes: int, slots: int) -> ShmMedium:
    """Makes a medium, and a file in ``folder`` that is called as its segment is."""
    made = ShmMedium.create(slot_nbytes, slots)
    (folder / made.address.partition(":")[2]).touch()
    return made


def left_of(folder: Path) -> list[str]:
    """The segments that were noted there and are still there; others may run tests as well."""
    made = [path.name for path in folder.iterdir() if path.name.startswith(shm.PREFIX)]
    assert made, "nothing was noted"
    return [name for name in made if (shm.DIRECTORY / name).exists()]
