"""Virtual environments that tests make with pip, once, and use again while their inputs last."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]

PIP_LIMIT_S = 1800.0
"""Longer than any download of torch that is still going to end."""

SAID_EVERY_S = 10.0

Say = Callable[[str], None]


class EnvironmentUnavailable(RuntimeError):
    """An environment is not there and could not be made; the message says why."""


def mandatory() -> bool:
    """Whether tests that need one must run: wherever CI says that it is CI."""
    return bool(os.environ.get("CI"))


@dataclass(frozen=True)
class Environment:
    """One of them.

    :ivar name: what errors and what is said call it.
    :ivar where: its folder, whether or not it is there.
    :ivar stamp: the file in it that says what it was made of.
    :ivar what: what is in it, in words.
    :ivar installs: what pip is told to install, in turn, as arguments.
    :ivar inputs: what it depends on besides; when that changes, it is made anew.
    """

    name: str
    where: Path
    stamp: str
    what: str
    installs: tuple[tuple[str, ...], ...]
    inputs: dict[str, object] = field(default_factory=dict)
    kind: type[EnvironmentUnavailable] = EnvironmentUnavailable

    @property
    def interpreter(self) -> Path:
        return self.where / "bin" / "python"

    def python(self, say: Say | None = None, taken: Callable[[], Path] | None = None) -> Path:
        """Its interpreter, once it is there.

        :param taken: what to do with a folder that is there and was not made here, in place of
            making it anew.
        :raises EnvironmentUnavailable: it could not be made; nothing half-made is taken for it.
        """
        say = say or _say
        if self._stamped():
            return self.interpreter
        with self._locked(say):
            if self._stamped():  # another process made it while this one waited
                return self.interpreter
            if taken is not None and self.where.exists():
                return taken()
            self._make(say)
        return self.interpreter

    def _wanted(self) -> dict[str, object]:
        requirements = list(chain(*self.installs))
        return {"requirements": requirements, "python": sys.version_info[:3], **self.inputs}

    def _stamped(self) -> bool:
        try:
            said = json.loads((self.where / self.stamp).read_text())
        except (OSError, ValueError):
            return False
        return bool(said == json.loads(json.dumps(self._wanted())))

    def _make(self, say: Say) -> None:
        where = self.where
        say(f"{self.name}: making {where} with {self.what}; this is done once, in about a minute")
        started = time.monotonic()
        try:
            venv.create(where, clear=True, with_pip=True, symlinks=True)
        except (OSError, subprocess.SubprocessError) as fault:
            raise self.kind(f"no virtual environment could be made in {where}: {fault}") from fault
        for arguments in self.installs:
            self._install(arguments, started, say)
        (where / self.stamp).write_text(json.dumps(self._wanted()))
        say(f"{self.name}: made in {time.monotonic() - started:.0f} s")

    def _install(self, arguments: tuple[str, ...], started: float, say: Say) -> None:
        log = self.where / "pip.log"
        install = ["-m", "pip", "install", "--no-input", "--progress-bar", "off"]
        with log.open("wb") as written:
            pip = subprocess.Popen(
                [str(self.interpreter), *install, *arguments],
                cwd=CHECKOUT,
                stdin=subprocess.DEVNULL,
                stdout=written,
                stderr=subprocess.STDOUT,
            )
            try:
                self._wait(pip, log, started, say)
            finally:
                if pip.poll() is None:
                    pip.kill()
                pip.wait()
        if pip.returncode:
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
            raise self.kind(f"pip could not install {self.what} into {self.where}:\n{tail}")

    def _wait(self, pip: subprocess.Popen[bytes], log: Path, started: float, say: Say) -> None:
        while True:
            try:
                pip.wait(SAID_EVERY_S)
                return
            except subprocess.TimeoutExpired:
                spent = time.monotonic() - started
                lines = log.read_text(errors="replace").splitlines()
                last = lines[-1][:80] if lines else "starting"
                say(f"{self.name}: {spent:.0f} s, pip: {last}")
                if spent > PIP_LIMIT_S:
                    raise self.kind(f"pip did not end within {PIP_LIMIT_S:.0f} s") from None

    @contextmanager
    def _locked(self, say: Say) -> Iterator[None]:
        """One builder at a time, over all processes; the lock goes with its holder."""
        where = self.where
        where.parent.mkdir(parents=True, exist_ok=True)
        with where.with_name(f"{where.name}.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say(f"{self.name}: another process is making {where}; waiting for it")
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
