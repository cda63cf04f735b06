"""``entrepot sidecar``."""

from __future__ import annotations

import errno
import importlib.util
import logging
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

from entrepot.cli import output
from entrepot.cli.options import Json, LogLevel, current, setting
from entrepot.errors import ConfigurationError, EndpointInUse, MissingExtra
from entrepot.logs import setup

SETTINGS = current()

log = logging.getLogger("entrepot.cli.sidecar")

NEEDS = ("fastapi", "jinja2", "prometheus_client", "uvicorn")
LEAVE_S = 5


def command(
    host: Annotated[
        str, setting("sidecar.host", "--host", metavar="ADDRESS")
    ] = SETTINGS.sidecar.host,
    port: Annotated[int, setting("sidecar.port", "--port", metavar="PORT")] = SETTINGS.sidecar.port,
    frontend: Annotated[
        str, setting("client.endpoint", "--frontend", metavar="ENDPOINT")
    ] = SETTINGS.client.endpoint,
    store: Annotated[
        str | None, setting("sidecar.store", "--store", metavar="STORE")
    ] = SETTINGS.sidecar.store,
    json: Json = False,
    log_level: LogLevel = "info",
) -> None:
    """Show broker and studies over HTTP, to people and to Prometheus.

    A page, an API, and metrics. It asks the broker as a client does, reads the store and never
    writes to it, and may die at any time. Whoever reaches its port may look, unless
    ENTREPOT_SIDECAR__TOKEN_FILE names a token; so it listens on this machine alone unless told
    otherwise.

    \b
    Examples:
      entrepot sidecar
      entrepot sidecar --store /mnt/shared --host 0.0.0.0
    """
    missing = [name for name in NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingExtra(
            f"the sidecar needs {', '.join(missing)}: pip install 'entrepot[sidecar]'"
        )
    setup(log_level)
    import uvicorn

    from entrepot.sidecar.app import create_app
    from entrepot.sidecar.lines import BACKLOG, Line

    settings = SETTINGS.model_copy(
        update={
            "client": SETTINGS.client.model_copy(update={"endpoint": frontend}),
            "sidecar": SETTINGS.sidecar.model_copy(
                update={"host": host, "port": port, "store": store}
            ),
        }
    )
    app = create_app(settings)
    with _listening(host, port) as listener:
        address, bound = listener.getsockname()[:2]
        url = f"http://{f'[{address}]' if ':' in address else address}:{bound}"
        if not address.startswith("127.") and address != "::1" and not settings.sidecar.token_file:
            log.warning(
                "%s can be reached from other machines, and asks for no token: "
                "ENTREPOT_SIDECAR__TOKEN_FILE names a file with one",
                url,
            )
        log.info("the page is at %s", url)
        if json:
            output.emit("listening", url=url)
        server = uvicorn.Server(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=LEAVE_S,
                timeout_keep_alive=30,
                http=Line,
                backlog=BACKLOG,
            )
        )
        with _ended_by_signals():
            server.run([listener])
    if json:
        output.emit("stopped")


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """uvicorn raises the signal that ended it once more: here it has done its work."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, lambda _number, _frame: None)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _listening(host: str, port: int) -> socket.socket:
    """:raises EndpointInUse: somebody else listens there.
    :raises ConfigurationError: nobody can, here.
    """
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, proto)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(1_024)  # so that whoever is told where it is may connect at once
        except BaseException:
            listener.close()
            raise
    except (OSError, UnicodeError) as fault:
        said = f"cannot listen at {host}:{port}: {fault}; give another --host or --port"
        if isinstance(fault, OSError) and fault.errno == errno.EADDRINUSE:
            raise EndpointInUse(said) from fault
        raise ConfigurationError(said) from fault  # no such host, not this machine's, not allowed
    return listener
