"""Optuna's own studies in a store: a folder or a bucket, with no server between the machines."""

from __future__ import annotations

from entrepot.errors import MissingExtra

try:
    import optuna as _optuna  # noqa: F401
except ImportError as error:
    raise MissingExtra(
        "a storage for Optuna needs Optuna, which is not installed; "
        "pip install 'entrepot[study-optuna]'"
    ) from error

from entrepot.study.optuna.storage import EntrepotStorage

__all__ = ["EntrepotStorage"]
