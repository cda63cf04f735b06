"""The virtual environment of the peer, ``softs`` 0.1.2 with a torch of its own.

It is made with pip, once: in ``.venv-peer`` of the checkout, or where ``ENTREPOT_PEER_VENV``
says. By hand: ``python -m tests.peer.peer_env``. It takes about a minute.
"""

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
from pathlib import Path

REQUIREMENTS = ("softs==0.1.2", "torch==2.13.0")
VARIABLE = "ENTREPOT_PEER_VENV"
STAMP = "entrepot-peer.json"
CHECKOUT = Path(__file__).parents[2]

PIP_LIMIT_S = 1800.0
"""Longer than any download of torch that is still going to end."""

SAID_EVERY_S = 10.0

Say = Callable[[str], None]


class PeerUnavailable(RuntimeError):
    """The peer's environment is not there and could not be made; the message says why."""


def folder() -> Path:
    """Where the environment is or will be."""
    named = os.environ.get(VARIABLE)
    return Path(named).absolute() if named else CHECKOUT / ".venv-peer"


def mandatory() -> bool:
    """Whether the peer's tests must run: wherever CI says that it is CI."""
    return bool(os.environ.get("CI"))


def peer_python(say: Say | None = None) -> Path:
    """The interpreter of the peer's environment, which is made when it is not there yet.

    :raises PeerUnavailable: it could not be made; nothing half-made is taken for the whole.
    """
    where, say = folder(), say or _say
    python = where / "bin" / "python"
    if _stamped(where):
        return python
    with _locked(where, say):
        if _stamped(where):  # another process made it while this one waited
            return python
        if where.exists() and os.environ.get(VARIABLE):
            # Somebody else's folder: it is used as it is, or not at all.
            return _taken_as_it_is(where, python)
        _make(where, python, say)
    return python


def _wanted() -> dict[str, object]:
    return {"requirements": list(REQUIREMENTS), "python": sys.version_info[:3]}


def _stamped(where: Path) -> bool:
    try:
        said = json.loads((where / STAMP).read_text())
    except (OSError, ValueError):
        return False
    return bool(said == json.loads(json.dumps(_wanted())))


def _taken_as_it_is(where: Path, python: Path) -> Path:
    names = [requirement.split("==")[0] for requirement in REQUIREMENTS]
    ask = "import sys; from importlib.metadata import version; print(*map(version, sys.argv[1:]))"
    try:
        answer = subprocess.run(
            [python, "-c", ask, *names], capture_output=True, text=True, timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError) as fault:
        raise PeerUnavailable(f"{VARIABLE} names {where}, which has no softs: {fault}") from fault
    # A local part, such as +cpu, is the machine's matter.
    found = [version.split("+")[0] for version in answer.stdout.split()]
    wanted = [requirement.split("==")[1] for requirement in REQUIREMENTS]
    if found != wanted:
        raise PeerUnavailable(
            f"{VARIABLE} names {where}, which has {dict(zip(names, found, strict=True))} and not "
            f"{', '.join(REQUIREMENTS)}; name another folder, or one that does not exist yet"
        )
    return python


def _make(where: Path, python: Path, say: Say) -> None:
    what = ", ".join(REQUIREMENTS)
    say(f"peer: making {where} with {what}; this is done once and takes about a minute")
    started = time.monotonic()
    try:
        venv.create(where, clear=True, with_pip=True, symlinks=True)
    except (OSError, subprocess.SubprocessError) as fault:
        raise PeerUnavailable(
            f"no virtual environment could be made in {where}: {fault}"
        ) from fault
    log = where / "pip.log"
    install = ["-m", "pip", "install", "--no-input", "--progress-bar", "off"]
    command = [str(python), *install, *REQUIREMENTS]
    with log.open("wb") as written:
        pip = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=written, stderr=subprocess.STDOUT
        )
        try:
            _wait(pip, log, started, say)
        finally:
            if pip.poll() is None:
                pip.kill()
            pip.wait()
    if pip.returncode:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        raise PeerUnavailable(f"pip could not install {what} into {where}:\n{tail}")
    (where / STAMP).write_text(json.dumps(_wanted()))
    say(f"peer: made in {time.monotonic() - started:.0f} s")


def _wait(pip: subprocess.Popen[bytes], log: Path, started: float, say: Say) -> None:
    while True:
        try:
            pip.wait(SAID_EVERY_S)
            return
        except subprocess.TimeoutExpired:
            spent = time.monotonic() - started
            lines = log.read_text(errors="replace").splitlines()
            say(f"peer: {spent:.0f} s, pip: {lines[-1][:80] if lines else 'starting'}")
            if spent > PIP_LIMIT_S:
                raise PeerUnavailable(f"pip did not end within {PIP_LIMIT_S:.0f} s") from None


@contextmanager
def _locked(where: Path, say: Say) -> Iterator[None]:
    """One builder at a time, over all processes; the lock goes with its holder."""
    where.parent.mkdir(parents=True, exist_ok=True)
    with where.with_name(f"{where.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"peer: another process is making {where}; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    print(peer_python())
