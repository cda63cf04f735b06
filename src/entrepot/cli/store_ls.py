"""``entrepot store ls``."""

from __future__ import annotations

import datetime
import sys
from typing import Annotated

import typer

from entrepot.cli import output
from entrepot.cli.options import Json
from entrepot.cli.store_init import Url

NAME_CHARS = 40
META_CHARS = 60


def command(
    url: Url,
    prefix: Annotated[
        str, typer.Argument(metavar="PREFIX", help="Only names that begin so, such as spam/.")
    ] = "",
    json: Json = False,
) -> None:
    """List what is in a store.

    A record a line: its name, when it was written, by whom, and what is said in it. What stands
    among records and cannot be read is told on standard error, and is no fault of the store.

    \b
    Examples:
      entrepot store ls /mnt/shared/studies
      entrepot store ls 's3://studies?endpoint=http://127.0.0.1:9000' spam/trial/
    """
    from entrepot.store import Store

    with Store.open(url, read_only=True) as store:
        for record in store.scan(prefix):
            if json:
                output.emit(
                    "record",
                    name=record.name,
                    digest=record.digest,
                    meta=record.meta,
                    when=record.when,
                    writer=record.writer,
                    nonce=record.nonce,
                )
                continue
            at = datetime.datetime.fromtimestamp(record.when).isoformat(" ", "seconds")
            said = " ".join(f"{key}={value}" for key, value in record.meta.items())
            name = output.shown(record.name, NAME_CHARS)
            writer = output.shown(record.writer, NAME_CHARS)
            output.say(f"{name}  {at}  {writer}  {output.shown(said, META_CHARS)}".rstrip())
        for key, fault in store.skipped.faults.items():
            sys.stderr.write(f"cannot be read ({fault}): {output.shown(key, 2 * NAME_CHARS)}\n")
