"""Commands that are told to stop at random moments, as often as is asked for.

``python -m tests.integration.cli_rounds COMMAND ROUNDS SEED`` forks the command line ROUNDS times
from a process that has loaded everything, sends SIGINT or SIGTERM at a random moment (or two), and
prints what was wrong: a command that did not end, a traceback, an exit code that no shell
expects. It exits with 1 if anything was.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import IO

from entrepot.cli import main

STOPS = (signal.SIGINT, signal.SIGTERM)

END_S = 20.0
"""Time to end, which takes a few milliseconds: far more than any wait of a command."""

EARLY_S = 0.1
"""Some signals come in this time after the start, whatever the command is doing then."""

LATE_S = 0.03
"""The others in this time after it began to listen, in which it comes to its wait."""

ANY = "tcp://127.0.0.1:0"


def make(name: str) -> bytes:
    """For suppliers: at work most of the time."""
    time.sleep(0.005)
    return name.encode()


def commands(frontend: str, backend: str) -> dict[str, list[str]]:
    """What is started, for a market at these endpoints."""
    front, back = ("--frontend", frontend), ("--backend", backend)
    mine = "tests.integration.cli_rounds:make"
    return {
        "broker": ["broker", "--frontend", ANY, "--backend", ANY, "--log-level", "error"],
        "stats": ["stats", "--watch", "--interval", "0.1", "--json", *front],
        "drain": ["drain", "--wait", "30", *front],
        "pull": ["client", "pull", "nobody's", "--slots", "2", "--slot-size", "64", *front],
        "busy": ["client", "pull", "made", "--count", "100000", "--slots", "4", *front],
        "supplier": ["supplier", "--serve", mine, "--product", "made", *back],
        "doctor": ["doctor", "shm", "broker", *front, *back],
        "absent": ["stats", "--frontend", "tcp://127.0.0.1:1", "--timeout", "600"],
    }


class Child:
    """A forked command, and what it says."""

    def __init__(self, arguments: list[str]) -> None:
        self.said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # closed by `end`
        self.pid = os.fork()
        if self.pid == 0:
            self._run(arguments)

    def _run(self, arguments: list[str]) -> None:
        code: object = 1
        try:
            for stream in (1, 2):
                os.dup2(self.said.fileno(), stream)
            sys.argv[1:] = arguments
            signal.signal(signal.SIGINT, signal.default_int_handler)
            main()
        except SystemExit as ended:
            code = ended.code or 0
        except KeyboardInterrupt:  # before there was a `main` to hear it
            code = 130
        finally:
            sys.stdout.flush()
            os._exit(code if isinstance(code, int) else 1)

    def tell(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def listens(self) -> bool:
        """Whether SIGTERM would be caught; or whether it has ended."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        caught = status.partition("SigCgt:")[2].split()
        return not caught or bool(int(caught[0], 16) >> (signal.SIGTERM - 1) & 1)

    def end(self, within_s: float) -> tuple[int | None, str]:
        """Exit code, None if it had to be killed; and all that it said."""
        watched = os.pidfd_open(self.pid)
        try:
            ended, _, _ = select.select([watched], [], [], within_s)
            if not ended:
                os.kill(self.pid, signal.SIGKILL)
            _, status = os.waitpid(self.pid, 0)
        finally:
            os.close(watched)
        self.said.seek(0)
        text = self.said.read().decode(errors="replace")
        self.said.close()
        return (os.waitstatus_to_exitcode(status) if ended else None), text


def one(arguments: list[str], chance: random.Random) -> tuple[str, str]:
    """One round: how it ended, in a word or two, and what was wrong, or nothing."""
    child = Child(arguments)
    numbers = [chance.choice(STOPS) for _ in range(chance.choice((1, 1, 2, 5)))]
    early = chance.random() < 0.3
    moments = sorted(chance.uniform(0, EARLY_S if early else LATE_S) for _ in numbers)
    began = time.monotonic()
    while not early and not child.listens():
        if time.monotonic() > began + END_S:
            break
        time.sleep(0.0005)
    began = time.monotonic()
    for number, moment in zip(numbers, moments, strict=True):
        time.sleep(max(0.0, began + moment - time.monotonic()))
        child.tell(number)  # it is ours until it is waited for, ended or not
    code, said = child.end(END_S)
    since = "its start" if early else "it listened"
    told = f"told {[number.name for number in numbers]} at {moments} since {since}"
    if code is None:
        return "hung", f"{arguments[0]} did not end, {told}: {said}"
    expected = {0, *(128 + number for number in numbers), *(-number for number in numbers)}
    if code not in expected or "Traceback" in said or "Exception ignored" in said:
        return f"exit {code}", f"{arguments[0]} ended with {code}, {told}: {said}"
    return f"exit {code}", ""


def market() -> tuple[Callable[[], None], str, str]:
    """A broker with a supplier that is there until the end; how to end them, and where it is."""
    broker = Child(
        ["broker", "--frontend", ANY, "--backend", ANY, "--json", "--log-level", "error"]
    )
    deadline = time.monotonic() + END_S
    said = b""
    while not said.endswith(b"\n"):
        if time.monotonic() > deadline:
            raise TimeoutError("no broker came up")
        time.sleep(0.01)
        said = os.pread(broker.said.fileno(), 4096, 0)
    where = json.loads(said)
    serve = commands(where["frontend"], where["backend"])["supplier"]
    supplier = Child([*serve, "--log-level", "error"])

    def end() -> None:
        for child in (supplier, broker):
            child.tell(signal.SIGKILL)
            child.end(END_S)

    return end, where["frontend"], where["backend"]


def rounds(command: str, count: int, seed: int) -> int:
    """``count`` rounds of a command; how many of them went wrong."""
    end, frontend, backend = market()
    chance = random.Random(seed)
    outcomes: Counter[str] = Counter()
    wrong = 0
    try:
        for _ in range(count):
            outcome, fault = one(commands(frontend, backend)[command], chance)
            outcomes[outcome] += 1
            if fault:
                wrong += 1
                print(fault)
    finally:
        end()
    print(f"{command}: {dict(outcomes)}")
    return wrong


if __name__ == "__main__":
    import entrepot.cli.broker
    import entrepot.cli.drain
    import entrepot.cli.pull
    import entrepot.cli.stats
    import entrepot.cli.supplier
    import entrepot.market.broker
    import entrepot.market.client
    import entrepot.market.supplier  # noqa: F401  # so that a start is short

    signal.signal(signal.SIGINT, signal.SIG_DFL)  # children are forked with what ends them
    sys.exit(1 if rounds(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])) else 0)
