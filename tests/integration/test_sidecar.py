"""The sidecar as a process, beside a real broker and a real store."""

from __future__ import annotations

import json
import resource
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from http.client import HTTPResponse
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest

from entrepot.store import Store
from entrepot.study import Space, report, take
from entrepot.study.closing import compact
from tests.integration.cli_terminals import Command, Terminals
from tests.peer.waiting import until
from tests.ports import Ports

SPACE = Space().real("lr", 0.0, 1.0)
QUICK = ("--log-level", "info", "--json", "--port", "0")


def ran(store: Store, trial: int, state: str = "done", study: str = "spam") -> None:
    point = SPACE.point(lr=0.5)
    assert take(store, point, study=study, trial=trial, me="m", goal="min")
    if state != "running":
        report(store, point, [0.5], study=study, trial=trial, me="m", state=state)


def get(url: str) -> tuple[int, str]:
    """Status and body."""
    try:
        answer: HTTPResponse = urlopen(url, timeout=20)
        with answer:
            return answer.status, answer.read().decode()
    except HTTPError as refused:
        with refused:
            return refused.code, refused.read().decode()


def said(url: str) -> Any:
    return json.loads(get(url)[1])


def metric(url: str, name: str) -> float | None:
    for line in get(f"{url}/metrics")[1].splitlines():
        if line.rpartition(" ")[0] == name:
            return float(line.rpartition(" ")[2])
    return None


def sidecar(terminals: Terminals, *arguments: str) -> tuple[Command, str]:
    command = terminals.start(
        *("sidecar", *QUICK, *arguments),
        sidecar__store_every_s="0.1",
        sidecar__market_every_s="0.1",
    )
    return command, command.event("listening")["url"]


@pytest.fixture
def ends() -> Iterator[list[str]]:
    """Where a broker comes back to."""
    with closing(Ports(2)) as ports:
        yield ports.endpoints


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path / "store")


def test_broker_and_study_are_shown_as_they_change(terminals: Terminals, folder: str) -> None:
    terminals.broker()
    with Store(folder, durable=False) as store:
        ran(store, 0)
        command, url = sidecar(terminals, "--frontend", terminals.frontend, "--store", folder)
        until(lambda: get(f"{url}/readyz")[0] == 200)
        until(lambda: metric(url, 'entrepot_study_trials{state="done",study="spam"}') == 1.0)
        terminals.supplier("make", "x")
        until(lambda: metric(url, "entrepot_suppliers_connected") == 1.0)
        terminals.pull("x", "--count", "5")
        done = 'entrepot_orders_total{outcome="fulfilled"}'
        until(lambda: metric(url, done) == 5.0)
        ran(store, 1)
        ran(store, 2, "running")
        until(lambda: said(f"{url}/api/v1/studies/spam")["states"] == {"done": 2, "running": 1})
    assert "spam" in get(f"{url}/")[1]
    command.signal(signal.SIGTERM)
    code, _, err = command.end()
    assert code == 0
    assert "Traceback" not in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_in_order(terminals: Terminals, number: signal.Signals) -> None:
    command, url = sidecar(terminals, "--frontend", "tcp://127.0.0.1:1")
    assert get(f"{url}/healthz") == (200, "ok\n")
    command.signal(number)
    code, out, err = command.end()
    assert (code, json.loads(out.splitlines()[-1])["event"]) == (0, "stopped")
    assert "Traceback" not in err


def test_whatever_is_gone_is_said_and_comes_back_by_itself(
    terminals: Terminals, folder: str, tmp_path: Path, ends: list[str]
) -> None:
    frontend, backend = ends
    line = ("broker", "--frontend", frontend, "--backend", backend, "--json")
    broker = terminals.start(*line)
    broker.event("listening")
    command, url = sidecar(terminals, "--frontend", frontend, "--store", folder)
    until(lambda: get(f"{url}/readyz")[0] == 200)
    until(lambda: "cannot be read" in get(f"{url}/")[1])  # there is no store yet
    assert get(f"{url}/healthz") == (200, "ok\n")
    broker.signal(signal.SIGKILL)
    broker.end()
    until(lambda: get(f"{url}/readyz")[0] == 503)
    assert metric(url, "entrepot_broker_up") == 0.0
    assert "does not answer" in get(f"{url}/")[1]
    with Store(folder, durable=False) as store:
        ran(store, 0)
    until(lambda: metric(url, "entrepot_store_up") == 1.0)
    until(lambda: said(f"{url}/api/v1/studies")["total"] == 1)
    terminals.start(*line).event("listening")
    until(lambda: get(f"{url}/readyz")[0] == 200)
    Path(folder).rename(tmp_path / "away")
    until(lambda: metric(url, "entrepot_store_up") == 0.0)
    assert said(f"{url}/api/v1/studies")["total"] == 1, "what was last seen stays"
    (tmp_path / "away").rename(folder)
    until(lambda: metric(url, "entrepot_store_up") == 1.0)
    assert command.process.poll() is None


def test_it_writes_nothing(terminals: Terminals, folder: str) -> None:
    with Store(folder, durable=False) as store:
        ran(store, 0, "running")
    before = sorted(str(path) for path in Path(folder).rglob("*"))
    _, url = sidecar(terminals, "--frontend", "tcp://127.0.0.1:1", "--store", folder)
    until(lambda: metric(url, "entrepot_store_up") == 1.0)
    assert get(f"{url}/api/v1/studies/spam/trials")[0] == 200
    assert sorted(str(path) for path in Path(folder).rglob("*")) == before


def test_news_come_as_a_stream_of_which_there_are_only_so_many(
    terminals: Terminals, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminals.broker()
    _, url = sidecar(terminals, "--frontend", terminals.frontend)
    streams = []
    try:
        for _ in range(64):
            streams.append(urlopen(f"{url}/api/v1/events", timeout=20))
        assert get(f"{url}/api/v1/events")[0] == 503
        assert streams[0].readline() == b"event: stats\n"
        assert json.loads(streams[0].readline().removeprefix(b"data: "))["up"] in (True, False)
    finally:
        for stream in streams:
            stream.close()
    until(lambda: _listens(url))


def _listens(url: str) -> bool:
    try:
        with urlopen(f"{url}/api/v1/events", timeout=20) as stream:
            return bool(stream.status == 200)
    except HTTPError as refused:
        refused.close()
        return False


def test_a_port_that_is_taken_is_told_in_words(terminals: Terminals) -> None:
    _, url = sidecar(terminals)
    port = url.rpartition(":")[2]
    code, _, err = terminals.run("sidecar", "--port", port)
    assert code == 1
    assert f"127.0.0.1:{port}" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (("--store", ""), "a store needs a path, got ''"),
        (("--store", "file://"), "a store needs a path, got ''"),
        (("--store", "s3://"), "'' is no name of a bucket"),
        (("--store", "http://x"), "'http://x' is no store"),
        (("--store", "s3://abc?endpoint=foo"), "'foo' is no endpoint"),
        (("--frontend", "foo"), "'foo' is no endpoint"),
        (("--frontend", ""), "'' is no endpoint"),
        (("--frontend", "tcp://127.0.0.1"), "'tcp://127.0.0.1' is not an endpoint to connect to"),
    ],
)
def test_settings_that_can_never_work_end_it_at_once(
    terminals: Terminals, wrong: tuple[str, str], said: str
) -> None:
    code, out, err = terminals.run("sidecar", "--port", "0", *wrong)
    assert (code, out) == (1, "")
    last = err.splitlines()[-1]
    assert last.startswith("error (configuration): ")
    assert said in last
    assert "Traceback" not in err


def test_a_store_that_comes_later_is_waited_for(terminals: Terminals, folder: str) -> None:
    command, url = sidecar(terminals, "--frontend", "tcp://127.0.0.1:1", "--store", folder)
    command.logged("the store cannot be read")
    with Store(folder, durable=False) as store:
        ran(store, 0)
        until(lambda: metric(url, 'entrepot_study_trials{state="done",study="spam"}') == 1.0)


def test_a_scrape_waits_for_nobody(terminals: Terminals, folder: str) -> None:
    """Many ask at once, of a study with thousands of trials, while it is being read."""
    with Store(folder, durable=False) as store:
        for trial in range(2_000):
            ran(store, trial)
        assert compact(store, study="spam", grace_s=0.0) == [0, 1]
        _, url = sidecar(terminals, "--frontend", "tcp://127.0.0.1:1", "--store", folder)
        done = 'entrepot_study_trials{state="done",study="spam"}'
        until(lambda: metric(url, done) == 2_000.0)
        failed: list[object] = []

        def scrape() -> None:
            for _ in range(10):
                began = time.monotonic()
                if get(f"{url}/metrics")[0] != 200 or time.monotonic() - began > 10:
                    failed.append(time.monotonic() - began)

        threads = [threading.Thread(target=scrape) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failed == []


def test_who_holds_connections_open_keeps_nobody_else_out(terminals: Terminals) -> None:
    command, url = sidecar(terminals, "--frontend", "tcp://127.0.0.1:1")
    resource.prlimit(command.process.pid, resource.RLIMIT_NOFILE, (256, 256))
    where = urlsplit(url)
    assert where.hostname
    assert where.port
    with ExitStack() as held:
        for number in range(400):
            line = held.enter_context(socket.create_connection((where.hostname, where.port), 20))
            line.sendall((b"GET / HTTP/1.1\r\nHo", b"")[number % 2])
            if number % 100 == 99:
                assert get(f"{url}/healthz") == (200, "ok\n")
    assert get(f"{url}/healthz") == (200, "ok\n")
    command.signal(signal.SIGTERM)
    _, _, err = command.end()
    assert "Traceback" not in err
