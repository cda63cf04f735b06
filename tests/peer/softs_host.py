"""Becomes one of the peer's parties at a time, by forking. Runs in the peer's environment.

The peer imports torch, which takes seconds and hundreds of megabytes; here that is done once.
Whoever holds the other end of the socket sends the name of a party with its stdin, stdout and
stderr, and gets its process id with a descriptor of the process. The forks share nothing else:
no thread, socket or context was made before them.
"""

from __future__ import annotations

import os
import runpy
import signal
import socket
import sys

import softs  # type: ignore[import-not-found]  # noqa: F401  what all of this is for


def host(asked: socket.socket) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # who started a party learns of its end
    while True:
        name, descriptors, _, _ = socket.recv_fds(asked, 100, 3)
        if not name:
            return
        pid = os.fork()
        if pid == 0:
            _become(name.decode(), descriptors, asked)
        process = os.pidfd_open(pid)
        for descriptor in descriptors:
            os.close(descriptor)
        socket.send_fds(asked, [str(pid).encode()], [process])
        os.close(process)


def _become(name: str, descriptors: list[int], asked: socket.socket) -> None:
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        asked.close()
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
            os.close(descriptor)
        runpy.run_module(f"tests.peer.softs_{name}", run_name="__main__", alter_sys=True)
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


if __name__ == "__main__":
    host(socket.socket(fileno=int(sys.argv[1])))
