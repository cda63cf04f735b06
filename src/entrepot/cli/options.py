"""What the commands' options share: defaults from the settings, sizes and times, names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer
from pydantic.fields import FieldInfo

from entrepot.arguments import LONGEST_S
from entrepot.errors import ConfigurationError
from entrepot.logs import LEVELS
from entrepot.settings import Settings, read_settings, variable
from entrepot.sizes import parse_size

BOUNDS = {"ge": "min", "le": "max"}
"""A setting's limits, and what an option calls them."""


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
    limits = {
        bound: getattr(limit, bound)
        for limit in known.metadata
        for bound in ("ge", "le")
        if hasattr(limit, bound)
    }
    if metavar == "SECONDS":
        more["parser"] = seconds(limits.get("ge"), limits.get("le", LONGEST_S))
    elif "parser" not in more:
        more |= {given: limits[bound] for bound, given in BOUNDS.items() if bound in limits}
    return typer.Option(
        *flags,
        metavar=metavar,
        help=help or known.description or "",
        envvar=variable(section, name),
        **more,
    )


def size(text: str) -> int:
    """For an option that takes a size: ``1MiB``, ``64 KiB``, ``1.5MB`` or ``4096`` (bytes)."""
    try:
        return parse_size(str(text))
    except ConfigurationError as fault:
        raise typer.BadParameter(str(fault)) from fault


def seconds(least: float | None = None, most: float = LONGEST_S) -> Callable[[str], float]:
    """For an option that takes seconds: from ``least``, or more than 0 without it, to ``most``.

    A time that is not finite is no time: ``nan`` would be over any limit and under none.
    """

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise typer.BadParameter(f"{text!r} is not a number of seconds") from None
        enough = value > 0 if least is None else value >= least
        if not enough or not value <= most:
            low = "more than 0" if least is None else f"{least:g} or more"
            raise typer.BadParameter(
                f"{text!r} is not a time to wait: it is {low}, and at most {most:g} seconds"
            )
        return value

    return parse


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
