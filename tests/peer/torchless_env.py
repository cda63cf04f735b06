"""A virtual environment in which there is no torch: this checkout, with its extra ``contract``.

It is made with pip, once for each content of ``pyproject.toml`` and ``constraints.txt``: in
``.venv-torchless`` of the checkout. By hand: ``python -m tests.peer.torchless_env``.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from tests.peer.environment import CHECKOUT, Environment, EnvironmentUnavailable, Say, mandatory

__all__ = ["EnvironmentUnavailable", "mandatory", "torchless_python"]

INPUTS = ("pyproject.toml", "constraints.txt")
CONSTRAINED = ("--constraint", "constraints.txt")


def torchless_python(say: Say | None = None) -> Path:
    """Its interpreter, which imports the package from the checkout's ``src``.

    :raises EnvironmentUnavailable: it could not be made.
    """
    return Environment(
        "without torch",
        CHECKOUT / ".venv-torchless",
        "entrepot-torchless.json",
        "entrepot[contract]",
        # The build backend as well is of the release that constraints.txt names.
        (
            (*CONSTRAINED, "hatchling", "editables"),
            (*CONSTRAINED, "--no-build-isolation", "--editable", ".[contract]"),
        ),
        {name: hashlib.sha256((CHECKOUT / name).read_bytes()).hexdigest() for name in INPUTS},
    ).python(say)


if __name__ == "__main__":
    print(torchless_python())
