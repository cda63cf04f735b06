"""A client of a command: Ctrl-C and SIGTERM end whatever it waits for."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from entrepot.cli.signals import exit_code, on_stop
from entrepot.errors import Closed

if TYPE_CHECKING:
    from entrepot.market.client import Client


class Stopper:
    """Whether the command was told to stop.

    :ivar number: by which signal; None while it was not.
    """

    def __init__(self) -> None:
        self.number: signal.Signals | None = None
        self._client: Client | None = None
        self._told = threading.Event()

    def rest(self, seconds: float) -> bool:
        """Wait that long, or until it is told to stop: whether it was."""
        return self._told.wait(seconds)

    def _stop(self, number: signal.Signals) -> None:
        if self.number is None:
            self.number = number
        self._told.set()
        if self._client is not None:
            self._client.close()

    def _has(self, client: Client) -> None:
        self._client = client
        if self.number is not None:  # it came before there was anything to close
            client.close()


@contextmanager
def stopping(make: Callable[[], Client]) -> Iterator[tuple[Client, Stopper]]:
    """A client, closed at the end of the block or by a signal: who waits for it gets Closed.

    Closed that leaves the block after a signal is the signal's exit code.
    """
    stopper = Stopper()
    with on_stop(stopper._stop), make() as client:
        stopper._has(client)
        try:
            yield client, stopper
        except Closed:
            if stopper.number is None:
                raise
            raise typer.Exit(exit_code(stopper.number)) from None


@contextmanager
def asking(endpoint: str, timeout_s: float) -> Iterator[tuple[Client, Stopper]]:
    """:func:`stopping` for a client that only asks the broker, with the least memory there is."""
    from entrepot.market.client import Client
    from entrepot.mediums.shm import ShmMedium

    def make() -> Client:
        return Client(endpoint, ShmMedium.create(1, 1), timeout_s=timeout_s)

    with stopping(make) as both:
        yield both
