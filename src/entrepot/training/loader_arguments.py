"""What a loader was given: checked, with the defaults that depend on one another."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

from entrepot.arguments import (
    checked_callable,
    checked_int,
    checked_kind,
    checked_seconds,
    checked_text,
    shown,
)
from entrepot.contract import Contract
from entrepot.errors import ConfigurationError
from entrepot.market.protocol import ID_CHARS
from entrepot.mediums.base import Medium
from entrepot.training.epochs import Shard
from entrepot.training.loader_batches import Collate, Form, Framework, import_torch
from entrepot.training.loader_feed import INDEX, MakeMedium, Setup

PREFETCH_NBYTES = 32 << 20
"""Memory for what is ordered ahead, where nothing else is said."""

PREFETCH_LEAST, PREFETCH_MOST = 4, 64

MEDIUMS = ("shm", "file", "tcp")


@dataclass(frozen=True)
class Given:
    """The arguments of :class:`entrepot.training.SoftDataLoader`."""

    endpoint: str
    contract: Contract
    product_id: str | None
    products: Callable[[int], str] | str | None
    length: int | None
    batch_size: int | None
    collate_fn: Collate | None
    drop_last: bool
    shuffle: bool
    seed: int
    ordered: bool
    rank: int | None
    world: int | None
    medium: str | MakeMedium | None
    prefetch: int | None
    num_workers: int
    context: Any
    timeout_s: float | None
    pin_memory: bool
    progress: bool
    framework: Framework
    name: str

    def checked(self) -> Given:
        """Itself.

        :raises ConfigurationError: something in it cannot be.
        :raises MissingExtra: torch is needed and not installed.
        """
        checked_text("endpoint", self.endpoint)
        checked_kind("contract", self.contract, Contract, "Contract.from_yaml(path) reads one")
        self._check_products()
        for name, least in (("batch_size", 1), ("length", 0), ("prefetch", 1)):
            if getattr(self, name) is not None:
                checked_int(name, getattr(self, name), least)
        checked_int("num_workers", self.num_workers, 0)
        checked_int("seed", self.seed, 0, 2**64 - 1)
        checked_text("name", self.name)
        if self.timeout_s is not None:
            checked_seconds("timeout_s", self.timeout_s)
        if self.collate_fn is not None:
            checked_callable("collate_fn", self.collate_fn)
            if self.batch_size is None:
                raise ConfigurationError(
                    "collate_fn makes a batch of samples; say of how many with batch_size"
                )
        if self.framework not in get_args(Framework):
            raise ConfigurationError(
                f"framework is 'torch' or 'numpy', got {shown(self.framework)}"
            )
        self._check_medium()
        self._check_rank()
        if self.framework == "torch" or self.num_workers:
            import_torch()
        return self

    def _check_products(self) -> None:
        if (self.product_id is None) == (self.products is None):
            raise ConfigurationError(
                "give the product_id of a stream, or products and length: one of the two"
            )
        if self.product_id is not None:
            checked_text("product_id", self.product_id, ID_CHARS)
            if self.shuffle:
                raise ConfigurationError(
                    "a stream has no order to shuffle; give products and length, or shuffle=False"
                )
            return
        if isinstance(self.products, str):
            checked_pattern("products", self.products)
        else:
            checked_callable("products", self.products)
        if self.length is None:
            raise ConfigurationError("products have indices: say how many with length")

    def _check_medium(self) -> None:
        if isinstance(self.medium, Medium):
            raise ConfigurationError(
                f"medium is {shown(self.medium)}, which belongs to this process, and a loader "
                f"makes its own where it runs: give what makes one, such as "
                f"{type(self.medium).__name__}.create"
            )
        if isinstance(self.medium, str):
            if self.medium not in MEDIUMS:
                raise ConfigurationError(
                    f"medium is one of {', '.join(MEDIUMS)}, or what makes one; got "
                    f"{shown(self.medium)}"
                )
        elif self.medium is not None:
            checked_callable("medium", self.medium)

    def _check_rank(self) -> None:
        if (self.rank is None) != (self.world is None):
            raise ConfigurationError(
                f"rank is {self.rank} and world is {self.world}: give both, or neither"
            )
        if self.rank is not None:
            world = checked_int("world", self.world, 1)
            checked_int("rank", self.rank, 0, world - 1)

    # --- what follows from it -----------------------------------------------------------

    @property
    def indexed(self) -> bool:
        """Whether products have indices; else it is a stream."""
        return self.products is not None

    @property
    def in_turn(self) -> bool:
        """Whether batches have an order."""
        return self.indexed and self.ordered

    @property
    def source(self) -> str:
        """What a plan says of where products come from."""
        if self.product_id is not None:
            return self.product_id
        return self.products if isinstance(self.products, str) else ""

    def shard(self, epoch: int) -> Shard:
        """What this rank has of an epoch."""
        rank, world = self.ranks()
        assert self.length is not None
        return Shard(
            self.length,
            epoch,
            self.seed if self.shuffle else None,
            rank,
            world,
            (self.batch_size or 1) if self.drop_last else 0,
        )

    def ranks(self) -> tuple[int, int]:
        """Which of how many this process is."""
        if self.rank is not None and self.world is not None:
            return self.rank, self.world
        distributed = sys.modules.get("torch.distributed")  # nobody has begun it without this
        if distributed and distributed.is_available() and distributed.is_initialized():
            return distributed.get_rank(), distributed.get_world_size()
        return 0, 1

    def setup(self) -> Setup:
        """What its feeds are told."""
        prefetch = self.prefetch
        if prefetch is None:
            fits = PREFETCH_NBYTES // max(self.contract.nbytes, 1)
            prefetch = max(min(fits, PREFETCH_MOST), PREFETCH_LEAST, self.batch_size or 1)
        function = self.products if callable(self.products) else None
        medium = self.medium if callable(self.medium) else partial(from_settings, self.medium)
        pinned = self.pin_memory and self.framework == "torch" and _has_accelerator()
        return Setup(
            self.endpoint,
            Form(self.contract, self.framework, self.batch_size, self.collate_fn, pinned),
            medium,
            prefetch,
            # Those that are with suppliers at a switch are free only when these have finished.
            prefetch + max(2, prefetch // 2),
            function,
            self.ordered,
            self.timeout_s,
            self.name,
        )


def checked_pattern(name: str, pattern: str) -> str:
    """The ids of indexed products, if each index has another.

    :raises ConfigurationError: it has no index in it.
    """
    if INDEX not in checked_text(name, pattern, ID_CHARS):
        raise ConfigurationError(
            f"{name} is {shown(pattern)}; it needs an {INDEX} in it, as in 'train/{INDEX}', or all "
            f"indices would be one product"
        )
    return pattern


def from_settings(kind: str | None, slot_nbytes: int, slots: int) -> Medium:
    """A medium of that kind, or of the one that the environment asks for."""
    from entrepot.mediums.chosen import create
    from entrepot.settings import read_settings

    shape = {"slot_nbytes": slot_nbytes, "slots": slots}
    said = read_settings().client.model_copy(update=shape | ({"medium": kind} if kind else {}))
    return create(said)


def _has_accelerator() -> bool:
    torch = import_torch()
    accelerator = getattr(torch, "accelerator", torch.cuda)
    found: bool = accelerator.is_available()
    return found
