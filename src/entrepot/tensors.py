"""One tensor of a contract: what it is, and its way into and out of a product's bytes."""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from entrepot.errors import ContractError, MissingExtra

try:
    import numpy as np
except ImportError as error:
    raise MissingExtra(
        "contracts need numpy, which is not installed; pip install 'entrepot[contract]'"
    ) from error

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

# How each dtype lies in a product, as numpy can say it.
DTYPES: Mapping[str, str] = {
    "float64": "<f8",
    "float32": "<f4",
    "float16": "<f2",
    "bfloat16": "<u2",
    "float8_e4m3fn": "|u1",
    "float8_e5m2": "|u1",
    "int64": "<i8",
    "int32": "<i4",
    "int16": "<i2",
    "int8": "|i1",
    "uint64": "<u8",
    "uint32": "<u4",
    "uint16": "<u2",
    "uint8": "|u1",
    "bool": "|b1",
    "bytes": "|u1",
}

RAGGED = -1
"""The size, in a shape, of the dimension whose real size each product says itself."""

MAX_NBYTES = 2**62


@dataclass(frozen=True, slots=True, init=False)
class TensorSpec:
    """One tensor of a contract.

    :ivar name: how it is called in ``encode`` and ``decode``.
    :ivar shape: its dimensions; ``()`` for a scalar. One of them may be ``-1``, ragged.
    :ivar dtype: one of :data:`DTYPES`. ``bytes`` is ``uint8`` that also takes ``bytes`` objects.
    :ivar max_ragged: the most that the ragged dimension can be; needed where there is one.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    max_ragged: int | None

    def __init__(
        self, name: str, shape: Iterable[int], dtype: object, max_ragged: int | None = None
    ) -> None:
        """A list does for ``shape``; a dtype of numpy's or torch's for ``dtype``.

        :raises ContractError: any of them cannot be.
        """
        # np.float32, np.dtype("float32") and torch.float32 say it in three ways.
        said = dtype.__name__ if isinstance(dtype, type) else str(dtype).removeprefix("torch.")
        _set = object.__setattr__
        _set(self, "name", _checked_name(name))
        _set(self, "shape", _checked_shape(name, shape, max_ragged))
        _set(self, "dtype", said)
        _set(self, "max_ragged", max_ragged)
        if said not in DTYPES:
            raise ContractError(
                f"tensor {name!r} has dtype {dtype!r}; known are {', '.join(DTYPES)}"
            )
        if self.max_nbytes > MAX_NBYTES:
            raise ContractError(
                f"tensor {name!r} of shape {list(self.shape)} is {self.max_nbytes} bytes, more "
                f"than any machine has"
            )

    @property
    def ragged(self) -> bool:
        """Whether a dimension is ragged."""
        return RAGGED in self.shape

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return int(DTYPES[self.dtype][2:])

    @property
    def max_nbytes(self) -> int:
        """Bytes of the tensor, the ragged dimension as large as it can be."""
        return self.nbytes_of(self.max_ragged or 0)

    def nbytes_of(self, ragged: int) -> int:
        """Bytes of the tensor when its ragged dimension, if there is one, is ``ragged``."""
        return math.prod(self.shape_of(ragged)) * self.itemsize

    def shape_of(self, ragged: int) -> tuple[int, ...]:
        """The shape when the ragged dimension, if there is one, is ``ragged``."""
        return tuple(ragged if size == RAGGED else size for size in self.shape)

    def to_dict(self) -> dict[str, Any]:
        """What :meth:`Contract.from_dict` takes; plain lists, strings and numbers."""
        said: dict[str, Any] = {
            "name": self.name,
            "shape": list(self.shape),
            "dtype": self.dtype,
        }
        if self.max_ragged is not None:
            said["max_ragged"] = self.max_ragged
        return said

    @classmethod
    def from_dict(cls, said: Mapping[str, Any]) -> TensorSpec:
        """The inverse of :meth:`to_dict`; keys that begin with ``_`` are dropped.

        :raises ContractError: a key is missing, or unknown.
        """
        given = plain(said, "a tensor's spec", ("name", "shape", "dtype", "max_ragged"))
        missing = {"name", "shape", "dtype"} - given.keys()
        if missing:
            raise ContractError(
                f"the spec {given} lacks {', '.join(sorted(missing))}; it reads "
                f"{{name: x, shape: [2, 3], dtype: float32}}"
            )
        return cls(**given)

    def __str__(self) -> str:
        most = f", at most {self.max_ragged}" if self.ragged else ""
        return f"{self.name}: {self.dtype} {list(self.shape)}{most}"


def _checked_name(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise ContractError(f"a tensor's name is a string that is not empty, got {name!r}")
    return name


def _checked_shape(name: str, shape: object, max_ragged: object) -> tuple[int, ...]:
    where = f"tensor {name!r} has shape"
    if isinstance(shape, (str, bytes, Mapping)) or not isinstance(shape, Iterable):
        raise ContractError(f"{where} {shape!r}; write a list of sizes, [] for a scalar")
    given = list(shape)
    try:
        sizes = tuple(operator.index(size) for size in given)
    except TypeError:
        raise ContractError(f"{where} {given}; sizes are whole numbers") from None
    if any(isinstance(size, bool) for size in given) or any(size < RAGGED for size in sizes):
        raise ContractError(
            f"{where} {given}; sizes are 0 or more, or one of them -1 for a ragged dimension"
        )
    ragged = sizes.count(RAGGED)
    if ragged > 1:
        raise ContractError(
            f"{where} {given} with {ragged} ragged dimensions; one can be, pad the others"
        )
    if ragged and (type(max_ragged) is not int or max_ragged < 0):
        raise ContractError(
            f"{where} {given} and max_ragged {max_ragged!r}; give the most that the ragged "
            f"dimension can be, so that slots are large enough"
        )
    if not ragged and max_ragged is not None:
        raise ContractError(f"{where} {given} without a -1, but max_ragged {max_ragged!r}")
    return sizes


def accept(spec: TensorSpec, value: Any) -> Any:
    """``value`` as an array or tensor of exactly the spec's shape and dtype, not yet copied."""
    torch = sys.modules.get("torch")  # nobody has a tensor without having imported it
    if torch is not None and isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or value.is_quantized or value.is_meta:
            raise ContractError(
                f"tensor {spec.name!r} is sparse, quantized or without data; give a dense one"
            )
        _check(spec, tuple(value.shape), str(value.dtype).removeprefix("torch."))
        return value.detach().resolve_neg()
    if spec.dtype == "bytes" and isinstance(value, (bytes, bytearray, memoryview)):
        array: Array = np.frombuffer(flat(value), np.uint8)
    elif isinstance(value, np.ndarray | np.generic) or hasattr(value, "__array__"):
        array = np.asarray(value)
    else:
        raise ContractError(
            f"tensor {spec.name!r} is given as a {type(value).__name__}; give an array, such as "
            f"np.asarray(value, {np.dtype(DTYPES[spec.dtype]).name!r})"
        )
    _check(spec, array.shape, array.dtype.name)
    # ml_dtypes has names for what numpy has not; the bits are the same.
    bits = np.dtype(DTYPES[spec.dtype])
    return array if array.dtype.name == bits.name else array.view(bits)


def _check(spec: TensorSpec, shape: tuple[int, ...], dtype: str) -> None:
    if dtype not in (spec.dtype, np.dtype(DTYPES[spec.dtype]).name):
        raise ContractError(
            f"tensor {spec.name!r} has dtype {dtype}, expected {spec.dtype}; convert it first"
        )
    fits = len(shape) == len(spec.shape) and all(
        size <= cast(int, spec.max_ragged) if wanted == RAGGED else size == wanted
        for size, wanted in zip(shape, spec.shape, strict=True)
    )
    if not fits:
        most = f" with at most {spec.max_ragged} for -1" if spec.ragged else ""
        raise ContractError(
            f"tensor {spec.name!r} has shape {list(shape)}, expected {list(spec.shape)}{most}"
        )


def put(spec: TensorSpec, tensor: Any, target: memoryview, start: int) -> None:
    """Copy ``tensor`` to ``start``, in one pass, whatever its strides, byte order or device."""
    place: Array = np.ndarray(tuple(tensor.shape), DTYPES[spec.dtype], target, start)
    if isinstance(tensor, np.ndarray):
        place[...] = tensor
        return
    import torch

    if place.flags.aligned:
        torch.from_numpy(place).view(tensor.dtype).copy_(tensor)
    else:
        # torch reads and writes elements at their natural alignment only.
        raw = tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        target[start : start + raw.nbytes] = raw.data


def get(
    spec: TensorSpec, data: memoryview, start: int, length: int, copy: bool, framework: str
) -> Any:
    array: Array = np.ndarray(spec.shape_of(length), DTYPES[spec.dtype], data, start)
    if framework == "numpy":
        return _own(spec, array) if copy else array
    if framework != "torch":
        raise ContractError(f"framework is {framework!r}; it is 'numpy' or 'torch'")
    try:
        import torch
    except ImportError as error:
        raise MissingExtra(
            "decoding to torch tensors needs torch, which is not installed; "
            "pip install 'entrepot[torch]'"
        ) from error
    if copy or not array.flags.aligned:
        array = _own(spec, array)
    elif not array.flags.writeable:
        array = np.asarray(_Writable(array))
    tensor = torch.from_numpy(array)
    return tensor.view(getattr(torch, "uint8" if spec.dtype == "bytes" else spec.dtype))


def _own(spec: TensorSpec, array: Array) -> Array:
    if spec.dtype == "bool":  # any byte may have come; a bool that is neither 0 nor 1 is none
        own: Array = np.empty(array.shape, np.bool_)
        return np.not_equal(array.view(np.uint8), 0, out=own)
    return array.copy()


class _Writable:
    """The memory of a read-only array as one that claims to be writable.

    torch has no read-only tensors and warns at each array that is. A window on a slot is
    documented as not to be written to, and what a writer could spoil is its own product.
    """

    def __init__(self, array: Array) -> None:
        self.array = array  # keeps the memory alive
        said = dict(array.__array_interface__)
        said["data"] = (said["data"][0], False)
        self.__array_interface__ = said


def flat(product: Any) -> memoryview:
    """The bytes of a product, or of anything with a buffer."""
    try:
        view = memoryview(product)
    except TypeError:
        data = getattr(product, "data", None)
        if not isinstance(data, memoryview):
            raise ContractError(
                f"a {type(product).__name__} has no bytes to decode; give bytes, or a product"
            ) from None
        view = data
    if view.nbytes == 0:
        return view if view.format == "B" and view.ndim == 1 else memoryview(b"")
    if not view.c_contiguous:
        raise ContractError("the bytes of a product lie apart; give a contiguous buffer")
    return view.cast("B")


def plain(said: Any, what: str, known: Sequence[str]) -> dict[str, Any]:
    """``said`` without the keys that begin with ``_``; others than ``known`` are refused."""
    if not isinstance(said, Mapping):
        raise ContractError(f"{what} is a mapping, got {type(said).__name__}")
    given = {key: value for key, value in said.items() if not str(key).startswith("_")}
    unknown = [str(key) for key in given if key not in known]
    if unknown:
        raise ContractError(f"{what} has no {', '.join(unknown)}; it has {', '.join(known)}")
    return given
