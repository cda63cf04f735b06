"""``entrepot client pull``."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated

import typer

from entrepot.cli import output
from entrepot.cli.asking import stopping
from entrepot.cli.files import writer
from entrepot.cli.options import Json, LogLevel, current, seconds, setting, size
from entrepot.cli.progress import progress
from entrepot.cli.signals import exit_code
from entrepot.cli.tally import Tally
from entrepot.errors import Closed, EntrepotError
from entrepot.logs import setup
from entrepot.sizes import show_size

SETTINGS = current().client


class Carrier(StrEnum):
    """Mediums by name."""

    shm = "shm"
    file = "file"
    tcp = "tcp"


MEDIUM = Carrier(SETTINGS.medium)


def command(
    product: Annotated[
        str, typer.Argument(metavar="PRODUCT", help="The product's name, such as layer_3.")
    ],
    count: Annotated[
        int, typer.Option("--count", metavar="N", min=1, help="Products to pull.")
    ] = 1,
    frontend: Annotated[
        str, setting("client.endpoint", "--frontend", metavar="ENDPOINT")
    ] = SETTINGS.endpoint,
    prefetch: Annotated[
        int | None,
        typer.Option(
            "--prefetch",
            metavar="N",
            min=1,
            help="Orders kept open at once; half of the slots if not given. With 1, the latency "
            "is that of one order alone.",
        ),
    ] = None,
    medium: Annotated[
        Carrier,
        setting(
            "client.medium",
            "--medium",
            metavar="NAME",
            help="What carries the products: shm on one machine, file in a directory that client "
            "and suppliers share, tcp between machines; their places are settings.",
        ),
    ] = MEDIUM,
    slots: Annotated[int, setting("client.slots", "--slots", metavar="N")] = SETTINGS.slots,
    slot_size: Annotated[
        int,
        setting(
            "client.slot_nbytes",
            "--slot-size",
            metavar="SIZE",
            help="Largest product, such as 1MiB, 64KiB or a number of bytes.",
            parser=size,
        ),
    ] = show_size(SETTINGS.slot_nbytes),  # type: ignore[assignment]  # the parser takes text
    output_to: Annotated[
        str | None,
        typer.Option(
            "--output",
            metavar="DIR",
            help="A folder that gets a file for each product, or - for their bytes on standard "
            "output, one after another.",
        ),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout",
            metavar="SECONDS",
            parser=seconds(),
            help="Seconds to wait for each product; for as long as the broker is there if not "
            "given.",
        ),
    ] = None,
    broker_timeout: Annotated[
        float,
        setting(
            "client.timeout_s",
            "--broker-timeout",
            metavar="SECONDS",
            help="Seconds to wait for a broker.",
        ),
    ] = SETTINGS.timeout_s,
    name: Annotated[
        str,
        typer.Option(
            "--name", metavar="NAME", help="Shown by `entrepot stats`; host and process if empty."
        ),
    ] = "",
    json: Json = False,
    log_level: LogLevel = "warning",
) -> None:
    """Order products and take them; show the rate and how long each took.

    Each product is verified against its checksum. Latency is from the order to the product in
    hand, so that orders that wait for others in --prefetch count with that wait. Ctrl-C says what
    came so far and exits with 130.

    \b
    Examples:
      entrepot client pull layer_3 --count 1000
      entrepot client pull layer_3 --count 10 --output products/
      entrepot client pull layer_3 --medium tcp
    """
    from entrepot.market.client import Client
    from entrepot.mediums import create

    if json and output_to == "-":
        raise typer.BadParameter("--json and --output - both want standard output; give one")
    setup(log_level)
    write = writer(output_to, count)
    tally = Tally(product, count)
    medium_settings = SETTINGS.model_copy(
        update={"medium": medium.value, "slots": slots, "slot_nbytes": slot_size}
    )

    def make() -> Client:
        return Client(
            frontend,
            create(medium_settings),
            name=name,
            settings=SETTINGS,
            timeout_s=broker_timeout,
        )

    with stopping(make) as (client, stopper), progress(tally, client, bar=not json) as advance:
        try:
            for taken in tally.timed(client, prefetch, timeout):
                if write is not None:
                    write(taken)
                tally.take(taken)
                advance()
                if stopper.number is not None:
                    break
        except Closed:
            if stopper.number is None:
                raise
        except EntrepotError:
            if tally.came or json:
                _report(tally, json=json, quiet=output_to == "-")
            raise
    _report(tally, json=json, quiet=output_to == "-")
    if stopper.number is not None and tally.came < count:
        raise typer.Exit(exit_code(stopper.number))


def _report(tally: Tally, *, json: bool, quiet: bool) -> None:
    said = tally.summary()
    if json:
        output.emit("pulled", **said)
        return
    name = output.shown(tally.product, 60)
    if not tally.came:
        line = f"{name}: nothing came of {tally.wanted:,} orders"
    else:
        line = (
            f"{name}: {tally.came:,} of {tally.wanted:,} products, {tally.nbytes:,} bytes "
            f"in {output.duration(said['seconds'])}\n"
            f"  {said['orders_per_s']:,.0f} orders/s, {said['mb_per_s']:,.1f} MB/s, "
            f"latency p50 {output.duration(said['latency_p50_s'])}, "
            f"p99 {output.duration(said['latency_p99_s'])}"
        )
    if quiet:
        sys.stderr.write(line + "\n")
    else:
        output.say(line)
