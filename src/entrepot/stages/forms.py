"""Arguments and results of a stage's function: to named values and back."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from entrepot.errors import StageFailed
from entrepot.stages.protocol import DICT, ONE, TUPLE
from entrepot.stages.values import pack


def named_values(args: tuple[object, ...], kwargs: Mapping[str, object]) -> dict[str, object]:
    """A call's arguments, by name; positional ones by their number."""
    return {**{str(number): value for number, value in enumerate(args)}, **kwargs}


def arguments_of(values: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """The inverse of :func:`named_values`."""
    positional = [value for name, value in values.items() if name.isdecimal()]
    return positional, {name: value for name, value in values.items() if not name.isdecimal()}


def taken_apart(made: Any) -> tuple[str, dict[str, Any]]:
    """A function's result by name, and its form."""
    if made is None:
        raise StageFailed("the stage's function returned None; return an array, text, or several")
    if isinstance(made, Mapping):
        return DICT, {str(name): value for name, value in made.items()}
    if isinstance(made, tuple):
        return TUPLE, {str(number): value for number, value in enumerate(made)}
    return ONE, {"0": made}


def put_together(form: str, values: Mapping[str, Any]) -> Any:
    """The inverse of :func:`taken_apart`."""
    if form == DICT:
        return dict(values)
    several = tuple(values.values())
    return several[0] if form == ONE and several else several


def digest_of(parameters: Mapping[str, object]) -> str:
    """SHA-256 over names, dtypes, shapes and elements, in the order of the names."""
    running = hashlib.sha256()
    for name, value in sorted(parameters.items()):
        (item,), (buffer,) = pack({name: value})
        running.update(repr((item.name, item.dtype, item.shape)).encode())
        running.update(buffer)
    return running.hexdigest()
