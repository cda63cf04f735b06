"""``python -m entrepot.cli.reference > docs/cli.md``: the page of all commands.

Made from the same definitions as ``--help``; a test compares the page with them.
"""

from __future__ import annotations

import inspect
import os
import sys
from typing import Any

import typer

from entrepot.cli.commands import Lazy, app
from entrepot.settings import ENV_PREFIX

HEAD = """\
# The command line

<!-- Made by `python -m entrepot.cli.reference`; a test compares the two. -->

`entrepot COMMAND --help` says the same. Every option that has a variable may be set by it
instead; [settings.md](settings.md) lists what has no option.

Exit codes: 0 all is well; 1 something is wrong, told on standard error in a line that starts
`error (code):`; 2 the command line makes no sense; 70 the broker itself failed, with a traceback;
130 and 143 stopped by Ctrl-C or SIGTERM before the work was done.

With `--json` standard output holds one JSON object a line and nothing else; each has an `event`,
and what is wrong is an `error` with `code` and `message` as well. Progress and logs go to standard
error: logs are text on a terminal and JSON otherwise.
"""


def page() -> str:
    """``docs/cli.md``."""
    lines = [HEAD]
    for path, command in commands():
        lines += _section(path, command)
    return "\n".join(lines).rstrip("\n") + "\n"


def commands() -> list[tuple[str, Any]]:
    """Every command with its whole name, groups left out, in the order of ``--help``."""
    return _below("entrepot", typer.main.get_command(app))


def _below(path: str, command: Any) -> list[tuple[str, Any]]:
    if not isinstance(command, Lazy):
        return [(path, command)]
    found = []
    for name in command.table:
        found += _below(f"{path} {name}", command.load(name))
    return found


def _section(path: str, command: Any) -> list[str]:
    paragraphs = inspect.cleandoc(command.help or "").split("\n\n")
    lines = [f"## {path}\n"]
    for paragraph in paragraphs:
        if paragraph.startswith("\b\n"):
            title, _, code = paragraph.removeprefix("\b\n").partition("\n")
            lines.append(f"{title}\n\n```\n{inspect.cleandoc(code)}\n```\n")
        else:
            lines.append(paragraph + "\n")
    rows = [_row(parameter) for parameter in command.params if not parameter.hidden]
    if rows:
        lines += [
            "| option | default | variable | meaning |",
            "| --- | --- | --- | --- |",
            *rows,
            "",
        ]
    return lines


def _row(parameter: Any) -> str:
    names = ", ".join(getattr(parameter, "opts", [parameter.name]))
    is_flag = getattr(parameter, "is_flag", False)
    if parameter.param_type_name == "argument":
        names = parameter.metavar or names.upper()
    elif not is_flag and parameter.metavar:
        names += f" {parameter.metavar}"
    default = parameter.default
    if parameter.required:
        shown = "required"
    elif is_flag or default in (None, "", [], ()):
        shown = ""
    else:
        shown = f"`{default}`"
    envvar = f"`{parameter.envvar}`" if parameter.envvar else ""
    return f"| `{names}` | {shown} | {envvar} | {parameter.help or ''} |"


if __name__ == "__main__":
    # The page shows the defaults of the package, not of this machine.
    for name in [name for name in os.environ if name.startswith(ENV_PREFIX)]:
        del os.environ[name]
    sys.stdout.write(page())
