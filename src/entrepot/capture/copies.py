"""Copies of what a module was given or gave: tensors, in whatever holds them."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

import torch

Convert = Callable[[torch.Tensor], torch.Tensor]


def mapped(value: Any, convert: Convert) -> Any:
    """``value`` with each tensor converted: in tuples, lists, mappings and dataclasses, nested.

    Containers are of the same types, and new. Anything else is passed on as it is, and so is not
    safe from what the model does to it later: a cache object, say.
    """
    if isinstance(value, torch.Tensor):
        return convert(value)
    if isinstance(value, tuple):
        items = [mapped(item, convert) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if type(value) is list:
        return [mapped(item, convert) for item in value]
    if type(value) is dict:
        return {key: mapped(item, convert) for key, item in value.items()}
    made: Any
    if isinstance(value, MutableMapping):
        made = copy.copy(value)
        for key, item in value.items():
            made[key] = mapped(item, convert)
        return made
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        made = copy.copy(value)
        for field in dataclasses.fields(value):
            if hasattr(value, field.name):
                # The dataclass may be frozen; the copy is ours.
                object.__setattr__(made, field.name, mapped(getattr(value, field.name), convert))
        return made
    return value


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in ``value``, in their order, as :func:`mapped` finds them."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors(item)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from tensors(getattr(value, field.name, None))
