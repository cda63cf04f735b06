"""The command line as real processes: three terminals, their signals, and what goes wrong."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

WAIT_S = 40.0

MINE = """
import os, pathlib, time

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

number = 7
"""


class Command:
    """An ``entrepot`` command line in a process of its own."""

    def __init__(self, *arguments: str, cwd: Path, stdin: Any = subprocess.DEVNULL) -> None:
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("ENTREPOT_")
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "entrepot.cli", *arguments],
            cwd=cwd,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**environment, "SIGNALS": str(cwd)},
        )
        self._unread = b""

    def event(self, name: str) -> dict[str, Any]:
        """The next event of that name on standard output, which holds events alone."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + WAIT_S
        while True:
            line, found, rest = self._unread.partition(b"\n")
            if found:
                self._unread = rest
                said: dict[str, Any] = json.loads(line)
                if said["event"] == name:
                    return said
                continue
            ready, _, _ = select.select(
                [self.process.stdout], [], [], max(0.0, deadline - time.monotonic())
            )
            assert ready, f"no {name!r} came"
            chunk = os.read(self.process.stdout.fileno(), 65536)
            if not chunk:
                raise AssertionError(f"it ended without {name!r}: {self.end()}")
            self._unread += chunk

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> tuple[int, str, str]:
        """Exit code, the rest of standard output, and standard error."""
        out, err = self.process.communicate(timeout=WAIT_S)
        return self.process.returncode, (self._unread + out).decode(), err.decode()


class Terminals:
    """Commands of one test, with a broker for them; whatever still runs is stopped at the end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._started: list[Command] = []

    def start(self, *arguments: str) -> Command:
        command = Command(*arguments, cwd=self.folder)
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


@pytest.fixture
def terminals(tmp_path: Path) -> Iterator[Terminals]:
    (tmp_path / "mine.py").write_text(MINE)
    terminals = Terminals(tmp_path)
    yield terminals
    terminals.close()


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


# --- three terminals --------------------------------------------------------------------


def test_three_terminals_for_a_person(terminals: Terminals) -> None:
    terminals.broker()
    terminals.supplier("make", r"layer_\d+")
    code, out, err = terminals.pull("layer_3", "--count", "300")
    assert (code, err) == (0, "")
    first, second = out.splitlines()
    assert first.startswith("layer_3: 300 of 300 products, 6,300 bytes in ")
    assert "orders/s" in second
    assert "MB/s" in second
    assert "p99" in second


def test_three_terminals_for_a_script(terminals: Terminals) -> None:
    broker = terminals.broker()
    supplier = terminals.supplier("make", r"layer_\d+", "other")
    code, out, _ = terminals.pull("other", "--count", "300", "--json")
    (pulled,) = objects(out)
    assert code == 0
    assert (pulled["event"], pulled["product"], pulled["came"]) == ("pulled", "other", 300)
    assert pulled["nbytes"] == 300 * 15
    assert pulled["orders_per_s"] > 0
    assert 0 < pulled["latency_p50_s"] <= pulled["latency_p99_s"]

    code, out, _ = terminals.run("stats", "--frontend", terminals.frontend, "--json")
    (stats,) = objects(out)
    assert code == 0
    assert stats["orders"]["fulfilled"] == 300
    assert [each["name"] for each in stats["suppliers"]["list"]] == ["one"]

    supplier.signal(signal.SIGTERM)
    code, out, _ = supplier.end()
    assert code == 0
    assert objects(out)[-1] == {"event": "left", "supplier": "one", "served": 300, "failed": 0}
    broker.signal(signal.SIGTERM)
    code, out, _ = broker.end()
    assert code == 0
    assert objects(out)[-1] == {"event": "stopped", "signal": "SIGTERM"}


def test_a_function_that_fills_the_slot(terminals: Terminals) -> None:
    terminals.broker()
    terminals.supplier("fill", "x")
    code, out, _ = terminals.pull("x", "--output", "-")
    assert (code, out) == (0, "5byte")


def test_names_of_all_kinds(terminals: Terminals) -> None:
    terminals.broker()
    terminals.supplier("make", ".*", name="ñandú, with spaces 🐟")
    for number, name in enumerate(("with spaces", "ñ 🐟", "a/b|c[1].*", "-dash", "")):
        files = terminals.folder / str(number)
        code, _, err = terminals.pull("--output", str(files), "--", name)
        assert (code, err) == (0, "")
        (file,) = files.iterdir()
        assert file.read_bytes() == name.encode() * 3
    code, out, _ = terminals.run("stats", "--frontend", terminals.frontend)
    assert code == 0
    assert "ñandú, with spaces 🐟" in out


def test_every_product_gets_a_file(terminals: Terminals) -> None:
    terminals.broker()
    terminals.supplier("make", "x")
    code, _, _ = terminals.pull("x", "--count", "12", "--output", "here/and there")
    folder = terminals.folder / "here" / "and there"
    assert code == 0
    assert sorted(file.name for file in folder.iterdir()) == [f"x-{n:06}.bin" for n in range(12)]


def test_a_broken_pipe_is_no_fault_of_ours(terminals: Terminals) -> None:
    terminals.broker()
    terminals.supplier("make", "x")
    pull = terminals.start(
        *("client", "pull", "x", "--count", "100000", "--output", "-"),
        *("--frontend", terminals.frontend),
    )
    out, err = pull.process.stdout, pull.process.stderr
    assert out is not None
    assert err is not None
    assert os.read(out.fileno(), 3) == b"xxx"
    out.close()
    assert pull.process.wait(WAIT_S) == 1
    assert "Traceback" not in err.read().decode()


# --- signals ----------------------------------------------------------------------------


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


def test_a_second_signal_ends_a_supplier_at_once(terminals: Terminals) -> None:
    terminals.broker()
    supplier = terminals.supplier("slow", "x")
    terminals.start("client", "pull", "x", "--frontend", terminals.frontend, "--json")
    wait_until(terminals.folder / "began")
    deadline = time.monotonic() + WAIT_S
    while supplier.process.poll() is None:  # until it has heard two
        assert time.monotonic() < deadline
        supplier.signal(signal.SIGTERM)
        time.sleep(0.05)
    assert supplier.process.returncode in (-signal.SIGTERM, 143)


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


# --- drain ------------------------------------------------------------------------------


def test_drain_shows_who_leaves(terminals: Terminals) -> None:
    terminals.broker()
    leaving = terminals.supplier("slow", "x", name="leaving 🐟")
    staying = terminals.supplier("make", "y", name="staying")
    pull = terminals.start("client", "pull", "x", "--frontend", terminals.frontend, "--json")
    wait_until(terminals.folder / "began")
    drain = terminals.start(
        *("drain", "--name", "leaving 🐟", "--frontend", terminals.frontend, "--json")
    )
    assert drain.event("draining")["told"] == 1
    (terminals.folder / "go").touch()
    assert drain.event("left")["name"] == "leaving 🐟"
    assert drain.end()[0] == 0
    assert leaving.end()[0] == 0
    assert pull.end()[0] == 0, "what it held was finished"
    assert staying.process.poll() is None


def test_drain_of_nobody(terminals: Terminals) -> None:
    terminals.broker()
    code, out, _ = terminals.run("drain", "--frontend", terminals.frontend)
    assert (code, out) == (0, "asked 0 suppliers to leave\n")


def test_drain_names_who_has_not_left(terminals: Terminals) -> None:
    terminals.broker()
    terminals.supplier("slow", "x", name="slow one")
    terminals.start("client", "pull", "x", "--frontend", terminals.frontend)
    wait_until(terminals.folder / "began")
    code, _, err = terminals.run("drain", "--frontend", terminals.frontend, "--wait", "0.3")
    assert code == 1
    assert "slow one (holds 1)" in told_in_a_line(err, "order_timeout")


# --- what goes wrong --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("serve", "said"),
    [
        ("nowhere:make", "no module 'nowhere'"),
        ("mine:nothing", "no 'nothing' in module 'mine'"),
        ("mine:number", "cannot be called"),
        ("mine", "give package.module:function"),
    ],
)
def test_what_cannot_be_served_is_said(terminals: Terminals, serve: str, said: str) -> None:
    code, out, err = terminals.run("supplier", "--serve", serve, "--product", "x")
    assert (code, out) == (1, "")
    assert said in told_in_a_line(err, "configuration")


def test_a_port_in_use(terminals: Terminals) -> None:
    terminals.broker()
    code, _, err = terminals.run("broker", "--frontend", terminals.frontend)
    assert code == 1
    assert terminals.frontend in told_in_a_line(err, "endpoint_in_use")


def test_a_bad_pattern(terminals: Terminals) -> None:
    code, _, err = terminals.run("supplier", "--serve", "mine:make", "--product", "(?<=a)b")
    assert code == 1
    assert "(?<" in told_in_a_line(err, "pattern_refused")


def test_a_pattern_that_is_anothers(terminals: Terminals) -> None:
    terminals.broker()
    terminals.supplier("make", r"layer_\d+", more=["--exclusive"])
    code, _, err = terminals.run(
        *("supplier", "--serve", "mine:make", "--product", r"layer_\d+"),
        *("--backend", terminals.backend),
    )
    assert code == 1
    assert "layer_" in told_in_a_line(err, "pattern_taken")


def test_a_function_that_raises(terminals: Terminals) -> None:
    terminals.broker()
    terminals.supplier("raises", "x", name="poor")
    code, _, err = terminals.pull("x", "--count", "3")
    assert code == 1
    said = told_in_a_line(err, "failed")
    assert "poor: RuntimeError: no GPU: x" in said


def test_a_product_larger_than_its_slot(terminals: Terminals) -> None:
    terminals.broker()
    terminals.supplier("make", ".*")
    code, _, err = terminals.pull("x" * 100, "--slot-size", "299")
    assert code == 1
    assert "ProductTooLarge" in told_in_a_line(err, "failed")


def test_no_supplier_within_the_time_out(terminals: Terminals) -> None:
    terminals.broker()
    code, _, err = terminals.pull("nobody's", "--timeout", "0.3")
    assert code == 1
    assert "nobody's" in told_in_a_line(err, "order_timeout")


def test_an_absent_broker_is_told_within_the_time_out(terminals: Terminals) -> None:
    began = time.monotonic()
    code, _, err = terminals.run(
        *("client", "pull", "x", "--frontend", "tcp://127.0.0.1:1", "--broker-timeout", "0.5")
    )
    assert code == 1
    assert "tcp://127.0.0.1:1" in told_in_a_line(err, "broker_unavailable")
    assert time.monotonic() - began < WAIT_S


def test_beyond_loopback_it_says_that_there_is_no_authentication(terminals: Terminals) -> None:
    free = "tcp://127.0.0.1:0"
    broker = terminals.start("broker", "--frontend", "tcp://*:0", "--backend", free, "--json")
    broker.event("listening")
    broker.signal(signal.SIGTERM)
    code, _, err = broker.end()
    assert code == 0
    warned = [each for each in objects(err) if each["level"] == "warning"]
    assert len(warned) == 1
    assert "tcp://*:0" in warned[0]["message"]
    assert "no authentication" in warned[0]["message"]


def test_on_loopback_nothing_is_warned_of(terminals: Terminals) -> None:
    broker = terminals.broker()
    broker.signal(signal.SIGTERM)
    assert {each["level"] for each in objects(broker.end()[2])} == {"info"}


# --- logs and terminals -----------------------------------------------------------------


def test_logs_name_the_order_and_the_supplier(terminals: Terminals) -> None:
    terminals.broker()
    supplier = terminals.supplier("raises", "x", name="poor")
    terminals.pull("x")
    supplier.signal(signal.SIGTERM)
    _, _, err = supplier.end()
    failed = [each for each in objects(err) if each["message"] == "an order failed"]
    assert failed
    assert all(each["supplier"] == "poor" and each["order_id"] for each in failed)


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


def test_on_a_terminal_there_is_a_bar_and_text(terminals: Terminals) -> None:
    terminals.broker()
    terminals.supplier("make", "x")
    pull = OnTerminal("client", "pull", "x", "--count", "500", "--frontend", terminals.frontend)
    assert pull.end() == 0
    shown = pull.shown.decode()
    assert "━" in shown
    assert "500/500" in shown
    assert "x: 500 of 500 products" in shown


def test_on_a_terminal_it_says_why_nothing_comes(terminals: Terminals) -> None:
    terminals.broker()
    pull = OnTerminal("client", "pull", "nobody's", "--frontend", terminals.frontend)
    pull.read(until="no supplier that is there serves")
    pull.process.send_signal(signal.SIGINT)
    assert pull.end() == 130


def test_on_a_terminal_logs_are_text(terminals: Terminals) -> None:
    free = "tcp://127.0.0.1:0"
    broker = OnTerminal("broker", "--frontend", free, "--backend", free)
    shown = broker.read(until="suppliers at")
    assert re.match(r"\d\d:\d\d:\d\d info clients at tcp://127.0.0.1:\d+, suppliers at", shown)
    broker.process.send_signal(signal.SIGINT)
    assert broker.end() == 0


# --- the README -------------------------------------------------------------------------

README = Path(__file__).parents[2] / "README.md"


def readme_code(terminals: Terminals) -> list[str]:
    """The README's programs, for the broker of this test."""
    text = README.read_text()
    for there, here in (("5555", terminals.frontend), ("5556", terminals.backend)):
        text = text.replace(f"tcp://127.0.0.1:{there}", here)
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def test_the_three_terminals_of_the_readme(terminals: Terminals) -> None:
    terminals.broker()
    mine, client, _ = readme_code(terminals)
    (terminals.folder / "mine.py").write_text(mine)
    terminals.supplier("make", r"layer_\d+", name="mine")
    code, out, _ = terminals.pull("layer_3", "--count", "20")
    assert code == 0
    assert "20 of 20 products, 5,242,880 bytes" in out
    done = subprocess.run(
        [sys.executable, "-c", client], capture_output=True, text=True, timeout=WAIT_S
    )
    assert done.stderr == ""
    assert f"```\n{done.stdout}```" in README.read_text(), "it prints what it is said to print"
    code, out, _ = terminals.run("drain", "--frontend", terminals.frontend)
    assert out == "asked 1 supplier to leave\n  mine has left; it served 121\n"


def test_the_readme_supplier_in_python(terminals: Terminals) -> None:
    terminals.broker()
    _, _, program = readme_code(terminals)
    supplier = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE)
    try:
        code, out, _ = terminals.pull("batch_7", "--json", "--timeout", str(WAIT_S))
        assert code == 0
        assert objects(out)[0]["nbytes"] == 8 * 128 * 4 + 8
    finally:
        supplier.send_signal(signal.SIGTERM)
        _, err = supplier.communicate(timeout=WAIT_S)
    assert supplier.returncode == 0, err


def test_the_readme_names_files_that_are_there() -> None:
    for target in re.findall(r"\]\(([^):]+)\)", README.read_text()):
        assert (README.parent / target).exists(), target
