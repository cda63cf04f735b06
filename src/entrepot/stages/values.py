"""What a stage is given and gives: named arrays, text and bytes, as buffers that say what they are.

Arrays are little-endian and C-contiguous. numpy has no bfloat16 and no float8: :class:`Bits` are
those, as ``uint16`` and ``uint8`` of the same bits. Several texts are one buffer: where each
ends, then UTF-8; so any script and any length, and no padding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta

from entrepot.errors import BadStageMessage
from entrepot.tensors import DTYPES  # first: it says what to install where there is no numpy

import numpy as np  # isort: skip

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

ALIGN = 64
"""Each value begins at a multiple of this many bytes, so that it can be used where it lies."""

VALUES = 4096
"""Most values of one message."""

NAME_CHARS = 256
"""Longest name of a value."""

DIMENSIONS = 32

STR, STRS, BLOB, BLOBS = "str", "strs", "blob", "blobs"
"""Kinds of values that are no arrays: a text, several, bytes, several."""

Size = Annotated[int, Meta(ge=0, le=2**62)]


class Item(msgspec.Struct, array_like=True, gc=False):
    """One value: what it is called, what it is, and how long."""

    name: Annotated[str, Meta(max_length=NAME_CHARS)]
    dtype: Annotated[str, Meta(max_length=32)]
    shape: Annotated[list[Size], Meta(max_length=DIMENSIONS)]
    nbytes: Size


@dataclass(frozen=True, eq=False)
class Bits:
    """An array whose dtype numpy lacks.

    :ivar array: ``uint16`` or ``uint8``, the bits.
    :ivar dtype: ``bfloat16``, ``float8_e4m3fn`` or ``float8_e5m2``.
    """

    array: Array
    dtype: str


Value: TypeAlias = "Array | Bits | str | bytes | list[str] | list[bytes]"

_LACKING = ("bfloat16", "float8_e4m3fn", "float8_e5m2")
_ARRAYS = {name: np.dtype(bits) for name, bits in DTYPES.items() if name != "bytes"}
_NAMES = {bits: name for name, bits in _ARRAYS.items() if bits.name == name}
_ENDS = np.dtype("<u8")


# --- to buffers -------------------------------------------------------------------------


def pack(values: Mapping[str, object], most: int = VALUES) -> tuple[list[Item], list[memoryview]]:
    """What each value is, and its bytes; those of contiguous arrays are not copied.

    :raises BadStageMessage: a value is none that can be sent, or there are more than ``most``.
    """
    if len(values) > most:
        raise BadStageMessage(f"a message has at most {most} values, got {len(values)}")
    items: list[Item] = []
    buffers: list[memoryview] = []
    for name, value in values.items():
        if len(name) > NAME_CHARS:
            raise BadStageMessage(f"a value's name is text of at most {NAME_CHARS}, got {name!r}")
        dtype, shape, buffer = _packed(name, value)
        items.append(Item(name, dtype, shape, buffer.nbytes))
        buffers.append(buffer)
    return items, buffers


def _packed(name: str, value: object) -> tuple[str, list[int], memoryview]:
    if isinstance(value, np.ndarray):
        return _array(name, value)
    if isinstance(value, Bits):
        if value.dtype not in _LACKING or value.array.dtype != _ARRAYS[value.dtype]:
            raise BadStageMessage(
                f"value {name!r} has Bits of {value.dtype} in {value.array.dtype}; they are one of "
                f"{', '.join(_LACKING)}, in uint16 or uint8"
            )
        _, shape, buffer = _array(name, value.array)
        return value.dtype, shape, buffer
    if isinstance(value, str):
        return STR, [], memoryview(_utf8(name, value))
    if isinstance(value, bytes | bytearray):
        return BLOB, [], memoryview(value)
    if isinstance(value, list | tuple):
        return _several(name, value)
    if isinstance(value, bool | int | float | complex | np.generic):
        return _array(name, np.asarray(value))
    if hasattr(value, "__array__"):
        return _array(name, _as_array(name, value))
    raise BadStageMessage(
        f"value {name!r} is a {type(value).__name__}; a stage takes and gives arrays, str, bytes, "
        f"and lists of str or bytes"
    )


def _as_array(name: str, value: object) -> Array:
    """Of another library's, such as a tensor, which may have reasons not to be one."""
    try:
        return np.asarray(value)
    except Exception as error:
        raise BadStageMessage(
            f"value {name!r} is a {type(value).__name__} that makes no array: {error}; give Bits "
            f"where numpy lacks the dtype, and of a tensor tensor.detach().cpu(), or call the "
            f"stage as a TorchStage"
        ) from error


def _array(name: str, array: Array) -> tuple[str, list[int], memoryview]:
    # To ask numpy for a name takes longer than all the rest; ml_dtypes has some that it lacks.
    dtype = _NAMES.get(array.dtype) or array.dtype.name
    bits = _ARRAYS.get(dtype)
    if bits is None:
        raise BadStageMessage(
            f"value {name!r} has dtype {array.dtype}; known are {', '.join(_ARRAYS)}"
        )
    if array.ndim > DIMENSIONS:
        raise BadStageMessage(
            f"value {name!r} has {array.ndim} dimensions; {DIMENSIONS} are allowed"
        )
    shape = list(array.shape)
    if array.nbytes == 0:
        return dtype, shape, memoryview(b"")
    if dtype not in _LACKING:
        array = array.astype(bits, copy=False)
    return dtype, shape, np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _several(name: str, value: Sequence[object]) -> tuple[str, list[int], memoryview]:
    kinds = sorted({type(each).__name__ for each in value})
    made = [_part(name, each) for each in value]
    parts = [part for part in made if part is not None]
    kind = BLOBS if value and not isinstance(value[0], str) else STRS
    if len(parts) < len(made) or len({isinstance(each, str) for each in value}) > 1:
        raise BadStageMessage(
            f"value {name!r} is a list of {' and '.join(kinds)}; a list has str, or bytes, and "
            f"numbers are given as np.asarray(value)"
        )
    ends = np.cumsum([len(part) for part in parts], dtype=np.uint64).astype(_ENDS)
    return kind, [len(parts)], memoryview(ends.tobytes() + b"".join(parts))


def _part(name: str, value: object) -> bytes | bytearray | None:
    if isinstance(value, str):
        return _utf8(name, value)
    return value if isinstance(value, bytes | bytearray) else None


def _utf8(name: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise BadStageMessage(
            f"value {name!r} has text that is none: {error}; a lone surrogate has no bytes"
        ) from None


# --- from buffers -----------------------------------------------------------------------


def unpack(
    items: Sequence[Item], data: memoryview, start: int, most: int = VALUES
) -> dict[str, Value]:
    """The values that lie in ``data`` from ``start`` on. Arrays are windows on it.

    :raises BadStageMessage: the items and the bytes do not agree.
    """
    if len(items) > most:
        raise BadStageMessage(f"a message has at most {most} values, this one has {len(items)}")
    values: dict[str, Value] = {}
    end = start
    for item in items:
        start = aligned(end)
        end = start + item.nbytes
        if end > len(data):
            raise BadStageMessage(
                f"value {item.name!r} ends at {end} of a message of {len(data)} bytes"
            )
        if item.name in values:
            raise BadStageMessage(f"two values are called {item.name!r}")
        values[item.name] = _unpacked(item, data[start:end])
    if end != len(data):
        raise BadStageMessage(f"a message of {len(data)} bytes has values up to {end}")
    return values


def _unpacked(item: Item, data: memoryview) -> Value:
    bits = _ARRAYS.get(item.dtype)
    if bits is not None:
        if math.prod(item.shape) * bits.itemsize != item.nbytes:
            raise BadStageMessage(
                f"value {item.name!r} is {item.dtype} {item.shape} in {item.nbytes} bytes"
            )
        try:
            array: Array = np.ndarray(item.shape, bits, data)
        except (ValueError, OverflowError, MemoryError) as error:  # what is empty, and too large
            raise BadStageMessage(f"value {item.name!r} {item.shape}: {error}") from None
        if item.dtype == "bool":  # any byte may have come; what is neither 0 nor 1 is no bool
            return np.asarray(np.not_equal(array.view(np.uint8), 0))
        return Bits(array, item.dtype) if item.dtype in _LACKING else array
    if item.dtype in (STR, BLOB) and not item.shape:
        return _text(item, data) if item.dtype == STR else data.tobytes()
    if item.dtype in (STRS, BLOBS) and len(item.shape) == 1:
        parts = _parts(item, data)
        if item.dtype == STRS:
            return [_text(item, part) for part in parts]
        return [part.tobytes() for part in parts]
    raise BadStageMessage(f"value {item.name!r} is {item.dtype!r:.40} {item.shape}: unknown here")


def _parts(item: Item, data: memoryview) -> list[memoryview]:
    (count,) = item.shape
    first = count * _ENDS.itemsize
    if first > len(data):
        raise BadStageMessage(f"value {item.name!r} has {count} parts in {len(data)} bytes")
    ends = np.frombuffer(data[:first], _ENDS).tolist() if count else []
    marks = [0, *ends]
    if any(b < a for a, b in pairwise(marks)) or first + marks[-1] != len(data):
        raise BadStageMessage(f"value {item.name!r} has parts that do not lie one after the other")
    return [data[first + a : first + b] for a, b in pairwise(marks)]


def _text(item: Item, data: memoryview) -> str:
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise BadStageMessage(f"value {item.name!r} is no UTF-8: {error}") from None


def aligned(nbytes: int) -> int:
    """``nbytes``, rounded up to where a value may begin."""
    return -(-nbytes // ALIGN) * ALIGN


def _copied(array: Array) -> Array:
    return array.copy()


def worth_it(value: Value, nbytes: int) -> Value:
    """``value`` as it is, if it has most of the memory of so many bytes that it lies in.

    Else a copy: who keeps it would keep all of that.
    """
    array = value.array if isinstance(value, Bits) else value
    if isinstance(array, np.ndarray) and array.nbytes * 2 < nbytes:
        return owned(value)
    return value


def kept(value: Value, copy: Callable[[Array], Array] = _copied) -> Value:
    """``value``, if its memory may be written to and so is its own; else :func:`owned`."""
    array = value.array if isinstance(value, Bits) else value
    if isinstance(array, np.ndarray) and array.flags.writeable:
        return value
    return owned(value, copy)


def owned(value: Value, copy: Callable[[Array], Array] = _copied) -> Value:
    """``value`` in memory of its own, which ``copy`` finds."""
    if isinstance(value, Bits):
        return Bits(copy(value.array), value.dtype)
    return copy(value) if isinstance(value, np.ndarray) else value
