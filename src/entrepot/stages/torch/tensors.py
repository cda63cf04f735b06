"""Tensors as values of a message, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from entrepot.errors import BadStageMessage
from entrepot.stages.values import Bits, Value

_BITS = {
    torch.bfloat16: ("bfloat16", torch.int16, np.uint16),
    torch.float8_e4m3fn: ("float8_e4m3fn", torch.uint8, np.uint8),
    torch.float8_e5m2: ("float8_e5m2", torch.uint8, np.uint8),
}


def value_of(tensor: torch.Tensor) -> Value:
    """The tensor's elements, which are not copied where they lie in this machine's memory in order.

    :raises BadStageMessage: it is sparse, quantized, or of a dtype that cannot be sent.
    """
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
        raise BadStageMessage("a tensor is sparse, quantized or without data; send a dense one")
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    bits = _BITS.get(plain.dtype)
    if bits is None:
        return plain.numpy()
    name, seen_as, dtype = bits
    return Bits(plain.view(seen_as).numpy().view(dtype), name)


def tensor_of(value: Any, device: torch.device | str | None = None) -> Any:
    """The tensor that a value is, of the same memory if that may be written to; text stays text."""
    if isinstance(value, Bits):
        made = torch.from_numpy(_writable(value.array.view(np.uint8)))
        dtype: torch.dtype = getattr(torch, value.dtype)
        tensor = made.view(dtype) if value.array.ndim else made.reshape(-1).view(dtype).reshape(())
    elif isinstance(value, np.ndarray):
        tensor = torch.from_numpy(_writable(value))
    else:
        return value
    return tensor if device is None else tensor.to(device)


def _writable(array: Any) -> Any:
    return array if array.flags.writeable else array.copy()


def values_of(given: dict[str, Any]) -> dict[str, object]:
    """Each tensor among them as a value."""
    return {
        name: value_of(each) if isinstance(each, torch.Tensor) else each
        for name, each in given.items()
    }
