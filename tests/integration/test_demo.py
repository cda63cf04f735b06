"""The demonstration, as a newcomer runs it: it verifies everything, and leaves nothing behind.

That no shared memory is left is seen to after every test, by the plugin that looks for leaks.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from entrepot.demo import sms
from entrepot.mediums.shm import ShmMedium

WAIT_S = 100.0


Demo = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A working folder, and temporary folder, which must be empty at the end."""
    here = tmp_path / "with space"
    here.mkdir()
    yield here
    assert list(here.iterdir()) == []


@pytest.fixture
def demo(folder: Path) -> Iterator[Demo]:
    """Starts the demonstration in ``folder``; one that a failed test leaves is killed."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*options: str, **variables: str) -> subprocess.Popen[bytes]:
        started.append(_demo(folder, *options, **variables))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def _demo(cwd: Path, *options: str, **variables: str) -> subprocess.Popen[bytes]:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("ENTREPOT_")
    }
    environment |= {sms.VARIABLE: str(sms.locate()), "TMPDIR": str(cwd), **variables}
    return subprocess.Popen(
        [sys.executable, "-m", "entrepot.cli", "demo", *options],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    )


def parts_of(pid: int) -> dict[str, int]:
    """The demonstration's processes by their command, broker and supplier's name."""
    found = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            words = (folder / "cmdline").read_bytes().decode().split("\0")
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue  # it has just ended
        if "entrepot.cli.child" in words and state != "Z":
            parent, command, *more = words[words.index("entrepot.cli.child") + 1 :]
            name = more[more.index("--name") + 1] if "--name" in more else command
            if parent == str(pid):
                found[name] = int(folder.name)
    return found


def wait_for_parts(process: subprocess.Popen[bytes], count: int) -> dict[str, int]:
    deadline = time.monotonic() + WAIT_S
    while len(found := parts_of(process.pid)) < count:
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    return found


def wait_for_none(pid: int) -> None:
    deadline = time.monotonic() + WAIT_S
    while parts_of(pid):
        assert time.monotonic() < deadline, parts_of(pid)
        time.sleep(0.02)


def end(process: subprocess.Popen[bytes]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=WAIT_S)
    return process.returncode, out.decode(), err.decode()


def test_it_verifies_everything_and_leaves_nothing(demo: Demo) -> None:
    process = demo("--json")
    code, out, err = end(process)
    assert (code, err) == (0, "")
    said: dict[str, Any] = json.loads(out)
    assert (said["event"], said["ok"], said["messages"]) == ("demo", True, sms.MESSAGES)

    clean, tokens = said["epochs"]
    for each in (clean, tokens):
        assert each["messages"] == sms.MESSAGES
        assert each["batches"] == -(-sms.MESSAGES // 8)
        assert each["orders_per_s"] > 0
        assert len(each["checksum"]) == 32
    assert clean["checksum"] != tokens["checksum"]
    assert said["switch"]["dropped"] > 0
    assert said["switch"]["stale"] == 0
    assert said["kill"]["supplier"] == "tokeniser-1"
    assert said["kill"]["came_again_after_s"] > 0
    assert said["broker"]["failed"] == 0
    # Orders that the switch dropped were placed as well, and some of them made.
    ordered = clean["batches"] + tokens["batches"] + said["switch"]["dropped"]
    assert said["broker"]["placed"] == ordered
    assert said["broker"]["fulfilled"] + said["broker"]["cancelled"] == ordered

    assert parts_of(process.pid) == {}


def test_without_a_terminal_it_is_plain_text_of_80_columns(demo: Demo) -> None:
    code, out, err = end(demo())
    assert (code, err) == (0, "")
    assert "\x1b" not in out
    assert max(map(len, out.splitlines())) <= 80
    for said in ("broker", "tokeniser-2", "sms/clean", "kill -9", "nothing stale", "All of it"):
        assert said in out


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("parts", [1, 4])
def test_stopped_on_the_way_it_leaves_nothing(
    demo: Demo, number: signal.Signals, code: int, parts: int
) -> None:
    process = demo()
    wait_for_parts(process, parts)
    process.send_signal(number)
    ended, out, err = end(process)
    assert (ended, err) == (code, "")
    assert f"stopped by {number.name}" in out
    assert parts_of(process.pid) == {}


def test_killed_it_takes_its_parts_with_it(demo: Demo) -> None:
    process = demo()
    wait_for_parts(process, 4)
    process.kill()
    end(process)
    wait_for_none(process.pid)
    # Its segment, if it had one by then, goes with the next that is made.
    ShmMedium.create(1, 1).close()


def test_a_part_that_dies_is_named_with_its_log(demo: Demo) -> None:
    process = demo()
    assert process.stdout is not None
    while b"tokeniser-2" not in process.stdout.readline():
        assert process.poll() is None
    os.kill(parts_of(process.pid)["broker"], signal.SIGKILL)
    code, _, err = end(process)
    assert code == 1
    assert err.startswith("error (demo_failed): broker ended with -9, ")
    assert "Traceback" not in err
    assert parts_of(process.pid) == {}


def test_other_messages_are_refused(demo: Demo, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("ham\tnot the collection\n")
    code, out, err = end(demo("--json", ENTREPOT_SMS_DATA=str(wrong)))
    assert code == 1
    assert json.loads(out)["code"] == "data_unavailable"
    assert sms.SHA256 in err
