"""``entrepot supplier``."""

from __future__ import annotations

import logging
import signal
import threading
from typing import TYPE_CHECKING, Annotated

import typer

from entrepot.cli import output
from entrepot.cli.loading import load_function
from entrepot.cli.options import Json, LogLevel, current, seconds, setting
from entrepot.cli.signals import told
from entrepot.errors import BrokerUnavailable, EntrepotError
from entrepot.logs import setup

if TYPE_CHECKING:
    from entrepot.market.supplier import Supplier

SETTINGS = current().supplier

log = logging.getLogger("entrepot.cli.supplier")

LOOK_S = 1.0
"""How often it is looked whether serving ended before it began."""


def command(
    context: typer.Context,
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
    batch: Annotated[
        int | None,
        typer.Option(
            "--batch",
            metavar="N",
            min=1,
            max=65_536,
            help="Call the function with a list of up to N orders at once.",
        ),
    ] = None,
    batch_wait: Annotated[
        float, setting("supplier.batch_wait_s", "--batch-wait", metavar="SECONDS")
    ] = SETTINGS.batch_wait_s,
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
            parser=seconds(),
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
    it filled. With --batch it gets a list of up to N orders, each with a product_id, and returns a
    list of as many results, so that one call makes them all, such as one forward on a GPU. What has
    a contract, such as a Teacher, serves under it. A function that raises fails the order, which
    then goes to another supplier. Ctrl-C and SIGTERM let it finish the order in hand; the exit code
    is 0. A second one ends it at once.

    \b
    Example, with `def make(name): return name.encode()` in mine.py here:
      entrepot supplier --serve mine:make --product 'layer_\\d+'
    """
    from entrepot.market.supplier import Supplier

    setup(log_level)
    function = load_function(serve)
    source = context.get_parameter_source("credit")
    asked = source is not None and source.name == "COMMANDLINE"
    contract = getattr(function, "contract", None)  # of a Teacher, say
    supplier = Supplier(
        backend,
        (function, product),
        name=name,
        credit=credit if asked else None,
        batch=batch,
        exclusive=exclusive,
        contracts=None if contract is None else dict.fromkeys(product, contract),
        settings=SETTINGS.model_copy(update={"batch_wait_s": batch_wait}),
    )
    over = threading.Event()
    telling = threading.Thread(target=_tell, args=(supplier, product, over), daemon=True)
    hint = Hint(supplier)
    with supplier, told(hint.stop, lambda: supplier.at_work, again_s=0.0):
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


class Hint:
    """At the first signal: has the supplier stop, and says whether there is an order to finish.

    While it runs it hears of signals itself. This is for those that came before, and for people.
    """

    def __init__(self, supplier: Supplier) -> None:
        self._supplier = supplier
        self._told = False

    def stop(self, number: signal.Signals) -> None:
        """For each signal."""
        if self._told:
            return
        self._told = True
        if self._supplier.at_work:
            again = "Ctrl-C again" if number == signal.SIGINT else f"a second {number.name}"
            log.info("finishing the order in hand; %s ends at once", again)
        self._supplier.stop()


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
