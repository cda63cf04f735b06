"""The near end: start a process that speaks JSON lines, ask it things, end it by its id."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Protocol

CHECKOUT = Path(__file__).parents[2]


class ProcessFailed(RuntimeError):
    """A driven process answered with an error, said nothing in time, or ended."""


class Running(Protocol):
    """A process that runs, with pipes: what is needed of ``subprocess.Popen``."""

    pid: int
    returncode: Any

    @property
    def stdin(self) -> IO[bytes] | None: ...

    @property
    def stdout(self) -> IO[bytes] | None: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def kill(self) -> None: ...

    def send_signal(self, number: int, /) -> None: ...


class LineProcess:
    """A process that is driven by JSON lines; see :func:`tests.peer.lines.serve`.

    :param module: what it runs, ``python -m module``.
    :param process: the process, when it runs already; it writes its errors to ``stderr``.
    :param python: the interpreter; the tests' own by default.
    :ivar pid: its process id.
    """

    def __init__(
        self,
        module: str,
        *,
        process: Running | None = None,
        stderr: IO[bytes] | None = None,
        python: Path | str = sys.executable,
    ) -> None:
        self.name = module.rpartition(".")[2]
        self._stderr = stderr or tempfile.TemporaryFile()  # noqa: SIM115  see ``close``
        self._process: Running = process or subprocess.Popen(
            [str(python), "-m", module],
            cwd=CHECKOUT,
            env=os.environ | {"PYTHONPATH": str(CHECKOUT / "src"), "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
        )
        self.pid = self._process.pid
        self._unread = b""
        self._selector = selectors.DefaultSelector()
        assert self._process.stdout is not None
        self._selector.register(self._process.stdout, selectors.EVENT_READ)

    def ask(self, do: str, *, timeout_s: float = 60.0, **fields: Any) -> Any:
        """Send a command and wait for what it returns.

        :raises ProcessFailed: with what the process wrote on stderr.
        """
        self.begin(do, **fields)
        return self.finish(timeout_s=timeout_s)

    def begin(self, do: str, **fields: Any) -> None:
        """Send a command; ``finish`` waits for its answer."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **fields}).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._failure(f"ended before it was asked to {do}") from None

    def finish(self, *, timeout_s: float = 60.0) -> Any:
        """What the oldest command that was begun returns."""
        answer = json.loads(self._line(timeout_s))
        if "error" in answer:
            raise self._failure(answer["error"])
        return answer["result"]

    def kill(self) -> None:
        """SIGKILL, as for ``kill -9``; returns when the process is gone."""
        self._process.kill()
        self._process.wait()

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        """End it: ask by closing its stdin, then kill."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.kill()
        self._selector.close()
        self._process.stdout.close()
        self._stderr.close()

    def __enter__(self) -> LineProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _line(self, timeout_s: float) -> bytes:
        assert self._process.stdout is not None
        until = time.monotonic() + timeout_s
        while b"\n" not in self._unread:
            left = until - time.monotonic()
            if left <= 0 or not self._selector.select(left):
                raise self._failure(f"said nothing for {timeout_s:g} s")
            part = os.read(self._process.stdout.fileno(), 1 << 16)
            if not part:
                self._process.wait()
                raise self._failure(f"ended with {self._process.returncode}")
            self._unread += part
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _failure(self, what: str) -> ProcessFailed:
        self._stderr.seek(0)
        said = self._stderr.read().decode(errors="replace").strip()
        self._stderr.seek(0, os.SEEK_END)
        return ProcessFailed(f"{self.name}: {what}" + (f"\n{said[-4000:]}" if said else ""))
