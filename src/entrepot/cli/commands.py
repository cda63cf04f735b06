"""Which commands there are: one file a command, loaded when it is called."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Annotated, Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup

from entrepot import __version__

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
        "store": ("store", "Look into a store, make one, and tidy it up."),
        "study": ("study", "Look at studies in a store, rescue their trials, export them."),
        "sidecar": ("sidecar", "Show broker and studies over HTTP, to people and to Prometheus."),
        "doctor": ("doctor", "Find what is wrong with mediums, broker or a store, and mend it."),
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
