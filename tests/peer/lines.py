"""The far end of a driven process: commands as JSON lines on stdin, answers on stdout.

Only the standard library, since this also runs in the peer's environment. A process that is
driven ends when its stdin does, so that none outlives who started it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any


def serve(handlers: Mapping[str, Callable[..., object]]) -> None:
    """Answer each ``{"do": name, ...}`` with ``{"result": ...}`` or ``{"error": ...}``, in turn.

    At the end of stdin it calls ``close``, if there is one, and the process is over.
    """
    # What libraries print goes to stderr; only answers go where answers are read.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        command: dict[str, Any] = json.loads(line)
        try:
            answer: dict[str, object] = {"result": handlers[command.pop("do")](**command)}
        except Exception as fault:  # it is the driver's to judge
            answer = {"error": f"{type(fault).__name__}: {fault}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    try:
        handlers.get("close", list)()
    finally:
        # A generator may be held in a thread, and a library may wait for it at exit.
        os._exit(0)


def commands(driven: object) -> dict[str, Callable[..., object]]:
    """Its public methods by name."""
    return {name: getattr(driven, name) for name in vars(type(driven)) if not name.startswith("_")}
