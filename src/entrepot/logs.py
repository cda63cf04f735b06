"""Logs on standard error: a line of text on a terminal, a JSON object a line anywhere else.

A logger says what happened in a sentence that does not vary and puts what varies into ``extra``::

    logger.warning("supplier lost", extra={"supplier": name, "order_id": order_id})

Values of fields whose names tell of secrets, passwords in addresses, and the tokens that stand
in the addresses of TCP slots are masked in both forms.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from typing import Any, TextIO

LEVELS = ("debug", "info", "warning", "error")

MASK = "***"

_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_SECRET_NAME = re.compile(r"secret|token|passw|credential|authorization|api_?key", re.IGNORECASE)
_PASSWORD = re.compile(r"(://)[^/@\s]+(?=@)")
_SLOT_TOKEN = re.compile(r"(:\d{1,5}/)[\w-]{16,}")


def masked(text: str) -> str:
    """``text`` without passwords and slot tokens."""
    return _SLOT_TOKEN.sub(rf"\1{MASK}", _PASSWORD.sub(rf"\1{MASK}", text))


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
    """One object a record: time (UTC), level, logger, message, the extra fields, exception."""

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
        return json.dumps(said, ensure_ascii=False)


class TextFormatter(logging.Formatter):
    """``12:30:59 warning supplier lost  supplier=gpu-3 order_id=17``."""

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%H:%M:%S", time.localtime(record.created))
        line = f"{at} {record.levelname.lower()} {masked(record.getMessage())}"
        fields = " ".join(f"{name}={value}" for name, value in fields_of(record).items())
        if fields:
            line += f"  {fields}"
        if record.exc_info:
            line += "\n" + masked(self.formatException(record.exc_info))
        return line


def setup(level: str = "info", stream: TextIO | None = None) -> None:
    """Send the package's logs to ``stream`` (standard error), in the form that suits it."""
    target = sys.stderr if stream is None else stream
    handler = logging.StreamHandler(target)
    handler.setFormatter(TextFormatter() if target.isatty() else JsonFormatter())
    package = logging.getLogger("entrepot")
    package.handlers[:] = [handler]
    package.setLevel(level.upper())
    package.propagate = False
