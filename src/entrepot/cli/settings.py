"""``entrepot settings``: every setting, and the page ``docs/settings.md``."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from entrepot.arguments import LONGEST_S
from entrepot.cli import output
from entrepot.cli.options import Json, current
from entrepot.settings import Settings, variable
from entrepot.sizes import show_size

SECTIONS = {
    "broker": "The broker",
    "supplier": "Suppliers",
    "client": "Clients",
    "store": "Stores in a bucket",
    "sidecar": "The sidecar",
}

HEAD = """\
# Settings

<!-- Made by `entrepot settings --markdown`; a test compares the two. -->

Each setting is read from its environment variable; what is passed in code or on a command line
wins. `entrepot settings` shows the values that hold where it runs.

A size is a number of bytes, or has a unit: `64KiB`, `1.5MiB`, `2GiB`, `64kB`, `1.5MB`, `2GB`. Times
are at most 1e9 seconds.
"""


def command(
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the page docs/settings.md.")
    ] = False,
    json: Json = False,
) -> None:
    """List every setting: its variable, default and value here.

    \b
    Example:
      ENTREPOT_BROKER__DEAD_S=60 entrepot settings
    """
    if markdown:
        output.say(page().rstrip("\n"))
        return
    values = current()
    for section, name, known in every():
        value = getattr(getattr(values, section), name)
        if json:
            output.emit(
                "setting",
                variable=variable(section, name),
                value=value,
                default=known.default,
                description=known.description,
            )
        else:
            default = _shown(name, known.default) or "none"
            changed = "" if value == known.default else f"  (default {default})"
            output.say(f"{variable(section, name)}={_shown(name, value)}{changed}")


def every() -> list[tuple[str, str, FieldInfo]]:
    """Section, name and definition of all settings, in the order of the file."""
    found = []
    for section, known in Settings.model_fields.items():
        kind: Any = known.annotation
        assert issubclass(kind, BaseModel)
        found += [(section, name, each) for name, each in kind.model_fields.items()]
    return found


def page() -> str:
    """``docs/settings.md``."""
    lines = [HEAD]
    section = ""
    for each, name, known in every():
        if each != section:
            section = each
            lines.append(f"## {SECTIONS.get(section, section.capitalize())}\n")
            lines.append("| variable | default | range | meaning |")
            lines.append("| --- | --- | --- | --- |")
        default = _shown(name, known.default)
        cells = (
            f"`{variable(section, name)}`",
            f"`{default}`" if default else "",
            _range(name, known),
            known.description,
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
        if (section, name) == _last(section):
            lines.append("")
    return "\n".join(lines)


def _last(section: str) -> tuple[str, str]:
    return [(each, name) for each, name, _ in every() if each == section][-1]


def _shown(name: str, value: Any) -> str:
    """A value as it may be written in the variable."""
    if isinstance(value, bool):
        return str(value).lower()
    if value is None:
        return ""
    return show_size(value) if _is_size(name) else str(value)


def _is_size(name: str) -> bool:
    return name.endswith(("_nbytes", "_nbytes_s"))


def _range(name: str, known: FieldInfo) -> str:
    said = []
    for limit in known.metadata:
        match limit:
            case Ge(ge=least):
                said.append(f"at least {_shown(name, least)}")
            case Gt(gt=least):
                said.append(f"over {least}")
            case Le(le=most) if most != LONGEST_S:
                said.append(f"at most {most}")
            case Lt(lt=most):
                said.append(f"below {most}")
    return ", ".join(said)
