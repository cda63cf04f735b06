"""The virtual environment of the peer, ``softs`` 0.1.2 with a torch of its own.

It is made with pip, once: in ``.venv-peer`` of the checkout, or where ``ENTREPOT_PEER_VENV``
says. By hand: ``python -m tests.peer.peer_env``. It takes about a minute.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.peer.environment import CHECKOUT, Environment, EnvironmentUnavailable, Say, mandatory

__all__ = ["PeerUnavailable", "folder", "mandatory", "peer_python"]

REQUIREMENTS = ("softs==0.1.2", "torch==2.13.0")
VARIABLE = "ENTREPOT_PEER_VENV"


class PeerUnavailable(EnvironmentUnavailable):
    """The peer's environment is not there and could not be made; the message says why."""


def folder() -> Path:
    """Where the environment is or will be."""
    named = os.environ.get(VARIABLE)
    return Path(named).absolute() if named else CHECKOUT / ".venv-peer"


def peer_python(say: Say | None = None) -> Path:
    """The interpreter of the peer's environment, which is made when it is not there yet.

    :raises PeerUnavailable: it could not be made; nothing half-made is taken for the whole.
    """
    environment = Environment(
        "peer",
        folder(),
        "entrepot-peer.json",
        ", ".join(REQUIREMENTS),
        (REQUIREMENTS,),
        kind=PeerUnavailable,
    )
    # Somebody else's folder is used as it is, or not at all.
    taken = (lambda: _taken_as_it_is(environment)) if os.environ.get(VARIABLE) else None
    return environment.python(say, taken)


def _taken_as_it_is(environment: Environment) -> Path:
    where, python = environment.where, environment.interpreter
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


if __name__ == "__main__":
    print(peer_python())
