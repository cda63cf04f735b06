"""The near end of :mod:`tests.peer.forks`: driven processes that start at once."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from tests.peer.process import CHECKOUT, LineProcess, ProcessFailed

START_S = 120.0
"""How long the import of torch may take on a busy machine that never did it before."""


class Forked:
    """A process that another one forked: what of ``subprocess.Popen`` a LineProcess needs."""

    def __init__(self, pid: int, descriptor: int, stdin: IO[bytes], stdout: IO[bytes]) -> None:
        self.pid = pid
        self.stdin = stdin
        self.stdout = stdout
        self.returncode: int | None = None
        self._descriptor = descriptor

    def poll(self) -> int | None:
        """None while it runs. How it ended is not known: -1."""
        if self.returncode is None and self._ended(0):
            os.close(self._descriptor)
            self.returncode = -1
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.poll() is None and not self._ended(timeout):
            raise subprocess.TimeoutExpired("a forked process", timeout or 0)
        self.poll()
        return -1

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            try:
                signal.pidfd_send_signal(self._descriptor, number)
            except ProcessLookupError:
                pass

    def _ended(self, timeout_s: float | None) -> bool:
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        return bool(poll.poll(None if timeout_s is None else timeout_s * 1000))


class Host:
    """Starts modules that :func:`tests.peer.lines.serve`, each as a process.

    :param python: the interpreter.
    :param imported: what they all import, and takes long.
    """

    def __init__(self, *imported: str, python: Path | str = sys.executable) -> None:
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(START_S)
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  closed in ``close``
        with theirs:
            number = str(theirs.fileno())
            self._process = subprocess.Popen(
                [str(python), "-m", "tests.peer.forks", number, *imported],
                cwd=CHECKOUT,
                env=os.environ | {"PYTHONPATH": str(CHECKOUT / "src"), "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._stderr,
                pass_fds=[theirs.fileno()],
            )

    def start(self, module: str) -> LineProcess:
        """A process; the caller closes it."""
        stdin, stdin_end = os.pipe()
        stdout_end, stdout = os.pipe()
        stderr = tempfile.TemporaryFile()  # noqa: SIM115  the LineProcess closes it
        ours: list[IO[bytes]] = [os.fdopen(stdin_end, "wb"), os.fdopen(stdout_end, "rb")]
        try:
            socket.send_fds(self._socket, [module.encode()], [stdin, stdout, stderr.fileno()])
            said, (descriptor,), _, _ = socket.recv_fds(self._socket, 100, 1)
        except (OSError, ValueError) as fault:
            for end in (*ours, stderr):
                end.close()
            self._stderr.seek(0)
            raise ProcessFailed(
                f"no {module} was started: {fault}\n{self._stderr.read().decode()}"
            ) from fault
        finally:
            os.close(stdin)
            os.close(stdout)
        process = Forked(int(said), descriptor, *ours)
        return LineProcess(module, process=process, stderr=stderr)

    def close(self) -> None:
        """End it; the processes have been closed before."""
        self._socket.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._stderr.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def softs_host(python: Path) -> Host:
    """A host for the peer's parties, ``tests.peer.softs_...``, in its environment."""
    return Host("softs", python=python)
