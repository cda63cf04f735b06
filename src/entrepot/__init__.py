"""Entrepot: a market for training data and a study without a server."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from entrepot.contract import Contract
    from entrepot.market.batch import Batch
    from entrepot.market.broker import Broker
    from entrepot.market.client import Client
    from entrepot.market.supplier import Supplier
    from entrepot.mediums.filesystem import FilesystemMedium
    from entrepot.mediums.shm import ShmMedium
    from entrepot.mediums.tcp import TCPMedium
    from entrepot.store.base import Store
    from entrepot.tensors import TensorSpec

__version__ = "0.1.0"

_HOMES = {
    "Batch": "entrepot.market.batch",
    "Broker": "entrepot.market.broker",
    "Client": "entrepot.market.client",
    "Contract": "entrepot.contract",
    "FilesystemMedium": "entrepot.mediums.filesystem",
    "ShmMedium": "entrepot.mediums.shm",
    "Store": "entrepot.store.base",
    "Supplier": "entrepot.market.supplier",
    "TCPMedium": "entrepot.mediums.tcp",
    "TensorSpec": "entrepot.tensors",
}

__all__ = [
    "Batch",
    "Broker",
    "Client",
    "Contract",
    "FilesystemMedium",
    "ShmMedium",
    "Store",
    "Supplier",
    "TCPMedium",
    "TensorSpec",
    "__version__",
]


def __getattr__(name: str) -> Any:
    # Loaded when first asked for: a broker needs no contracts, and a client no broker.
    if name not in _HOMES:
        raise AttributeError(f"module 'entrepot' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
