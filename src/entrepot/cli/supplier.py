"""``entrepot supplier``."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Annotated

import typer

from entrepot.cli import output
from entrepot.cli.loading import load_function
from entrepot.cli.options import Json, LogLevel, current, setting
from entrepot.errors import BrokerUnavailable, EntrepotError
from entrepot.logs import setup

if TYPE_CHECKING:
    from entrepot.market.supplier import Supplier

SETTINGS = current().supplier

log = logging.getLogger("entrepot.cli.supplier")

LOOK_S = 1.0
"""How often it is looked whether serving ended before it began."""


def command(
    serve: Annotated[
        str,
        typer.Option(
            "--serve",
            metavar="MODULE:FUNCTION",
            help="The function that makes products; the working folder is searched first.",
        ),
    ],
    product: Annotated[
        list[str],
        typer.Option(
            "--product",
            metavar="PATTERN",
            help="A product's name, or an RE2 pattern of names; may be given again.",
        ),
    ],
    backend: Annotated[
        str, setting("supplier.endpoint", "--backend", metavar="ENDPOINT")
    ] = SETTINGS.endpoint,
    credit: Annotated[int, setting("supplier.credit", "--credit", metavar="N")] = SETTINGS.credit,
    name: Annotated[
        str,
        typer.Option(
            "--name", metavar="NAME", help="Shown by `entrepot stats`; host and process if empty."
        ),
    ] = "",
    exclusive: Annotated[
        bool, typer.Option("--exclusive", help="No other supplier may serve these patterns.")
    ] = False,
    timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout",
            metavar="SECONDS",
            min=0.001,
            help="Seconds to be without a broker before it gives up; it waits for one, and says "
            "so in its log, if not given.",
        ),
    ] = None,
    json: Json = False,
    log_level: LogLevel = "info",
) -> None:
    """Serve products that a function of yours makes.

    The function gets the product's name and returns its bytes: bytes, an array, anything with a
    buffer. With two parameters it gets the order and the slot to fill, and returns how many bytes
    it filled. One that raises fails the order, which then goes to another supplier. Ctrl-C and
    SIGTERM let it finish what it holds; the exit code is 0. A second one ends it at once.

    \b
    Example, with `def make(name): return name.encode()` in mine.py here:
      entrepot supplier --serve mine:make --product 'layer_\\d+'
    """
    from entrepot.market.supplier import Supplier

    setup(log_level)
    function = load_function(serve)
    supplier = Supplier(
        backend,
        (function, product),
        name=name,
        credit=credit,
        exclusive=exclusive,
        settings=SETTINGS,
    )
    over = threading.Event()
    telling = threading.Thread(target=_tell, args=(supplier, product, over), daemon=True)
    with supplier:
        if json:
            telling.start()
        try:
            supplier.run(timeout_s=timeout)
        finally:
            over.set()
            if json:
                telling.join()
    said = {"supplier": supplier.name, "served": supplier.served, "failed": supplier.failed}
    log.info("left", extra=said)
    if json:
        output.emit("left", **said)


def _tell(supplier: Supplier, patterns: list[str], over: threading.Event) -> None:
    """Say when the broker has taken the patterns."""
    while not over.is_set():
        try:
            supplier.wait_registered(LOOK_S)
        except BrokerUnavailable:
            continue
        except EntrepotError:
            return  # it ended; `run` says why
        output.emit("serving", supplier=supplier.name, patterns=patterns, backend=supplier.endpoint)
        return
