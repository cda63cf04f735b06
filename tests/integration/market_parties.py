"""The far end of :mod:`tests.integration.market_processes`: brokers, suppliers and clients.

``python -m tests.integration.market_parties FD`` loads the library once and then becomes, by
forking, as many parties as are asked for, each a process that shares nothing with the others. A
party ends in order: on SIGTERM as a program of a user's would, through the interpreter's own exit;
when its stdin ends without that, which takes long, but for a look at what it has left behind.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from entrepot.market.broker import Broker
from entrepot.settings import BrokerSettings
from tests.integration.party_base import Bell, enter, resources
from tests.integration.party_client import ClientParty
from tests.integration.party_supplier import SupplierParty


class BrokerParty:
    """A broker."""

    def __init__(self, frontend: str, backend: str, **settings: Any) -> None:
        self._over = Bell()
        signal.signal(signal.SIGTERM, self._over.ring)
        self._broker = Broker(frontend, backend, settings=BrokerSettings(**settings))
        self._broker.start()

    def serve(self) -> None:
        """Until ``end``, or SIGTERM."""
        self._over.wait()
        self._broker.stop()

    def end(self) -> None:
        self._over.ring()

    def resources(self) -> dict[str, int]:
        return resources()


# --- a process --------------------------------------------------------------------------

SETTLE_S = 20.0
"""How long threads may take to end on a busy machine."""

LEFT_SOMETHING = 3
"""Exit code of a party that has not let go of all that it took."""

PARTIES = {"broker": BrokerParty, "supplier": SupplierParty, "client": ClientParty}


class Lines:
    """Commands as JSON lines in, answers out; not through buffers that a thread may hold."""

    def __init__(self) -> None:
        self._answers = os.dup(1)
        os.dup2(2, 1)
        self._unread = b""

    def read(self) -> dict[str, Any] | None:
        """The next command; None when there will be none."""
        while b"\n" not in self._unread:
            part = os.read(0, 1 << 16)
            if not part:
                return None
            self._unread += part
        line, _, self._unread = self._unread.partition(b"\n")
        command: dict[str, Any] = json.loads(line)
        return command

    def answer(self, function: Callable[..., object], **arguments: Any) -> None:
        try:
            answer: dict[str, object] = {"result": function(**arguments)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        left = json.dumps(answer).encode() + b"\n"
        while left:
            left = left[os.write(self._answers, left) :]


def be_a_party() -> None:
    faulthandler.register(signal.SIGUSR1)
    lines = Lines()
    before = resources()
    command = lines.read()
    if command is None:
        return
    kind = PARTIES[command.pop("do")]
    network = command.pop("network", None)
    party: Any = None

    def begin() -> None:
        nonlocal party
        if network is not None:
            enter(network)
        party = kind(**command)

    lines.answer(begin)
    if party is None:
        return

    over = threading.Event()

    def obey() -> None:
        while (command := lines.read()) is not None:
            lines.answer(getattr(party, command.pop("do")), **command)
        over.set()
        party.end()

    threading.Thread(target=obey, daemon=True).start()
    party.serve()
    before["threads"] += 1
    until_s = time.monotonic() + SETTLE_S
    while True:
        now = resources()
        if all(now[what] <= before[what] for what in now):
            break
        if time.monotonic() > until_s:
            print(f"{before} before, and {now} at the end", file=sys.stderr, flush=True)
            os._exit(LEFT_SOMETHING)
        gc.collect()
        time.sleep(0.01)
    if over.is_set():
        os._exit(0)


# --- the process that forks them --------------------------------------------------------


def be_the_nursery(asked: socket.socket) -> None:
    """Start parties, and say how they ended; returns in each party, and at the end."""
    gc.freeze()  # else each party's exit would copy, and then free, all that was loaded here
    while True:
        said, descriptors, _, _ = socket.recv_fds(asked, 100, 3)
        if not said:
            return
        if said != b"start":
            _, status = os.waitpid(int(said), 0)
            asked.send(str(os.waitstatus_to_exitcode(status)).encode())
            continue
        pid = os.fork()
        if pid == 0:
            asked.close()
            for number, descriptor in enumerate(descriptors):
                os.dup2(descriptor, number)
                os.close(descriptor)
            be_a_party()
            return
        process = os.pidfd_open(pid)
        for descriptor in descriptors:
            os.close(descriptor)
        socket.send_fds(asked, [str(pid).encode()], [process])
        os.close(process)


if __name__ == "__main__":
    be_the_nursery(socket.socket(fileno=int(sys.argv[1])))
