"""``entrepot client``: the commands that order products."""

from __future__ import annotations

import typer

from entrepot.cli.commands import Lazy


class ClientCommands(Lazy):
    table = {  # noqa: RUF012  # declared on the base
        "pull": ("pull", "Order products and take them; show the rate and how long each took."),
    }


command = typer.Typer(
    cls=ClientCommands, no_args_is_help=True, add_completion=False, rich_markup_mode=None
)


@command.callback()
def client() -> None:
    """Order products."""
