"""``entrepot broker``."""

from __future__ import annotations

import logging
import signal
import threading
from typing import Annotated

from entrepot.cli import output
from entrepot.cli.options import Json, LogLevel, current, setting
from entrepot.cli.signals import on_stop
from entrepot.logs import setup

SETTINGS = current().broker

log = logging.getLogger("entrepot.cli.broker")

LOOPBACK = ("127.", "localhost:", "[::1]:", "::1:")


def command(
    frontend: Annotated[
        str, setting("broker.frontend", "--frontend", metavar="ENDPOINT")
    ] = SETTINGS.frontend,
    backend: Annotated[
        str, setting("broker.backend", "--backend", metavar="ENDPOINT")
    ] = SETTINGS.backend,
    json: Json = False,
    log_level: LogLevel = "info",
) -> None:
    """Run the broker, which brings clients and suppliers together.

    It stops, with exit code 0, at Ctrl-C or SIGTERM. Port 0 takes a free port, and the log says
    which. There is no authentication: whoever reaches the ports may order and serve, so that
    they listen on this machine alone unless told otherwise.

    \b
    Examples:
      entrepot broker
      entrepot broker --frontend 'tcp://*:5555' --backend 'tcp://*:5556'
    """
    from entrepot.market.broker import Broker

    setup(log_level)
    broker = Broker(frontend, backend, settings=SETTINGS)
    over = threading.Event()  # never set by a signal handler: that might wait for itself
    told: list[signal.Signals] = []
    faults: list[threading.ExceptHookArgs] = []

    def stop(number: signal.Signals) -> None:
        told.append(number)
        over.set()

    def failed(args: threading.ExceptHookArgs, /) -> None:
        faults.append(args)
        before(args)
        over.set()

    before = threading.excepthook
    threading.excepthook = failed
    try:
        with on_stop(stop), broker:
            beyond = [each for each in (frontend, backend) if not is_local(each)]
            if beyond:
                log.warning(
                    "%s can be reached from other machines, and there is no authentication: "
                    "whoever reaches it may order and serve; keep it in a trusted network",
                    " and ".join(beyond),
                )
            if json:
                output.emit("listening", frontend=broker.frontend, backend=broker.backend)
            over.wait()
    finally:
        threading.excepthook = before
    if faults:
        raise SystemExit(70)  # a fault of ours, whose traceback was printed
    log.info("stopped by %s", told[0].name)
    if json:
        output.emit("stopped", signal=told[0].name)


def is_local(endpoint: str) -> bool:
    """Whether nobody on another machine can reach ``endpoint``."""
    scheme, _, place = endpoint.partition("://")
    return scheme in ("ipc", "inproc") or place.lower().startswith(LOOPBACK)
