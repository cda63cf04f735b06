"""The root of all errors, and those that belong to no one part."""

from __future__ import annotations

from typing import ClassVar


class EntrepotError(Exception):
    """The root of everything that the library raises on purpose."""

    code: ClassVar[str] = "error"


class ConfigurationError(EntrepotError, ValueError):
    """A setting, argument or specification has a value that cannot work."""

    code = "configuration"


class MissingExtra(EntrepotError, ImportError):
    """A feature needs a package that is not installed; the message names the extra."""

    code = "missing_extra"


class UsedAfterFork(EntrepotError):
    """A client, supplier or broker was used in a forked child; make a new one there."""

    code = "used_after_fork"


class Closed(EntrepotError):
    """The object was used after its ``close``."""

    code = "closed"


def sentence_of(error: BaseException) -> str:
    """What an error says; of one whose ``__str__`` raises, that it says nothing."""
    try:
        return str(error)
    except Exception:
        return "(its message could not be read)"
