"""What the commands' options share: defaults from the settings, sizes with units, names."""

from __future__ import annotations

import re
from typing import Annotated, Any

import typer
from pydantic.fields import FieldInfo

from entrepot.logs import LEVELS
from entrepot.settings import Settings, read_settings, variable

_UNITS = {
    "": 1,
    "b": 1,
    "kb": 1000,
    "mb": 1000**2,
    "gb": 1000**3,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*")


def current() -> Settings:
    """The settings as the environment gives them. Raises ConfigurationError."""
    return read_settings()


def field(section: str, name: str) -> FieldInfo:
    """The definition of a setting."""
    kind: Any = Settings.model_fields[section].annotation
    found: FieldInfo = kind.model_fields[name]
    return found


def setting(path: str, *flags: str, metavar: str, help: str = "", **more: Any) -> Any:
    """An option for the setting ``section.name``: its description, limits and variable."""
    section, _, name = path.partition(".")
    known = field(section, name)
    for bound, given in (("ge", "min"), ("le", "max")):
        for limit in known.metadata:
            if hasattr(limit, bound) and "parser" not in more:
                more.setdefault(given, getattr(limit, bound))
    return typer.Option(
        *flags,
        metavar=metavar,
        help=help or known.description or "",
        envvar=variable(section, name),
        **more,
    )


def parse_size(text: str) -> int:
    """``1MiB``, ``64 KiB``, ``1.5MB`` or ``4096`` as a number of bytes."""
    match = _SIZE.fullmatch(str(text))
    factor = _UNITS.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise typer.BadParameter(f"{text!r} is not a size such as 1MiB, 64KiB or 4096 (bytes)")
    nbytes = int(float(match[1]) * factor)
    if nbytes < 1:
        raise typer.BadParameter(f"{text!r} is less than one byte")
    return nbytes


def show_size(nbytes: int) -> str:
    """The shortest exact form of a size: ``1MiB``, ``1536``."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes % factor == 0:
            return f"{nbytes // factor}{unit}"
    return str(nbytes)


def _level(value: str) -> str:
    if value not in LEVELS:
        raise typer.BadParameter(f"{value!r} is not one of {', '.join(LEVELS)}")
    return value


Json = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON object a line on standard output, for scripts."),
]

LogLevel = Annotated[
    str,
    typer.Option(
        "--log-level",
        metavar="LEVEL",
        help=f"Least serious log on standard error: {', '.join(LEVELS)}.",
        envvar="ENTREPOT_LOG_LEVEL",
        callback=_level,
    ),
]
