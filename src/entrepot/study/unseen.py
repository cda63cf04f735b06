"""Which signs of a text nobody sees, so that two texts look alike, or one looks like none."""

from __future__ import annotations

import unicodedata

_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode's categories of what breaks a line, or is no character, or is not shown: controls,
formats such as the marks of a direction, surrogates, and the separators of lines and
paragraphs."""

_FILLERS = frozenset(
    {0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2065, 0x2800, 0x3164, 0xFFA0}
    | {*range(0x180B, 0x1810), *range(0xFE00, 0xFE10), *range(0xFFF0, 0xFFF9)}
    | {*range(0xE0000, 0xE1000)}
)
"""What has another category and is not shown all the same: what Unicode has as
``Default_Ignorable_Code_Point``, and the Braille sign without dots."""

_NON_JOINER, _JOINER = "\u200c", "\u200d"
_AS_TEXT, _AS_PICTURE = "\ufe0e", "\ufe0f"
_KEYCAP = "\u20e3"
_VIRAMA = 9
"""The combining class of the signs that a joiner may follow in the scripts of India."""


def unseen_in(text: str) -> str | None:
    """The first sign of ``text`` that nobody sees, or that ends a line; None if all are seen.

    Those that make one picture of several, or shape the letters beside them, are seen by what they
    do, and pass where they do it.
    """
    if text.isascii() and text.isprintable():
        return None
    for at, sign in enumerate(text):
        hidden = unicodedata.category(sign) in _CATEGORIES or ord(sign) in _FILLERS
        if hidden and not _shapes(text, at):
            return sign
    return None


def _shapes(text: str, at: int) -> bool:
    sign, before, after = text[at], text[at - 1 : at], text[at + 1 : at + 2]
    if not before:
        return False
    if sign in (_AS_TEXT, _AS_PICTURE):
        return _is_picture(before) or (before in "0123456789#*" and after == _KEYCAP)
    if sign not in (_JOINER, _NON_JOINER) or not after:
        return False
    if sign == _JOINER and _is_picture(after):
        # Behind a picture may stand the tone of its skin, or that it is one.
        return _is_picture(before) or before == _AS_PICTURE
    if not unicodedata.category(after).startswith("L") or ord(after) in _FILLERS:
        return False
    arabic = sign == _NON_JOINER and unicodedata.bidirectional(before) == "AL"
    return arabic or unicodedata.combining(before) == _VIRAMA


def _is_picture(sign: str) -> bool:
    if sign.isascii() or ord(sign) in _FILLERS:
        return False
    return unicodedata.category(sign) in ("So", "Sk", "Sm", "Po") or sign in "\u2139\u3030"
