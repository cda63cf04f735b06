"""``entrepot store cat``."""

from __future__ import annotations

import json as json_
import sys
from typing import Annotated

import typer

from entrepot.cli import output
from entrepot.cli.options import Json
from entrepot.cli.store_init import Url
from entrepot.errors import NoRecord


def command(
    url: Url,
    what: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="The name of a record, or a digest, sha256: and 64 hex digits."
        ),
    ],
    blob: Annotated[
        bool, typer.Option("--blob", help="Print the blob that the record names, not the record.")
    ] = False,
    json: Json = False,
) -> None:
    """Print a record, or the bytes of a blob.

    A record is printed as JSON; bytes are printed as they are, and compared with their digest
    before that. With --json a blob is its length and its digest.

    \b
    Examples:
      entrepot store cat /mnt/shared/studies spam/trial/7/0
      entrepot store cat /mnt/shared/studies spam/trial/7/0 --blob >curve.json
    """
    from entrepot.store import Store
    from entrepot.store.record import pack_record

    with Store.open(url, read_only=True) as store:
        digest = what
        if not what.startswith("sha256:"):
            record = store.resolve(what)
            if record is None:
                fault = next(iter(store.skipped.faults.values()), None)
                why = f"what is there cannot be read ({fault})" if fault else "nobody claimed it"
                raise NoRecord(
                    f"no record of {what!r:.100} is in {store.url}: {why}; `entrepot store ls` "
                    f"lists all"
                )
            if not blob:
                if json:
                    output.emit("record", **json_.loads(pack_record(record)))
                else:
                    output.say(pack_record(record).decode().rstrip("\n"))
                return
            digest = record.digest
        data = store.get(digest)
    if json:
        output.emit("blob", digest=digest, nbytes=len(data))
        return
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
