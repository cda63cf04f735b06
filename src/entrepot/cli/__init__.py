"""The command line: ``entrepot COMMAND``.

Exit codes: 0 all is well; 1 an :class:`~entrepot.errors.EntrepotError`, told in a line on
standard error; 2 the command line makes no sense; 130 and 143 stopped by Ctrl-C and by SIGTERM
before the work was done.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from entrepot.errors import EntrepotError


def main(args: Sequence[str] | None = None) -> None:
    """Run a command line and exit. Without ``args`` it is that of this process, which is ours."""
    if args is None:
        with _quietly():
            _run(sys.argv[1:])
        return
    from entrepot.cli.signals import Interrupted, exit_code

    try:
        _run(list(args))
    except Interrupted as fault:
        sys.exit(exit_code(fault.number))


@contextmanager
def _quietly() -> Iterator[None]:
    """Ctrl-C while Python loads what it needs, or is on its way out, ends it without a traceback.

    In between, once there is something to leave in order, it is an exception like any other.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield  # it is ignored, as for what a script has in the background
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from entrepot.cli import commands, signals  # noqa: F401  # loading takes a while

    signal.signal(signal.SIGINT, signals.interrupt)
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except signals.Interrupted as fault:
        # Not by an exit: that would first write what standard output does not take.
        signal.signal(fault.number, signal.SIG_DFL)
        signal.raise_signal(fault.number)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _run(line: list[str]) -> None:
    import typer

    from entrepot.cli.commands import app

    if sys.stdout is None or sys.stderr is None:  # closed by whoever started it
        nowhere = Path(os.devnull).open("w")  # noqa: SIM115  # as long as the process
        sys.stdout, sys.stderr = sys.stdout or nowhere, sys.stderr or nowhere
    for stream in (sys.stdout, sys.stderr):
        # A name of a stranger's must not end a command where a terminal or a file cannot hold it.
        if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
            stream.reconfigure(errors="backslashreplace")
    try:
        with told(as_json="--json" in line):
            typer.main.get_command(app).main(line, prog_name="entrepot")
            sys.stdout.flush()
    except OSError as fault:
        # A full disk behind a pipe, as a rule. What could not be written must not be tried again.
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115
        from entrepot.logs import visible

        sys.stderr.write(f"error (os): {visible(str(fault))}\n")
        sys.exit(1)


@contextmanager
def told(*, as_json: bool) -> Iterator[None]:
    """An error of ours is told in a line on standard error, and ends the process with 1.

    :param as_json: tell it as an object on standard output, too.
    """
    from entrepot.errors import EntrepotError

    try:
        yield
    except EntrepotError as fault:
        _tell(fault, as_json=as_json)
        sys.exit(1)


def _tell(fault: EntrepotError, *, as_json: bool) -> None:
    from entrepot.logs import masked, visible

    said = visible(masked(" ".join(str(fault).split())))
    if as_json:
        from entrepot.cli.output import emit

        emit("error", code=fault.code, message=said)
    sys.stderr.write(f"error ({fault.code}): {said}\n")
