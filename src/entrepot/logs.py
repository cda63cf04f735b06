"""Logs on standard error: a line of text on a terminal, a JSON object a line anywhere else.

A logger says what happened and why in a sentence, and puts what programs look for into ``extra``.
The sentence has the why as well, since without :func:`setup` Python shows that alone::

    logger.warning("no round: %s", why_of(error), extra={"client": name, "why": error})

Values of fields whose names tell of secrets, passwords in addresses, and the tokens that stand
in the addresses of TCP slots are masked in both forms. What a terminal would obey is shown as
Python writes it, ``\\x1b``: others choose what products, suppliers and errors are called.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
import unicodedata
from collections.abc import Iterator
from types import TracebackType
from typing import Any, TextIO

from entrepot.errors import EntrepotError
from entrepot.errors.root import sentence_of

LEVELS = ("debug", "info", "warning", "error")

MASK = "***"

WHY_CHARS = 500
"""Most characters of an error's sentence in a log's."""

PLACES = 256
"""Places whose traceback is known to have been logged."""

Trace = tuple[type[BaseException], BaseException, TracebackType | None]

_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_SECRET_NAME = re.compile(r"secret|token|passw|credential|authorization|api_?key", re.IGNORECASE)
_PASSWORD = re.compile(r"(://)[^/@\s]+(?=@)")
_SLOT_TOKEN = re.compile(r"(:\d{1,5}/)[\w-]{16,}")
# What JSON may leave as it is and a terminal obeys, or cannot be sent to one.
_OBEYED = re.compile(r"[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def masked(text: str) -> str:
    """``text`` without passwords and slot tokens."""
    return _SLOT_TOKEN.sub(rf"\1{MASK}", _PASSWORD.sub(rf"\1{MASK}", text))


def visible(text: str, kept: str = "") -> str:
    """``text`` with what cannot be printed as Python writes it; what is in ``kept`` stays."""
    if text.isprintable():
        return text
    return "".join(
        sign
        if sign.isprintable() or sign in kept or unicodedata.category(sign) == "Zs"
        else sign.encode("unicode_escape").decode()
        for sign in text
    )


def in_a_line(text: str, most: int = WHY_CHARS) -> str:
    """What others say, fit for a line of ours: masked, visible, and not too long."""
    line = visible(masked(" ".join(text[: 16 * most].split())))
    return line if len(line) <= most else line[: most - 1] + "…"


def why_of(error: object) -> str:
    """An error's type and sentence in a line; of anything else, what it says."""
    if not isinstance(error, BaseException):
        return in_a_line(str(error))
    said = in_a_line(sentence_of(error))
    kind = in_a_line(type(error).__name__, 80)
    return f"{kind}: {said}" if said else kind


def as_json(fields: dict[str, Any], encoding: str | None = None) -> str:
    """One line of JSON, of which a terminal obeys nothing.

    :param encoding: that of where it goes: what it lacks is written by JSON's escapes. What Python
        would put in its place is no JSON.
    """
    line = json.dumps(fields, ensure_ascii=not _holds_all(encoding))
    return _OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", line)


def _holds_all(encoding: str | None) -> bool:
    return encoding is None or encoding.lower().replace("-", "").startswith("utf")


class Traces:
    """Tracebacks of what a user's function raised: one for each place, not one for each error.

    :param ours: how modules begin whose frames above the function say nothing to a user.
    """

    def __init__(self, *ours: str) -> None:
        self._ours = ours
        self._seen: set[tuple[str, frozenset[tuple[str, int]]]] = set()

    def of(self, error: BaseException | None) -> Trace | None:
        """For ``exc_info``: from the user's function on.

        None if it was given before for that place, or if what we raised on purpose has nothing to
        do with any function.
        """
        if error is None:
            return None
        trace = error.__traceback__
        while trace is not None and _module_of(trace).startswith(self._ours):
            trace = trace.tb_next
        if trace is None:
            if error.__cause__ is not None:
                return self.of(error.__cause__)
            trace = error.__traceback__
            if trace is None or isinstance(error, EntrepotError):
                return None
        # As a set: a recursion that ends at another depth each time is one place.
        place = type(error).__qualname__, frozenset(_lines_of(trace))
        if place in self._seen:
            return None
        if len(self._seen) >= PLACES:
            self._seen.clear()
        self._seen.add(place)
        return type(error), error, trace


def traced(record: logging.LogRecord) -> bool:
    """A filter for loggers of :class:`Traces`: whichever formatter there is shows a traceback as
    ours do, since what an error says may be what another machine sent."""
    if record.exc_info and not record.exc_text:
        record.exc_text = _trace_of(record.exc_info)
    return True


def _trace_of(exc_info: Any) -> str:
    return visible(masked(logging.Formatter().formatException(exc_info)), "\n\t")


def _module_of(trace: TracebackType) -> str:
    return str(trace.tb_frame.f_globals.get("__name__", ""))


def _lines_of(trace: TracebackType | None) -> Iterator[tuple[str, int]]:
    while trace is not None:
        yield trace.tb_frame.f_code.co_filename, trace.tb_lineno
        trace = trace.tb_next


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """What the record was given in ``extra``, masked."""
    fields: dict[str, Any] = {}
    for name, value in vars(record).items():
        if name in _OWN:
            continue
        if _SECRET_NAME.search(name):
            fields[name] = MASK
        elif isinstance(value, bool | int | float) or value is None:
            fields[name] = value
        else:
            fields[name] = masked(str(value))
    return fields


class JsonFormatter(logging.Formatter):
    """One object a record: time (UTC), level, logger, message, the extra fields, exception.

    :param encoding: as in :func:`as_json`.
    """

    def __init__(self, encoding: str | None = None) -> None:
        super().__init__()
        self._encoding = encoding

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        said: dict[str, Any] = {
            "time": f"{at}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": masked(record.getMessage()),
        }
        for name, value in fields_of(record).items():
            said.setdefault(name, value)
        if record.exc_info:
            said["exception"] = masked(self.formatException(record.exc_info))
        return as_json(said, self._encoding)


class TextFormatter(logging.Formatter):
    """``12:30:59 warning supplier lost  supplier=gpu-3 order_id=17``.

    Fields that the message has said are left out.
    """

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%H:%M:%S", time.localtime(record.created))
        message = visible(masked(record.getMessage()))
        fields = " ".join(
            f"{name}={visible(str(value))}"
            for name, value in fields_of(record).items()
            if not _says(message, value)
        )
        line = f"{at} {record.levelname.lower()} {message}"
        if fields:
            line += f"  {fields}"
        if record.exc_info:
            line += "\n" + _trace_of(record.exc_info)
        return line


def _says(message: str, value: Any) -> bool:
    """A number, or a word of a letter or two, may stand there by chance."""
    return isinstance(value, str) and len(value) > 2 and in_a_line(value) in message


def setup(level: str = "info", stream: TextIO | None = None) -> None:
    """Send the package's logs to ``stream`` (standard error), in the form that suits it."""
    target = sys.stderr if stream is None else stream
    handler = logging.StreamHandler(target)
    formatter = TextFormatter() if target.isatty() else JsonFormatter(target.encoding)
    handler.setFormatter(formatter)
    package = logging.getLogger("entrepot")
    package.handlers[:] = [handler]
    package.setLevel(level.upper())
    package.propagate = False
