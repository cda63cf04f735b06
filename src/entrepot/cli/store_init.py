"""``entrepot store init``."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from entrepot.cli import output
from entrepot.cli.options import Json, seconds
from entrepot.errors import StoreUnreachable

Url = Annotated[str, typer.Argument(metavar="URL", help="The store: a path, or its URL.")]

AGAIN_S = 1.0
"""Seconds between two tries of --wait."""


def command(
    url: Url,
    wait: Annotated[
        float,
        typer.Option(
            "--wait",
            metavar="SECONDS",
            parser=seconds(0),
            help="Seconds to go on trying while the store does not answer.",
        ),
    ] = 0.0,
    json: Json = False,
) -> None:
    """Make a store: its bucket or folder, if there is none.

    Any number may do so at once. An endpoint on which claims would not be exact is refused.
    Credentials are taken from the environment, such as AWS_ACCESS_KEY_ID and
    AWS_SECRET_ACCESS_KEY.

    \b
    Examples:
      entrepot store init /mnt/shared/studies
      entrepot store init 's3://studies?endpoint=http://127.0.0.1:9000'
    """
    from entrepot.store.making import make_store

    give_up = time.monotonic() + wait
    while True:
        try:
            made = make_store(url)
            break
        except StoreUnreachable:
            if time.monotonic() + AGAIN_S > give_up:
                raise
            time.sleep(AGAIN_S)
    if json:
        output.emit("store", url=url, made=made)
    else:
        output.say(f"made a store at {url}" if made else f"{url} is a store already")
