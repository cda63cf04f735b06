"""``entrepot client pull``."""

from __future__ import annotations

import hashlib
import re
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from entrepot.cli import output
from entrepot.cli.options import (
    Json,
    LogLevel,
    current,
    parse_size,
    setting,
    show_size,
)
from entrepot.cli.signals import exit_code, on_stop
from entrepot.errors import Closed, ConfigurationError, EntrepotError
from entrepot.logs import setup

if TYPE_CHECKING:
    from entrepot.market.client import Client, Product

SETTINGS = current().client

HINT_AFTER_S = 2.0
"""Seconds without a product after which a person is told who could make it."""

NAME_CHARS = 80
"""Characters of a product's name that go into a file's name."""

KEPT_LATENCIES = 1_000_000


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
            parser=parse_size,
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
            min=0.001,
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
    write = _writer(output_to, count)
    tally = Tally(product, count)
    stopper = Stopper()
    with (
        on_stop(stopper.stop),
        Client(
            frontend,
            create(
                SETTINGS.model_copy(
                    update={"medium": medium.value, "slots": slots, "slot_nbytes": slot_size}
                )
            ),
            name=name,
            settings=SETTINGS,
            timeout_s=broker_timeout,
        ) as client,
        stopper.closing(client),
        _progress(tally, client, quiet=json) as advance,
    ):
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


@dataclass
class Tally:
    """What came, and how long it took."""

    product: str
    wanted: int
    came: int = 0
    nbytes: int = 0
    began: float = field(default_factory=time.perf_counter)
    last_at: float = 0.0
    latencies: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT_LATENCIES))
    _ordered: deque[float] = field(default_factory=deque)

    def timed(
        self, client: Client, prefetch: int | None, timeout_s: float | None
    ) -> Iterator[Product]:
        """The products, in the order of their orders; notes when each order is placed."""
        return client.stream(self._names(), prefetch=prefetch, timeout_s=timeout_s)

    def _names(self) -> Iterator[str]:
        for _ in range(self.wanted):
            self._ordered.append(time.perf_counter())
            yield self.product

    def take(self, product: Product) -> None:
        """Count a product that came."""
        now = time.perf_counter()
        self.latencies.append(now - self._ordered.popleft())
        self.last_at = now
        self.came += 1
        self.nbytes += product.nbytes

    @property
    def seconds(self) -> float:
        """From the first order to the last product."""
        return self.last_at - self.began if self.came else 0.0

    @property
    def rate(self) -> float:
        """Products a second."""
        return self.came / self.seconds if self.came else 0.0

    def summary(self) -> dict[str, Any]:
        """Figures of the whole. The rate is from the first order to the last product."""
        took_s = self.seconds
        ordered = sorted(self.latencies)
        return {
            "product": self.product,
            "wanted": self.wanted,
            "came": self.came,
            "nbytes": self.nbytes,
            "seconds": took_s,
            "orders_per_s": self.rate if self.came else None,
            "mb_per_s": self.nbytes / took_s / 1e6 if self.came else None,
            "latency_p50_s": output.percentile(ordered, 0.50),
            "latency_p99_s": output.percentile(ordered, 0.99),
        }


class Stopper:
    """Ctrl-C and SIGTERM close the client, from a thread: a signal handler may not wait."""

    def __init__(self) -> None:
        self.number: signal.Signals | None = None
        self._wake = threading.Event()

    def stop(self, number: signal.Signals) -> None:
        """For a signal handler."""
        self.number = number
        self._wake.set()

    @contextmanager
    def closing(self, client: Client) -> Iterator[None]:
        """Within it ``stop`` closes ``client``, and whoever waits for it gets Closed."""

        def close() -> None:
            self._wake.wait()
            if self.number is not None:
                client.close()

        thread = threading.Thread(target=close, name="entrepot-stop", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._wake.set()
            thread.join()


@contextmanager
def _progress(tally: Tally, client: Client, *, quiet: bool) -> Iterator[Callable[[], None]]:
    """A bar on a terminal; nothing elsewhere. A hint when nothing comes."""
    console = output.console(stderr=True)
    if quiet or not console.is_terminal:
        yield lambda: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
    )
    with Progress(*columns, console=console, refresh_per_second=10) as bar:
        task = bar.add_task(output.shown(tally.product, 24), total=tally.wanted, rate="")

        def show() -> None:
            bar.update(task, completed=tally.came, rate=f"{tally.rate:,.0f}/s")

        over = threading.Event()

        def hint() -> None:
            if over.wait(HINT_AFTER_S) or tally.came:
                return
            try:
                why = _why_nothing(client.stats(), tally.product)
            except EntrepotError:
                return  # the main thread will say it
            bar.console.print(why)

        hinting = threading.Thread(target=hint, name="entrepot-hint", daemon=True)
        hinting.start()
        at = 0.0

        def advance() -> None:
            nonlocal at
            now = time.perf_counter()
            if now - at > 0.05:
                at = now
                show()

        try:
            yield advance
        finally:
            over.set()
            hinting.join()
            show()


def _why_nothing(stats: dict[str, Any], product: str) -> str:
    for each in stats["products"]:
        if each["product"] == product and each["unservable"]:
            return f"no supplier that is there serves {product!r}; waiting for one"
    return f"{product!r} is being made, or waits for a busy supplier"


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


def _writer(target: str | None, count: int) -> Callable[[Product], None] | None:
    if target is None:
        return None
    if target == "-":
        out = sys.stdout.buffer

        def to_stdout(product: Product) -> None:
            out.write(product.data)
            out.flush()

        return to_stdout
    folder = Path(target)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise ConfigurationError(
            f"cannot write to the folder {target!r}: {fault.strerror}; give another --output"
        ) from fault
    digits = max(6, len(str(count - 1)))
    number = 0

    def to_folder(product: Product) -> None:
        nonlocal number
        path = folder / f"{file_name(product.product_id)}-{number:0{digits}}.bin"
        number += 1
        try:
            path.write_bytes(product.data)
        except OSError as fault:
            raise ConfigurationError(f"cannot write {path}: {fault.strerror}") from fault

    return to_folder


def file_name(product_id: str) -> str:
    """A name for a file that says which product it is: no separators, not too long.

    Where characters were replaced or cut, a part of the id's hash tells alike ones apart.
    """
    kept = re.sub(r"[^\w.@ +=-]", "_", product_id).strip(". ")[:NAME_CHARS]
    while len(kept.encode()) > 2 * NAME_CHARS:
        kept = kept[:-1]
    if kept and kept == product_id:
        return kept
    return f"{kept or 'product'}~{hashlib.sha256(product_id.encode()).hexdigest()[:8]}"
