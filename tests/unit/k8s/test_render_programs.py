"""What pods run beside the command line: probes, settings, `helm test`."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from entrepot.stages import StageServer
from entrepot.store import Store
from tests.unit.k8s.charts import CHART, ROOT, containers, pods, render
from tests.unit.k8s.test_render import EVERY, environment

SERVICES = ROOT / "services"
BOUND_S = 30.0


def healthy(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SERVICES / "healthy.py"), *words],
        capture_output=True,
        text=True,
        timeout=BOUND_S,
        check=False,
    )


def test_connected_is_who_has_a_connection_to_that_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = f"tcp://broker:{server.getsockname()[1]}"
        # One that listens is not connected.
        refused = healthy("connected", endpoint)
        assert refused.returncode == 1
        assert refused.stderr == f"there is no connection to {endpoint}\n"
        with socket.create_connection(server.getsockname()):
            assert healthy("connected", endpoint).returncode == 0


def test_a_container_has_started_when_it_is_connected_or_there_is_nobody_to_be_connected_to() -> (
    None
):
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        waiting = healthy("started", endpoint)
        assert waiting.returncode == 1
        assert waiting.stderr == f"there is no connection to {endpoint}\n"
        with socket.create_connection(server.getsockname()):
            assert healthy("started", endpoint).returncode == 0
    assert healthy("started", endpoint).returncode == 0


def test_a_process_that_is_stopped_does_not_run() -> None:
    look = "import healthy, sys; healthy.running(f'/proc/{sys.argv[1]}')"
    with subprocess.Popen(["sleep", "60"]) as sleeper:
        try:

            def looked() -> subprocess.CompletedProcess[str]:
                return subprocess.run(
                    [sys.executable, "-c", look, str(sleeper.pid)],
                    cwd=SERVICES,
                    env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
                    capture_output=True,
                    text=True,
                    timeout=BOUND_S,
                    check=False,
                )

            assert looked().returncode == 0
            sleeper.send_signal(signal.SIGSTOP)
            give_up = time.monotonic() + BOUND_S
            while (stopped := looked()).returncode == 0:
                assert time.monotonic() < give_up
            assert stopped.stderr == "the first process does not run: its state is T\n"
        finally:
            sleeper.kill()


def test_healthy_says_what_it_can_be_asked() -> None:
    refused = healthy("well")
    assert refused.returncode == 1
    assert "say broker, supplier, http, connected, started or running, not 'well'" in refused.stderr


def test_every_variable_of_every_container_is_a_setting_that_there_is() -> None:
    told = {
        json.dumps(
            {
                name: value
                for name, value in environment(container).items()
                if name.startswith("ENTREPOT_")
            }
        )
        for values in EVERY.values()
        for pod in pods(render(values)).values()
        for container in containers(pod)
    }
    assert len(told) > 10
    code = (
        "import json, os, sys\n"
        "from entrepot.settings import read_settings\n"
        "for line in sys.stdin:\n"
        "    os.environ.update(wanted := json.loads(line))\n"
        "    read_settings()\n"
        "    for name in wanted: del os.environ[name]\n"
    )
    subprocess.run(
        [sys.executable, "-c", code], input="\n".join(told), text=True, timeout=BOUND_S, check=True
    )


# --- helm test -------------------------------------------------------------------------------


@pytest.fixture
def broker() -> Iterator[dict[str, str]]:
    words = [sys.executable, "-m", "entrepot.cli", "broker", "--json", "--log-level", "error"]
    anywhere = "tcp://127.0.0.1:0"
    with subprocess.Popen(
        [*words, "--frontend", anywhere, "--backend", anywhere], stdout=subprocess.PIPE, text=True
    ) as started:
        try:
            assert started.stdout is not None
            yield json.loads(started.stdout.readline())
        finally:
            started.terminate()


@pytest.fixture
def stage(broker: dict[str, str]) -> Iterator[str]:
    over = threading.Event()
    server = StageServer(broker["backend"], "upper", forward=str.upper)
    thread = threading.Thread(target=server.run, args=(over,))
    thread.start()
    try:
        yield "upper"
    finally:
        over.set()
        thread.join(BOUND_S)
        assert not thread.is_alive()


def tried(broker: dict[str, str], **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs what the pod of `helm test` does."""
    given = {
        "ENTREPOT_CLIENT__ENDPOINT": broker["frontend"],
        "ENTREPOT_CLIENT__MEDIUM": "tcp",
        "TRY_PRODUCT": "",
        "TRY_STAGE": "",
        "TRY_SECONDS": "10",
        **variables,
    }
    return subprocess.run(
        [sys.executable, "-c", (CHART / "files" / "try.py").read_text()],
        env={**os.environ, **given},
        capture_output=True,
        text=True,
        timeout=2 * BOUND_S,
        check=False,
    )


def test_helm_test_orders_of_a_stage_and_claims_a_trial(
    broker: dict[str, str], stage: str, tmp_path: Path
) -> None:
    url = str(tmp_path / "store")
    with Store.open(url):
        pass
    result = tried(broker, TRY_STAGE=stage, STORE_URL=url)
    assert result.returncode == 0, result.stderr
    said, done = result.stdout.splitlines()
    assert said.startswith("the stage says what it is: ")
    assert done == "a trial was claimed and finished"
    with Store.open(url) as store:
        assert [*store.scan("")] == []  # it leaves nothing


def test_helm_test_fails_where_nobody_serves(broker: dict[str, str]) -> None:
    result = tried(broker, TRY_PRODUCT="nothing", TRY_SECONDS="1")
    assert result.returncode == 1
    assert "nothing" in result.stderr


def test_helm_test_without_a_store_says_so(broker: dict[str, str], stage: str) -> None:
    result = tried(broker, TRY_STAGE=stage)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[1] == "there is no store, and no trial to claim"
