"""The command line: ``entrepot COMMAND``. One file a command, loaded when it is called.

Exit codes: 0 all is well; 1 an :class:`~entrepot.errors.EntrepotError`, told in a line on
standard error; 2 the command line makes no sense; 130 and 143 stopped by Ctrl-C and by SIGTERM
before the work was done.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup

from entrepot import __version__
from entrepot.errors import EntrepotError

Table = dict[str, tuple[str, str]]
"""For each command: the module that has it as ``command``, and its first line of help."""


class Lazy(TyperGroup):
    """A group that knows its commands' names and first lines, and imports one when it is called."""

    table: ClassVar[Table]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name, (_, line) in self.table.items():
            self.commands[name] = TyperCommand(name, help=line, rich_markup_mode=None)

    def load(self, name: str) -> Any:
        """The command itself."""
        module, _ = self.table[name]
        found = import_module(f"entrepot.cli.{module}").command
        if not isinstance(found, typer.Typer):
            one = typer.Typer(add_completion=False, rich_markup_mode=None)
            one.command(name)(found)
            found = one
        command = typer.main.get_command(found)
        command.name = name
        return command

    def resolve_command(self, ctx: Any, args: Any) -> Any:
        if args and args[0] in self.table:
            self.commands[args[0]] = self.load(args[0])
        return super().resolve_command(ctx, args)


class Commands(Lazy):
    table = {  # noqa: RUF012  # declared on the base
        "demo": ("demo", "Show the market at work, on real messages, and verify it all."),
        "broker": ("broker", "Run the broker, which brings clients and suppliers together."),
        "supplier": ("supplier", "Serve products that a function of yours makes."),
        "client": ("client", "Order products."),
        "stats": ("stats", "Show what the broker sees: orders, suppliers, outcomes."),
        "drain": ("drain", "Ask suppliers to finish what they hold and leave."),
        "doctor": ("doctor", "Find what is wrong with memory, mediums or broker, and mend it."),
        "settings": ("settings", "List every setting: its variable, default and value here."),
    }


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["--help", "-h"], "max_content_width": 80},
)


def _version(asked: bool) -> None:
    if asked:
        sys.stdout.write(f"entrepot {__version__}\n")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """A market for training data.

    A client orders a product by name, a supplier makes it, a broker brings the two together.

    \b
    See it work:   entrepot demo
    Do it:         entrepot broker
                   entrepot supplier --serve mine:make --product 'layer_\\d+'
                   entrepot client pull layer_3 --count 1000
    """


def main(args: Sequence[str] | None = None) -> None:
    """Run a command line and exit."""
    line = list(sys.argv[1:] if args is None else args)
    if sys.stdout is None or sys.stderr is None:  # closed by whoever started it
        nowhere = Path(os.devnull).open("w")  # noqa: SIM115  # as long as the process
        sys.stdout, sys.stderr = sys.stdout or nowhere, sys.stderr or nowhere
    try:
        typer.main.get_command(app).main(line, prog_name="entrepot")
        sys.stdout.flush()
    except EntrepotError as fault:
        _tell(fault, as_json="--json" in line)
        sys.exit(1)
    except OSError as fault:
        # A full disk behind a pipe, as a rule. What could not be written must not be tried again.
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115
        sys.stderr.write(f"error (os): {fault}\n")
        sys.exit(1)


def _tell(fault: EntrepotError, *, as_json: bool) -> None:
    from entrepot.cli.output import emit
    from entrepot.logs import masked

    said = masked(" ".join(str(fault).split()))
    if as_json:
        emit("error", code=fault.code, message=said)
    sys.stderr.write(f"error ({fault.code}): {said}\n")
