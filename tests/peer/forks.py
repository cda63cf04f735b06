"""The far end of :mod:`tests.peer.host`: becomes one module at a time, by forking.

The peer imports torch, which takes seconds and hundreds of megabytes; here what is named after the
socket's descriptor is imported once. Whoever holds the other end sends the name of a module with
its stdin, stdout and stderr, and gets its process id with a descriptor of the process. The forks
share nothing else: no thread, socket or context was made before them. Runs in any environment.
"""

from __future__ import annotations

import importlib
import os
import runpy
import signal
import socket
import sys


def host(asked: socket.socket) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # who asked learns of their end
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
        runpy.run_module(name, run_name="__main__", alter_sys=True)
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


if __name__ == "__main__":
    for module in sys.argv[2:]:
        importlib.import_module(module)
    host(socket.socket(fileno=int(sys.argv[1])))
