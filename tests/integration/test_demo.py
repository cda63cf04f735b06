"""The demonstration, as a newcomer runs it: it verifies everything, and leaves nothing behind.

That no shared memory is left is seen to after every test, by the plugin that looks for leaks.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from entrepot.demo import sms
from entrepot.mediums.shm import ShmMedium
from tests.integration.needs import lacking
from tests.peer.waiting import until

WAIT_S = 100.0

MODULES = {
    "entrepot.cli.child": 2,
    "entrepot.demo.apart": 4,
    "entrepot.demo.over_tcp": 2,
    "entrepot.demo.script": 3,
    "entrepot.demo.worker": 3,
}
"""What the demonstration's parts run, and how many words come before their command."""

CABLE = "a cable between two network namespaces"

Demo = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A working folder, and temporary folder, which must be empty at the end."""
    here = tmp_path / "with space"
    here.mkdir()
    yield here
    assert list(here.iterdir()) == []
    # What two networks are made of ends with their processes, which tests look for.
    assert not {"near", "far"}.intersection(name for _, name in socket.if_nameindex())


@pytest.fixture
def demo(folder: Path) -> Iterator[Demo]:
    """Starts the demonstration in ``folder``; one that a failed test leaves is killed."""
    started: list[subprocess.Popen[bytes]] = []

    def start(
        *options: str, before: Sequence[str] = (), **variables: str
    ) -> subprocess.Popen[bytes]:
        started.append(_demo(folder, options, before, variables))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def _demo(
    cwd: Path, options: Sequence[str], before: Sequence[str], variables: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("ENTREPOT_")
    }
    environment |= {sms.VARIABLE: str(sms.locate()), "TMPDIR": str(cwd)}
    environment |= {"XDG_CACHE_HOME": str(cwd.parent / "cache"), **variables}
    return subprocess.Popen(
        [*before, sys.executable, "-m", "entrepot.cli", "demo", *options],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    )


def parts_of(folder: Path) -> dict[str, int]:
    """The processes of the demonstration in ``folder`` by their command, client or supplier's name.

    Whoever their parents are: they have their environment from it.
    """
    mark = f"TMPDIR={folder}".encode()
    found = {}
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            words = (process / "cmdline").read_bytes().decode().split("\0")
            state = (process / "stat").read_text().rpartition(")")[2].split()[0]
            variables = (process / "environ").read_bytes().split(b"\0")
            marked = any(each == mark or each.startswith(mark + b"/") for each in variables)
        except OSError:
            continue  # it has just ended, or is somebody else's
        if state == "Z" or not marked:
            continue
        for module in MODULES.keys() & words:
            command = words[words.index(module) + MODULES[module]]
            if module == "entrepot.demo.over_tcp":
                command = "client"
            found[words[words.index("--name") + 1] if "--name" in words else command] = int(
                process.name
            )
    return found


def wait_for_parts(process: subprocess.Popen[bytes], folder: Path, *names: str) -> dict[str, int]:
    """The parts, once those of these names are there."""
    deadline = time.monotonic() + WAIT_S
    while not set(names) <= (found := parts_of(folder)).keys():
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    return found


def wait_for_none(folder: Path) -> None:
    deadline = time.monotonic() + WAIT_S
    while parts_of(folder):
        assert time.monotonic() < deadline, parts_of(folder)
        time.sleep(0.02)


def end(process: subprocess.Popen[bytes]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=WAIT_S)
    return process.returncode, out.decode(), err.decode()


@cache
def two_networks() -> bool:
    """Whether this machine and user have them to offer."""
    if os.geteuid() != 0 or not shutil.which("ip"):
        return False
    tried = ["unshare", "--net", "ip", "link", "add", "one", "type", "veth", "peer", "name", "two"]
    return subprocess.run(tried, capture_output=True, check=False).returncode == 0


def verified(said: dict[str, Any]) -> dict[str, Any]:
    """What came over TCP, if what the demonstration says of it all is as it should be."""
    assert (said["event"], said["ok"], said["messages"]) == ("demo", True, sms.MESSAGES)
    clean, tokens = said["epochs"]
    line: dict[str, Any] = said["line"]
    batches = -(-sms.MESSAGES // 8)
    for each in (clean, tokens, line["epoch"]):
        assert each["messages"] == sms.MESSAGES
        assert each["batches"] == batches
        assert each["orders_per_s"] > 0
        assert len(each["checksum"]) == 32
    assert clean["checksum"] != tokens["checksum"]
    assert line["epoch"]["checksum"] == tokens["checksum"]
    assert said["switch"]["dropped"] > 0
    assert said["switch"]["stale"] == 0
    assert said["kill"]["supplier"] == "tokeniser-1"
    assert said["kill"]["came_again_after_s"] > 0
    assert said["broker"]["failed"] == 0
    # Orders that the switch dropped were placed as well, and some of them made.
    ordered = clean["batches"] + tokens["batches"] + said["switch"]["dropped"]
    assert said["broker"]["placed"] == ordered
    assert said["broker"]["fulfilled"] + said["broker"]["cancelled"] == ordered
    # The cut is as long as the broker needs to give a supplier up that has been told to wait 3 s.
    assert line["down_s"] > 2.0
    assert 0 < line["moved"] <= 16
    assert line["came_again_after_s"] > 0
    assert line["broker"] == {
        "placed": batches,
        "fulfilled": batches,
        "cancelled": 0,
        "failed": 0,
    }
    student = said["student"]
    first, *epochs = student["losses"]
    assert len(epochs) == student["epochs"] == 3
    assert first > 10 * epochs[-1]
    assert student["right"] > 0.95
    assert student["killed"] == "teacher-1"
    return line


def test_it_verifies_everything_and_leaves_nothing(demo: Demo, folder: Path) -> None:
    code, out, err = end(demo("--json"))
    assert (code, err) == (0, "")
    said = json.loads(out)
    line = verified(said)
    study = said["study"]
    assert (study["left_out"], study["trials"], sum(study["by"].values())) == ("", 24, 24)
    assert (study["killed"], study["heir"]) == ("worker-1", "worker-2")
    assert study["best"] < 0.15
    page = Path(study["page"]).read_text()
    assert page.startswith("<!doctype html>")
    search = said["search"]
    assert (search["left_out"], search["trials"], sum(search["by"].values())) == ("", 6, 6)
    assert set(search["by"]) <= {"m0", "m1"}
    assert search["best"] < 0.25
    assert line["over"].startswith("loopback: ") != two_networks()
    assert (line["over"] == CABLE) == two_networks()
    assert parts_of(folder) == {}


def test_without_iproute2_it_is_all_the_same_over_loopback(
    demo: Demo, folder: Path, tmp_path: Path
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    code, out, err = end(demo("--json", "--brief", PATH=str(empty)))
    assert (code, err) == (0, "")
    assert verified(json.loads(out))["over"].startswith("loopback: network namespaces want ")
    assert parts_of(folder) == {}


def test_who_is_not_root_may_run_it_as_well(demo: Demo, folder: Path) -> None:
    tried = subprocess.run(["unshare", "--user", "true"], capture_output=True, check=False)
    if tried.returncode:
        lacking(f"cannot be another user: {tried.stderr.decode().strip()}")
    code, out, err = end(demo("--json", "--brief", before=["unshare", "--user"]))
    assert (code, err) == (0, "")
    assert verified(json.loads(out))["over"] == "loopback: network namespaces want root"
    assert parts_of(folder) == {}


def test_without_a_terminal_it_is_plain_text_of_80_columns(demo: Demo) -> None:
    code, out, err = end(demo("--brief"))
    assert (code, err) == (0, "")
    assert "\x1b" not in out
    assert max(map(len, out.splitlines())) <= 80
    for said in (
        *("broker", "tokeniser-2", "sms/clean", "kill -9", "nothing stale", "Now over TCP"),
        *("tokeniser-3", "the same over TCP", "mended, ", "teacher-1 was killed", "All of it"),
    ):
        assert said in out


def asked(url: str, path: str) -> Any:
    with urllib.request.urlopen(url + path, timeout=WAIT_S) as answer:
        return json.load(answer)


@pytest.mark.timeout(300)
def test_its_page_shows_it_as_it_happens_and_stays_until_ctrl_c(demo: Demo, folder: Path) -> None:
    with socket.socket() as somebody:
        somebody.bind(("127.0.0.1", 0))
        somebody.listen()
        taken = somebody.getsockname()[1]
        process = demo("--keep", "--page-port", str(taken))
        assert process.stdout is not None
        while (line := process.stdout.readline().decode().split())[:1] != ["page"]:
            assert process.poll() is None
        url = line[1]
        assert urlsplit(url).port not in (None, taken)
    shown: set[str] = set()
    while b"The market goes on" not in (said := process.stdout.readline()):
        assert process.poll() is None, end(process)
        if said.split()[:1] == [b"broker"]:
            until(lambda: asked(url, "/api/v1/stats")["up"])
        shown |= {each["study"] for each in asked(url, "/api/v1/studies")["studies"]}
    assert shown == {"sms", "spam"}
    until(lambda: asked(url, "/api/v1/stats")["up"])
    placed = asked(url, "/api/v1/stats")["stats"]["orders"]["placed"]
    until(lambda: asked(url, "/api/v1/stats")["stats"]["orders"]["placed"] > placed)
    first = wait_for_parts(process, folder, "tokeniser")["tokeniser"]
    os.kill(first, signal.SIGKILL)
    until(lambda: parts_of(folder).get("tokeniser", first) != first)
    placed = asked(url, "/api/v1/stats")["stats"]["orders"]["fulfilled"]
    until(lambda: asked(url, "/api/v1/stats")["stats"]["orders"]["fulfilled"] > placed)
    process.send_signal(signal.SIGINT)
    code, out, err = end(process)
    assert (code, err) == (0, "")
    assert out.endswith("It is over; nothing is left behind.\n")
    assert parts_of(folder) == {}


FIRST_HALF = ("broker", "cleaner", "tokeniser-1", "tokeniser-2")
SECOND_HALF = ("client", "broker", "tokeniser-3")
STUDY = ("worker-1", "worker-2")
SEARCH = ("examples.sms_search.clean", "examples.sms_search.embed", "examples.sms_search.search")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize(
    "parts",
    [("broker",), FIRST_HALF, ("client",), SECOND_HALF, STUDY, SEARCH],
    ids=["beginning", "first half", "second half's beginning", "second half", "study", "search"],
)
def test_stopped_on_the_way_it_leaves_nothing(
    demo: Demo, folder: Path, number: signal.Signals, code: int, parts: tuple[str, ...]
) -> None:
    process = demo()
    wait_for_parts(process, folder, *parts)
    process.send_signal(number)
    ended, out, err = end(process)
    assert (ended, err) == (code, "")
    assert f"stopped by {number.name}" in out
    assert parts_of(folder) == {}


@pytest.mark.parametrize(
    "parts",
    [FIRST_HALF, SECOND_HALF, STUDY, SEARCH],
    ids=["first half", "second half", "study", "search"],
)
def test_killed_it_takes_its_parts_with_it(
    demo: Demo, folder: Path, parts: tuple[str, ...]
) -> None:
    process = demo()
    wait_for_parts(process, folder, *parts)
    process.kill()
    end(process)
    wait_for_none(folder)
    # Its segment, if it had one by then, goes with the next that is made.
    ShmMedium.create(1, 1).close()
    for left in folder.glob("entrepot-demo-*"):  # of the searches; nobody is left to remove it
        shutil.rmtree(left)


@pytest.mark.parametrize(
    ("ready", "part", "said"),
    [
        (b"tokeniser-2", "broker", "broker ended with -9, "),
        (b"tokeniser-3", "broker", "broker ended with -9, "),
        (b"tokeniser-3", "client", "client ended with -9; "),
    ],
    ids=["first half", "second half", "the second half itself"],
)
def test_a_part_that_dies_is_named_with_its_log(
    demo: Demo, folder: Path, ready: bytes, part: str, said: str
) -> None:
    process = demo()
    assert process.stdout is not None
    while ready not in process.stdout.readline():
        assert process.poll() is None
    os.kill(wait_for_parts(process, folder, part)[part], signal.SIGKILL)
    code, _, err = end(process)
    assert code == 1
    assert err.startswith(f"error (demo_failed): {said}")
    assert "Traceback" not in err
    wait_for_none(folder)  # those of a part that was killed are ended by the kernel


@pytest.mark.timeout(300)
def test_kept_it_ends_with_its_page(demo: Demo, folder: Path) -> None:
    process = demo("--keep")
    assert process.stdout is not None
    while b"The market goes on" not in process.stdout.readline():
        assert process.poll() is None, end(process)
    os.kill(wait_for_parts(process, folder, "tokeniser", "sidecar")["sidecar"], signal.SIGKILL)
    code, _, err = end(process)
    assert code == 1
    assert err.startswith("error (demo_failed): page ended with -9; ")
    assert "ended with 0" not in err
    wait_for_none(folder)


def test_other_messages_are_refused(demo: Demo, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("ham\tnot the collection\n")
    code, out, err = end(demo("--json", ENTREPOT_SMS_DATA=str(wrong)))
    assert code == 1
    assert json.loads(out)["code"] == "data_unavailable"
    assert sms.SHA256 in err
