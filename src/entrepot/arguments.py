"""What a caller's arguments may be: ConfigurationError, with name and value, for all else.

Without these an argument of the wrong kind shows later and elsewhere, as a TypeError in a thread of
ours, or as a wait that never ends: nothing comes after a deadline of ``nan``.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any, TypeVar

from entrepot.errors import ConfigurationError

T = TypeVar("T")

LONGEST_S = 1e9
"""The longest time, in seconds, that a setting or an argument may ask for: some 30 years."""

_SHOWN_CHARS = 80


def shown(value: object) -> str:
    """``value`` as it would be written in code, cut to fit into a sentence."""
    try:
        text = repr(value)
    except Exception:
        text = f"a {type(value).__name__}"
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 3] + "..."


def checked_int(name: str, value: Any, least: int, most: int | None = None) -> int:
    """``value`` as an int, if it is a whole number from ``least`` to ``most``.

    :raises ConfigurationError: it is not. True and False are no numbers.
    """
    if type(value) is int:  # nearly always, and asking an abstract class takes a while
        number = value
    elif type(value) is not bool and isinstance(value, Integral):
        number = int(value)
    else:
        raise ConfigurationError(f"{name} is a whole number, got {shown(value)}")
    if number < least or (most is not None and number > most):
        span = f"at least {least}" if most is None else f"{least} to {most}"
        raise ConfigurationError(f"{name} must be {span}, got {number}")
    return number


def checked_seconds(name: str, value: Any) -> float:
    """``value``, if it is a time that can be waited for: more than 0, at most ``LONGEST_S``.

    :raises ConfigurationError: it is not.
    """
    if not _is_real(value) or not 0 < value <= LONGEST_S:
        raise ConfigurationError(
            f"{name} is in seconds, more than 0 and at most {LONGEST_S:.0e}, got {shown(value)}"
        )
    return float(value)


def checked_wait(name: str, value: Any) -> float | None:
    """``value``, if it says how long to wait; None is for ever, 0 and less is not at all.

    A caller who has a deadline passes what is left of it, which may be negative.

    :raises ConfigurationError: it is neither None nor a number.
    """
    if value is None:
        return None
    if _is_real(value) and value == value:
        return float(value)
    raise ConfigurationError(
        f"{name} is a number of seconds, or None, got {shown(value)}; None waits without a limit "
        f"of its own"
    )


def _is_real(value: Any) -> bool:
    kind = type(value)
    return kind is float or kind is int or (isinstance(value, Real) and kind is not bool)


def checked_text(name: str, value: Any, most: int | None = None) -> str:
    """``value``, if it is text of at most ``most`` characters that can be sent.

    :raises ConfigurationError: it is not.
    """
    if not isinstance(value, str):
        raise ConfigurationError(f"{name} is a str, got {shown(value)}")
    if most is not None and len(value) > most:
        raise ConfigurationError(f"{name} has at most {most} characters, got {len(value)}")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise ConfigurationError(f"{name} {shown(value)} is not text: {error}") from None
    return value


def checked_kind(name: str, value: Any, kind: type, how: str) -> None:
    """Refuse what is not a ``kind``; ``how`` says how one is made.

    :raises ConfigurationError: it is not.
    """
    if not isinstance(value, kind):
        raise ConfigurationError(
            f"{name} must be of type {kind.__name__}, got {shown(value)}; {how}"
        )


def checked_callable(name: str, value: Any) -> None:
    """Refuse what cannot be called.

    :raises ConfigurationError: it cannot.
    """
    if not callable(value):
        raise ConfigurationError(f"{name} is a function, got {shown(value)}")


def checked_several(name: str, value: Iterable[T]) -> Iterable[T]:
    """``value``, if it can be gone through and is no single text.

    :raises ConfigurationError: it cannot, or is.
    """
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise ConfigurationError(f"{name} are several, such as a list, got {shown(value)}")
    return value


def checked_function(name: str, value: Any) -> Any:
    """``value``, if it can be called and has done its work when it returns.

    :raises ConfigurationError: it cannot be called, or a call only begins: it is ``async``, or has
        a ``yield`` in it, or is an object whose ``__call__`` is or has.
    """
    if not callable(value):
        raise ConfigurationError(f"{name} must be callable, got {shown(value)}")
    called = value
    while isinstance(called, functools.partial):
        called = called.func
    if not inspect.isroutine(called) and not inspect.isclass(called):
        called = type(called).__call__
    if inspect.iscoroutinefunction(called):
        raise ConfigurationError(
            f"{name} is async ({shown(value)}): a call returns before anything is made; give a "
            f"plain function, which may call asyncio.run"
        )
    if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
        raise ConfigurationError(
            f"{name} is a generator ({shown(value)}): a call returns before anything is made; "
            f"give a plain function that returns where this one yields"
        )
    return value
