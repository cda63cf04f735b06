"""How ``entrepot client pull`` is getting on: a bar on a terminal, and why nothing comes."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from entrepot.cli import output
from entrepot.errors import EntrepotError

if TYPE_CHECKING:
    from entrepot.cli.tally import Tally
    from entrepot.market.client import Client

log = logging.getLogger("entrepot.cli.pull")

HINT_AFTER_S = 2.0
"""Seconds without a product after which the broker is asked why."""

HINT_AT_MOST_S = 30.0
"""Seconds between two such questions, once the answer has been the same for long."""

ASK_S = 2.0
"""Seconds to wait for the broker's answer. What is wrong with the broker is not said here."""

NOBODY = "no supplier that is there serves it; waiting for one"
BUSY = "it is being made, or waits for a busy supplier"
SHORT = {NOBODY: "no supplier", BUSY: "waiting"}
"""The same beside the bar, where there is little room."""


@contextmanager
def progress(tally: Tally, client: Client, *, bar: bool) -> Iterator[Callable[[], None]]:
    """What is yielded is called after each product. While none comes, it is said why.

    With ``bar``, and a terminal, there and beside the bar; else in the log.
    """
    console = output.console(stderr=True)
    if not bar or not console.is_terminal:
        with _hints(tally, client, lambda why: _to_log(tally.product, why)):
            yield lambda: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[state]}"),
    )
    with Progress(*columns, console=console, refresh_per_second=10) as shown:
        task = shown.add_task(output.shown(tally.product, 24), total=tally.wanted, state="")
        at = 0.0
        state: str | None = None

        def show() -> None:
            shown.update(task, completed=tally.came, state=state or f"{tally.rate:,.0f}/s")

        def hint(why: str | None) -> None:
            nonlocal state
            state = None if why is None else SHORT[why]
            if why == NOBODY or (why is not None and not tally.came):
                shown.console.print(f"{output.shown(tally.product, 60)!r}: {why}")
            show()

        def advance() -> None:
            nonlocal at
            now = time.perf_counter()
            if now - at > 0.05:
                at = now
                show()

        try:
            with _hints(tally, client, hint):
                yield advance
        finally:
            state = None
            show()


def _to_log(product: str, why: str | None) -> None:
    if why == NOBODY:
        log.warning("no supplier serves the product; waiting for one", extra={"product": product})
    elif why is not None:
        log.info("the product is being made, or waits", extra={"product": product})


@contextmanager
def _hints(tally: Tally, client: Client, tell: Callable[[str | None], None]) -> Iterator[None]:
    """While the block runs, ``tell(why)`` nothing comes, each time that the reason is another.

    ``tell(None)`` once something comes again.
    """
    over = threading.Event()

    def watch() -> None:
        seen, told, pause_s = tally.came, None, HINT_AFTER_S
        while not over.wait(pause_s):
            if tally.came != seen or tally.came >= tally.wanted:
                seen, pause_s = tally.came, HINT_AFTER_S
                why = None
            else:
                try:
                    why = why_nothing(client.stats(ASK_S), tally.product)
                except EntrepotError:
                    continue  # whoever waits for the product says so
                pause_s = min(2 * pause_s, HINT_AT_MOST_S)
            if why != told and not over.is_set():
                told = why
                tell(why)

    watching = threading.Thread(target=watch, name="entrepot-hint", daemon=True)
    watching.start()
    try:
        yield
    finally:
        over.set()
        watching.join()


def why_nothing(stats: dict[str, Any], product: str) -> str | None:
    """Why no product comes, from the broker's figures: ``NOBODY`` or ``BUSY``.

    None when they do not say: they name those products alone of which most is on order.
    """
    mine = [each for each in stats["products"] if each["product"] == product]
    if not mine:
        return None
    return NOBODY if any(each["unservable"] for each in mine) else BUSY
