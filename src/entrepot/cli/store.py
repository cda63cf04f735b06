"""``entrepot store``: the commands for a store itself, whatever is in it."""

from __future__ import annotations

import typer

from entrepot.cli.commands import Lazy


class StoreCommands(Lazy):
    table = {  # noqa: RUF012  # declared on the base
        "init": ("store_init", "Make a store: its bucket or folder, if there is none."),
        "ls": ("store_ls", "List what is in a store."),
        "cat": ("store_cat", "Print a record, or the bytes of a blob."),
        "gc": ("store_gc", "Find blobs that nothing needs, and remove them if told to."),
    }


command = typer.Typer(
    cls=StoreCommands, no_args_is_help=True, add_completion=False, rich_markup_mode=None
)


@command.callback()
def store() -> None:
    """Look into a store, make one, and tidy it up.

    A store is a folder, or a bucket: /mnt/shared, s3://bucket/prefix?endpoint=http://host:9000,
    gs://bucket, az://container. `entrepot doctor store` tries one out.
    """
