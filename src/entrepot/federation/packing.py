"""A state as bytes: what an array or a tensor is, as JSON, and the elements; never code.

::

    entrepot state 1\n  <8 bytes: length of the JSON>  <JSON>  <entries, each at a multiple of 64>

The JSON has a path, a dtype, a shape and a kind (tensor, array) for each entry. Elements are
little-endian and C-contiguous, so that the same state is the same blob.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from entrepot.errors import FederationError, MissingExtra
from entrepot.federation.fedavg import Path, is_tensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAGIC = b"entrepot state 1\n"
ALIGN = 64

_DTYPE = re.compile(
    r"bool|u?int(8|16|32|64)|float(16|32|64|96|128)|complex(64|128|192|256)"
    r"|(datetime|timedelta)64(\[([1-9][0-9]{0,5})?[A-Za-zμ]{1,2}\])?"
)
"""Names of dtypes as numpy writes them. It reads much more, and ends the process at ``M8[s/0]``."""


def pack_state(entries: Mapping[Path, Any]) -> bytearray:
    """The bytes of arrays and tensors."""
    said = json.dumps(
        [
            {
                "path": path,
                "dtype": str(value.dtype)[6:] if is_tensor(value) else value.dtype.name,
                "shape": list(value.shape),
                "kind": "tensor" if is_tensor(value) else "array",
            }
            for path, value in entries.items()
        ]
    ).encode()
    packed = bytearray(MAGIC + len(said).to_bytes(8, "little") + said)
    for value in entries.values():
        packed += bytes(-len(packed) % ALIGN)
        packed += _raw(value).data
    return packed


def _raw(value: Any) -> NDArray[np.uint8]:
    if is_tensor(value):
        import torch

        # Whatever its device, strides, and what is yet to be conjugated.
        own = torch.empty(value.shape, dtype=value.dtype).copy_(value.detach())
        raw: NDArray[np.uint8] = own.reshape(-1).view(torch.uint8).numpy()
        return raw
    array = np.ascontiguousarray(value)
    if array.dtype.kind in "iufc":
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return array.reshape(-1).view(np.uint8)


def unpack_state(data: bytes) -> dict[Path, Any]:
    """The inverse of :func:`pack_state`; what comes is its own memory.

    :raises FederationError: it was not written by it.
    :raises MissingExtra: there are tensors in it, and torch is not installed.
    """
    start = len(MAGIC) + 8
    if data[: len(MAGIC)] != MAGIC or len(data) < start:
        raise FederationError("this is no state: it does not begin as one")
    place = start + int.from_bytes(data[len(MAGIC) : start], "little")
    own = bytearray(data)
    made: dict[Path, Any] = {}
    try:
        for said in json.loads(data[start:place]):
            place += -place % ALIGN
            path = tuple(map(str, said["path"]))
            shape = tuple(map(_checked_size, said["shape"]))
            make = _tensor if said["kind"] == "tensor" else _array
            made[path], nbytes = make(own, place, str(said["dtype"]), shape)
            place += nbytes
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        raise FederationError(f"this is no state: {error}") from None
    except RuntimeError as error:  # torch's, and what is nested too deeply
        raise FederationError(f"this is no state: {error}") from None
    if place != len(data):
        raise FederationError(f"this is no state: {len(data)} bytes where it says {place}")
    return made


def _checked_size(size: object) -> int:
    if type(size) is not int or size < 0:
        raise ValueError(f"a size is {size!r:.60}")
    return size


def _array(own: bytearray, place: int, name: str, shape: tuple[int, ...]) -> tuple[Any, int]:
    if not _DTYPE.fullmatch(name):
        raise ValueError(f"dtype {name!r:.60}")
    dtype = np.dtype(name)
    if dtype.hasobject or dtype.itemsize == 0:
        raise ValueError(f"dtype {name}")
    if dtype.kind in "iufc":
        dtype = dtype.newbyteorder("<")
    array: NDArray[Any] = np.ndarray(shape, dtype, own, place)
    if dtype.kind == "b":  # any byte may have come
        array = np.not_equal(array.view(np.uint8), 0)
    return array.astype(dtype.newbyteorder("="), copy=False), array.nbytes


def _tensor(own: bytearray, place: int, name: str, shape: tuple[int, ...]) -> tuple[Any, int]:
    try:
        import torch
    except ImportError as error:
        raise MissingExtra(
            "the clients send tensors, and torch is not installed; pip install 'entrepot[torch]'"
        ) from error
    dtype = getattr(torch, name)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"dtype {name}")
    raw: NDArray[np.uint8] = np.ndarray(math.prod(shape) * dtype.itemsize, np.uint8, own, place)
    if dtype is torch.bool:
        raw = np.not_equal(raw, 0)
        return torch.from_numpy(raw).reshape(shape), raw.nbytes
    return torch.from_numpy(raw).view(dtype).reshape(shape), raw.nbytes
