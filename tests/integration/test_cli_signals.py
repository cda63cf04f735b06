"""Ctrl-C and SIGTERM: what is in hand is finished, and said; whenever they come."""

from __future__ import annotations

import fcntl
import signal
import subprocess
import sys
import termios

import pytest

from tests.integration.cli_terminals import WAIT_S, Command, Terminals, objects, wait_until
from tests.peer.waiting import until

FREE = "tcp://127.0.0.1:0"
ROUNDS = 25


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_broker_stops_with_0(terminals: Terminals, number: signal.Signals) -> None:
    broker = terminals.broker()
    broker.signal(number)
    code, _, err = broker.end()
    assert code == 0
    assert "Traceback" not in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_supplier_finishes_what_it_holds(terminals: Terminals, number: signal.Signals) -> None:
    terminals.broker()
    supplier = terminals.supplier("slow", "x")
    pull = terminals.start("client", "pull", "x", "--frontend", terminals.frontend, "--json")
    wait_until(terminals.folder / "began")
    supplier.signal(number)
    (terminals.folder / "go").touch()
    code, out, _ = pull.end()
    assert code == 0
    assert objects(out)[-1]["came"] == 1
    code, out, _ = supplier.end()
    assert code == 0
    assert objects(out)[-1]["served"] == 1


@pytest.mark.parametrize(
    ("number", "again"),
    [
        (signal.SIGINT, "Ctrl-C again"),
        (signal.SIGTERM, "a second SIGTERM"),
    ],
)
def test_a_second_signal_ends_a_supplier_at_once_as_the_first_one_says(
    terminals: Terminals, number: signal.Signals, again: str
) -> None:
    terminals.broker()
    supplier = terminals.supplier("slow", "x")
    terminals.start("client", "pull", "x", "--frontend", terminals.frontend, "--json")
    wait_until(terminals.folder / "began")
    supplier.signal(number)
    assert supplier.logged(f"finishing the order in hand; {again} ends at once")
    assert supplier.process.poll() is None
    supplier.signal(number)
    code, _, err = supplier.end()
    assert code in (-number, 128 + number)
    assert "Traceback" not in err


def test_what_a_function_forked_ends_when_it_is_told_to(terminals: Terminals) -> None:
    """It has the supplier's handlers, and nothing to finish."""
    terminals.broker()
    supplier = terminals.supplier("forks", "x")
    code, out, _ = terminals.pull("x", "--count", "3", "--output", "-", "--timeout", f"{WAIT_S}")
    assert (code, out) == (0, "-15" * 3)
    assert supplier.process.poll() is None
    supplier.signal(signal.SIGTERM)
    code, _, err = supplier.end()
    assert code == 0
    assert "in hand" not in err, "it did not hear what its children were told"


def test_an_idle_supplier_has_nothing_to_finish(terminals: Terminals) -> None:
    terminals.broker()
    supplier = terminals.supplier("make", "x")
    supplier.signal(signal.SIGINT)
    code, _, err = supplier.end()
    assert code == 0
    assert "in hand" not in err


def test_a_second_signal_ends_a_pull_that_nobody_reads(terminals: Terminals) -> None:
    terminals.broker()
    terminals.supplier("make", ".*")
    pull = terminals.start(
        *("client", "pull", "x" * 4096, "--count", "100000", "--output", "-"),
        *("--frontend", terminals.frontend),
    )
    assert pull.process.stdout is not None
    pipe = pull.process.stdout.fileno()
    holds = fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ)
    until(lambda: pending(pipe) > holds - 4096)
    pull.signal(signal.SIGINT)
    until(lambda: told_to_stop(pull), limit_s=WAIT_S)
    code, _, err = pull.end()
    assert code in (130, -signal.SIGINT)
    assert "Traceback" not in err


def pending(pipe: int) -> int:
    """Bytes that wait in a pipe."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


def told_to_stop(command: Command) -> bool:
    """Tell it again, if it has not ended: one that follows the first at once counts as the same."""
    if command.process.poll() is None:
        command.signal(signal.SIGINT)
    return command.process.poll() is not None


@pytest.mark.parametrize(
    "command", ["broker", "stats", "drain", "pull", "busy", "supplier", "doctor", "absent"]
)
def test_a_command_ends_whenever_it_is_told_to(command: str) -> None:
    """From before it has begun until it is gone. A handler that takes a lock hangs in some."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.integration.cli_rounds", command, str(ROUNDS), "7"],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr


WHILE_IT_LOADS = """
import os, signal, sys

wanted = sys.argv.pop(1)

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == wanted:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder())
from entrepot.cli import main
main()
"""


@pytest.mark.parametrize("module", ["typer", "entrepot.cli.commands", "entrepot.cli.broker", "zmq"])
def test_ctrl_c_while_python_loads_leaves_no_traceback(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WHILE_IT_LOADS, module, "broker", "--frontend", FREE],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert done.returncode in (-signal.SIGINT, 130)
    assert done.stderr == ""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -15)])
def test_a_signal_while_a_strangers_module_loads(
    terminals: Terminals, number: signal.Signals, code: int
) -> None:
    (terminals.folder / "heavy.py").write_text(
        "import pathlib, time\npathlib.Path('began').touch()\ntime.sleep(600)\n"
    )
    supplier = terminals.start("supplier", "--serve", "heavy:make", "--product", "x")
    wait_until(terminals.folder / "began")
    supplier.signal(number)
    assert supplier.end() == (code, "", "")


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_pull_reports_what_came_so_far(
    terminals: Terminals, number: signal.Signals, exit_code: int
) -> None:
    terminals.broker()
    terminals.supplier("make", "x")
    pull = terminals.start(
        *("client", "pull", "x", "--count", "100000000", "--frontend", terminals.frontend),
        *("--output", "out", "--json"),
    )
    wait_until(terminals.folder / "out" / "x-00000005.bin")
    pull.signal(number)
    code, out, err = pull.end()
    (pulled,) = objects(out)
    assert (code, err) == (exit_code, "")
    assert 5 < pulled["came"] < pulled["wanted"]
    files = sorted((terminals.folder / "out").iterdir())
    assert len(files) == pulled["came"]
    assert {file.read_bytes() for file in files} == {b"xxx"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_pull_that_waits_for_ever_hears_a_signal(
    terminals: Terminals, number: signal.Signals
) -> None:
    terminals.broker()
    terminals.supplier("slow", "x")
    pull = terminals.start("client", "pull", "x", "--frontend", terminals.frontend)
    wait_until(terminals.folder / "began")
    pull.signal(number)
    code, out, _ = pull.end()
    assert code == 128 + number
    assert out == "x: nothing came of 1 orders\n"


def test_stats_are_watched_until_ctrl_c(terminals: Terminals) -> None:
    terminals.broker()
    watching = terminals.start(
        *("stats", "--watch", "--interval", "0.1", "--json", "--frontend", terminals.frontend)
    )
    seen = [watching.event("stats") for _ in range(3)]
    assert all(each["orders"]["open"] == 0 for each in seen)
    watching.signal(signal.SIGINT)
    code, _, err = watching.end()
    assert (code, err) == (0, "")
