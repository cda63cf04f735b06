"""Commands as processes of their own, for tests: with pipes, or on a terminal."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any

WAIT_S = 40.0

MINE = """
import os, pathlib, signal, time

def make(name):
    return name.encode() * 3

def fill(work, out):
    out[:5] = b"5byte"
    return 5

def slow(name):
    here = pathlib.Path(os.environ["SIGNALS"])
    (here / "began").touch()
    while not (here / "go").exists():
        time.sleep(0.01)
    return b"slow"

def raises(name):
    raise RuntimeError("no GPU: " + name)

def colours(name):
    raise ValueError("\\x1b[31m red \\x9b")

def forks(name):
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, b"x")
        time.sleep(600)
        os._exit(0)
    os.read(reading, 1)
    os.close(reading)
    os.close(writing)
    os.kill(child, signal.SIGTERM)
    return str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])).encode()

async def later(name):
    return name.encode()

def yields(name):
    yield name.encode()

class Waits:
    async def __call__(self, name):
        return name.encode()

waits = Waits()

number = 7
"""


class Lines:
    """A pipe, a line at a time.

    :ivar unread: what has come and was not asked for.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        self.unread = b""
        self._stream = stream

    def next(self, deadline: float) -> bytes | None:
        """The next line, or None at the end."""
        while b"\n" not in self.unread:
            left_s = max(0.0, deadline - time.monotonic())
            ready, _, _ = select.select([self._stream], [], [], left_s)
            assert ready, f"nothing more came after {self.unread!r}"
            chunk = os.read(self._stream.fileno(), 65536)
            if not chunk:
                return None
            self.unread += chunk
        line, _, self.unread = self.unread.partition(b"\n")
        return line


class Command:
    """An ``entrepot`` command line in a process of its own."""

    def __init__(
        self, *arguments: str, cwd: Path, stdin: Any = subprocess.DEVNULL, **settings: str
    ) -> None:
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("ENTREPOT_")
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "entrepot.cli", *arguments],
            cwd=cwd,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**environment, "SIGNALS": str(cwd)}
            | {f"ENTREPOT_{name.upper()}": value for name, value in settings.items()},
        )
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.out = Lines(self.process.stdout)
        self.err = Lines(self.process.stderr)

    def event(self, name: str) -> dict[str, Any]:
        """The next event of that name on standard output, which holds events alone."""
        return self._next(self.out, "event", name)

    def logged(self, message: str) -> dict[str, Any]:
        """The next record in the log whose message begins with that."""
        return self._next(self.err, "message", message)

    def _next(self, lines: Lines, field: str, value: str) -> dict[str, Any]:
        deadline = time.monotonic() + WAIT_S
        while True:
            line = lines.next(deadline)
            assert line is not None, f"it ended without {value!r}: {self.end()}"
            said: dict[str, Any] = json.loads(line)
            if said[field] == value or (field == "message" and said[field].startswith(value)):
                return said

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> tuple[int, str, str]:
        """Exit code, and the rest of standard output and of standard error."""
        out, err = self.process.communicate(timeout=WAIT_S)
        out, err = self.out.unread + out, self.err.unread + err
        return self.process.returncode, out.decode(), err.decode()


class OnTerminal:
    """A command whose standard streams are a terminal, 80 columns wide."""

    def __init__(self, *arguments: str) -> None:
        self._ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "entrepot.cli", *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "80"},
        )
        os.close(theirs)
        self.shown = b""

    def read(self, until: str | None = None) -> str:
        """What was shown, up to and with ``until``, or to the end."""
        try:
            while until is None or until.encode() not in self.shown:
                self.shown += os.read(self._ours, 65536)
        except OSError:  # the other end is closed: the command has ended
            assert until is None, self.shown
        return self.shown.decode(errors="replace")

    def end(self) -> int:
        """Its exit code; all of what it showed stays in ``shown``."""
        self.read()
        os.close(self._ours)
        return self.process.wait(WAIT_S)


class Terminals:
    """Commands of one test, with a broker for them; whatever still runs is stopped at the end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._started: list[Command] = []

    def start(self, *arguments: str, **settings: str) -> Command:
        """``settings`` as ``sidecar__port="0"``."""
        command = Command(*arguments, cwd=self.folder, **settings)
        self._started.append(command)
        return command

    def run(self, *arguments: str) -> tuple[int, str, str]:
        return self.start(*arguments).end()

    def broker(self) -> Command:
        """A broker on free ports, ready."""
        free = "tcp://127.0.0.1:0"
        broker = self.start("broker", "--frontend", free, "--backend", free, "--json")
        where = broker.event("listening")
        self.frontend: str = where["frontend"]
        self.backend: str = where["backend"]
        return broker

    def supplier(self, function: str, *products: str, name: str = "one", more: Any = ()) -> Command:
        """A supplier of ``mine:function``, whose patterns the broker has taken."""
        patterns = [word for product in products for word in ("--product", product)]
        supplier = self.start(
            *("supplier", "--serve", f"mine:{function}", *patterns, "--name", name, "--json"),
            *("--backend", self.backend, *more),
        )
        assert supplier.event("serving")["supplier"] == name
        return supplier

    def pull(self, *more: str) -> tuple[int, str, str]:
        return self.run("client", "pull", "--frontend", self.frontend, *more)

    def close(self) -> None:
        (self.folder / "go").touch()
        running = [each for each in reversed(self._started) if each.process.poll() is None]
        for command in running:
            command.signal(signal.SIGTERM)
        for command in running:
            try:
                command.process.wait(WAIT_S)
            except subprocess.TimeoutExpired:
                command.process.kill()
        for command in self._started:
            command.process.wait()
            for stream in (command.process.stdout, command.process.stderr):
                if stream is not None:
                    stream.close()


def wait_until(path: Path) -> None:
    deadline = time.monotonic() + WAIT_S
    while not path.exists():
        assert time.monotonic() < deadline, f"{path.name} never came"
        time.sleep(0.01)


def objects(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


def told_in_a_line(err: str, code: str) -> str:
    """The fault that is told, without a traceback, as the last line of standard error."""
    assert "Traceback" not in err
    last = err.splitlines()[-1]
    assert last.startswith(f"error ({code}): "), err
    return last
