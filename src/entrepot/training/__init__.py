"""Training on products: a loader for who trains, a teacher for who is learned from.

Both are loaded when they are first asked for, so that a loader of numpy arrays needs no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from entrepot.training.loader import SoftDataLoader
    from entrepot.training.teacher import Teacher

_HOMES = {
    "SoftDataLoader": "entrepot.training.loader",
    "Teacher": "entrepot.training.teacher",
}

__all__ = ["SoftDataLoader", "Teacher"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'entrepot.training' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
