"""From products in slots to what who trains is given: each byte is copied once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from entrepot.contract import Contract
from entrepot.errors import ContractError, MissingExtra
from entrepot.market.product import Product
from entrepot.tensors import DTYPES, TensorSpec

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

Framework = Literal["torch", "numpy"]
Collate = Callable[[list[dict[str, Any]]], Any]

SENT_AT_MOST = 1 << 15
"""Bytes of a tensor that a worker sends through its pipe. A larger one takes shared memory: a file,
a connection and half a millisecond, whatever its size."""


@dataclass(frozen=True)
class Form:
    """What is made of products.

    :ivar rows: samples of a batch; None gives each sample as it is.
    :ivar collate: makes a batch of samples, in place of stacking them.
    :ivar pinned: torch tensors in memory that is not paged out.
    :ivar sent: for another process, which calls :func:`received`.
    """

    contract: Contract
    framework: Framework
    rows: int | None
    collate: Collate | None = None
    pinned: bool = False
    sent: bool = False


class Batch:
    """One that is being filled."""

    def __init__(self, form: Form) -> None:
        self._form = form
        self._filled = 0
        self._samples: list[dict[str, Any]] = []
        self._columns: list[_Column] = []
        if form.collate is None:
            self._columns = [_Column(spec, form) for spec in form.contract.specs]

    def add(self, product: Product) -> None:
        """The next sample.

        :raises ContractError: its bytes are not the contract's.
        """
        contract = self._form.contract
        try:
            if self._form.collate is not None:
                sample = contract.decode(product, framework=self._form.framework)
                self._samples.append(sample)
            else:
                arrays = contract.decode(product, copy=False)
                for column in self._columns:
                    column.put(self._filled, arrays[column.spec.name])
        except ContractError as error:
            raise ContractError(f"{product.product_id!r}: {error}") from error
        self._filled += 1

    def finish(self) -> Any:
        """The batch, of as many samples as there are."""
        form = self._form
        if form.collate is not None:
            return form.collate(self._samples)
        return {column.spec.name: column.finish(self._filled) for column in self._columns}


class _Column:
    """One tensor of a batch, or of a sample."""

    def __init__(self, spec: TensorSpec, form: Form) -> None:
        self.spec = spec
        self._form = form
        self._ragged: list[Any] = []
        if not spec.ragged:
            lead = () if form.rows is None else (form.rows,)
            self._place, self._whole = _made(spec, (*lead, *spec.shape), form)

    def put(self, row: int, array: Array) -> None:
        if self.spec.ragged:
            place, whole = _made(self.spec, array.shape, self._form)
            self._ragged.append(whole)
        else:
            place = self._place if self._form.rows is None else self._place[row : row + 1]
        _copy(self.spec, array, place)

    def finish(self, rows: int) -> Any:
        if self.spec.ragged:  # of different sizes, so they are not one tensor
            return self._ragged[0] if self._form.rows is None else self._ragged
        whole = self._whole
        return whole if self._form.rows in (None, rows) else whole[:rows]


def _copy(spec: TensorSpec, array: Array, place: Array) -> None:
    if spec.dtype == "bool":  # any byte may have come; a bool that is neither 0 nor 1 is none
        np.not_equal(array.view(np.uint8), 0, out=place)
    else:
        place[...] = array


def _made(spec: TensorSpec, shape: tuple[int, ...], form: Form) -> tuple[Array, Any]:
    """Memory of that shape: as an array to write to, and as what is handed out."""
    nbytes = math.prod(shape) * spec.itemsize
    if form.framework == "numpy" or (form.sent and nbytes <= SENT_AT_MOST):
        array: Array = np.empty(shape, DTYPES[spec.dtype])
        return array, array
    torch = import_torch()
    if form.sent:
        flat = torch.empty(0, dtype=torch.uint8)
        flat.set_(torch.UntypedStorage._new_shared(nbytes), 0, (nbytes,))
    else:
        flat = torch.empty(nbytes, dtype=torch.uint8, pin_memory=form.pinned)
    place: Array = np.ndarray(shape, DTYPES[spec.dtype], flat.numpy())
    return place, flat.view(_dtype(torch, spec)).view(shape)


def received(form: Form, data: Any) -> Any:
    """What :meth:`Batch.finish` gave in another process, as the form without ``sent`` has it."""
    if form.collate is not None or form.framework == "numpy":
        return data
    torch = import_torch()

    def tensor(spec: TensorSpec, value: Any) -> Any:
        if not isinstance(value, np.ndarray):
            return value
        made = torch.from_numpy(value).view(_dtype(torch, spec))
        return made.pin_memory() if form.pinned else made

    def tensors() -> Iterator[tuple[str, Any]]:
        for spec in form.contract.specs:
            value = data[spec.name]
            if isinstance(value, list):
                yield spec.name, [tensor(spec, each) for each in value]
            else:
                yield spec.name, tensor(spec, value)

    return dict(tensors())


def _dtype(torch: Any, spec: TensorSpec) -> Any:
    return getattr(torch, "uint8" if spec.dtype == "bytes" else spec.dtype)


def import_torch() -> Any:
    """torch, which takes seconds to load.

    :raises MissingExtra: it is not installed.
    """
    try:
        import torch
    except ImportError as error:
        raise MissingExtra(
            "a loader gives torch tensors and may have workers with torch, which is not "
            "installed; pip install 'entrepot[torch]', or ask for framework='numpy'"
        ) from error
    return torch
