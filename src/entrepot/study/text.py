"""How names and values are written on one line, and read back exactly.

A point is ``lr=0.001,batch=32,opt=adam``: signs that would be mistaken for that line's own are
percent-encoded, as in a URL; letters of every script stay as they are.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from urllib.parse import unquote_to_bytes

from entrepot.errors import PointError

Value = str | int | float | bool | None
"""What a knob may be set to."""

_OWN = frozenset("%,=|")
_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_INTEGER = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")

_SHOWN = 60
"""Characters of a foreign text that a message repeats."""


def escape(text: str) -> str:
    """``text`` without any character that ends a name or a value, or that cannot be seen.

    Outer blanks are encoded as well, since they would be lost where lines are trimmed.
    """
    if text.isascii() and text.isalnum():
        return text
    last = len(text) - 1
    return "".join(
        sign
        if sign not in _OWN and sign.isprintable() and not (sign == " " and at in (0, last))
        else "".join(f"%{byte:02X}" for byte in sign.encode())
        for at, sign in enumerate(text)
    )


def unescape(text: str) -> str:
    """The inverse of :func:`escape`.

    :raises PointError: a ``%`` is not followed by two hexadecimal digits, or what they spell is
        not UTF-8.
    """
    if "%" not in text:
        return text
    if _ESCAPE.search(text):
        raise PointError(f"{shown(text)} has a % without two hexadecimal digits; write %25 for it")
    try:
        return unquote_to_bytes(text).decode()
    except UnicodeError:
        raise PointError(f"{shown(text)} has escapes that are not UTF-8") from None


def write(value: Value) -> str:
    """A value as text: floats by ``repr``, so that none is rounded."""
    return escape(value) if isinstance(value, str) else repr(value)


def read_float(text: str) -> float:
    """:raises PointError: it is not a finite decimal number."""
    if not _NUMBER.fullmatch(text):
        raise PointError(f"{shown(text)} is not a number")
    number = float(text)
    if not math.isfinite(number):
        raise PointError(f"{shown(text)} is beyond what a float holds")
    return number + 0.0  # -0.0 is 0.0


def read_int(text: str) -> int:
    """:raises PointError: it is not a whole decimal number."""
    if not _INTEGER.fullmatch(text):
        raise PointError(f"{shown(text)} is not a whole number")
    if len(text) > 20:
        raise PointError(f"{shown(text)} is beyond what a knob holds")
    return int(text)


def shown(text: object) -> str:
    """``text`` for a message: quoted, and cut where it is long."""
    said = repr(text)
    return said if len(said) <= _SHOWN else said[: _SHOWN - 4] + "..." + said[-1]


def among(values: Iterable[object]) -> str:
    """A few of ``values`` for a message."""
    said = [shown(value) for value in values]
    return ", ".join(said if len(said) <= 8 else [*said[:7], f"... ({len(said)} in all)"])
