"""A project of Compose's, driven through its command line."""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakSet

ROOT = Path(__file__).parents[2]
SMS = ROOT.parent / "shared" / "data" / "sms_spam"

SERVICES = ("broker", "store", "store-init", "sidecar", "tokens", "embeddings", "client")
STAYING = ("broker", "store", "sidecar", "tokens", "embeddings", "prometheus")
START_S = 120.0
"""How long the whole may take to come up on a busy machine."""

LOOK_S = 0.5

LIVE: WeakSet[Stack] = WeakSet()
"""Those that there are."""

T = TypeVar("T")

STUDY = {"SEARCH_TRIALS": "24", "SEARCH_EPOCHS": "3", "SEARCH_MESSAGES": "256"}
"""Of so many trials that the second client finds some left when it has come up as well."""

CALLS = """\
import json, sys
from concurrent.futures import ThreadPoolExecutor

from entrepot import Client
from entrepot.mediums.chosen import create
from entrepot.settings import read_settings
from entrepot.stages import RemoteStage
from examples.sms_search.words import tokens

count, at_once = map(int, sys.argv[1:])
settings = read_settings().client
with Client(settings.endpoint, create(settings)) as client, ThreadPoolExecutor(at_once) as pool:
    clean = RemoteStage(client, "clean")
    texts = [[f"message {number}"] for number in range(count)]
    right = sum((tokens(text) == came).all() for text, came in zip(texts, pool.map(clean, texts)))
    print(json.dumps({"right": int(right)}))
"""
"""Calls the stage that tokenises, so many times, and says how many answers were right."""


class Stack:
    """One project: its containers, networks and volumes bear its name.

    :param project: the name; nobody else's.
    :param variables: of docker-compose.yml, in place of :data:`STUDY`.
    """

    def __init__(self, project: str, **variables: str) -> None:
        self.project = project
        self._urls: dict[str, str] = {}
        # Port 0 is whichever is free: two may run at once.
        ports = ("FRONTEND", "BACKEND", "SIDECAR", "PROMETHEUS", "GRAFANA")
        self._environment = {
            **os.environ,
            **(variables or STUDY),
            **{f"{name}_PORT": "0" for name in ports},
            "COMPOSE_PROJECT_NAME": project,
        }
        if (SMS / "SMSSpamCollection").is_file():
            self._environment["SMS_DATA"] = str(SMS)
        LIVE.add(self)

    def up(self, *services: str, profile: str = "") -> None:
        """Start services, all by default, and return when those that they wait for are well."""
        chosen = ["--profile", profile] if profile else []
        self.compose(
            *chosen, "up", "--detach", "--no-build", *(services or (*SERVICES, "prometheus"))
        )

    def wait_until_well(self) -> None:
        eventually(self.healths, lambda said: set(said.values()) == {"healthy"}, START_S)

    def down(self) -> None:
        """Remove all that bears the project's name, volumes too."""
        self.compose("--profile", "*", "down", "--volumes", "--timeout", "5")
        LIVE.discard(self)

    def command(self, *arguments: str) -> list[str]:
        env_file = str(ROOT / "scripts/containers/env")
        return ["docker", "compose", "--env-file", env_file, "--ansi", "never", *arguments]

    def compose(self, *arguments: str) -> str:
        """What ``docker compose`` says; AssertionError if it fails."""
        done = self.tried(*arguments)
        assert done.returncode == 0, f"{' '.join(arguments)}:\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def tried(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments),
            cwd=ROOT,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    def begun(self, *arguments: str) -> subprocess.Popen[str]:
        """The same, still running."""
        return subprocess.Popen(
            self.command(*arguments),
            cwd=ROOT,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    # --- looking ------------------------------------------------------------------------

    def containers(self, service: str = "") -> list[dict[str, Any]]:
        """What the engine says of each container, of a service or of all."""
        chosen = [service] if service else []
        ids = self.compose("ps", "--all", "--quiet", *chosen).split()
        return inspected(*ids) if ids else []

    def container(self, service: str) -> dict[str, Any]:
        (one,) = self.containers(service)
        return one

    def healths(self) -> dict[str, str]:
        """What the engine says of the health of each service that stays."""
        return {service: health(self.container(service)) for service in STAYING}

    def url(self, service: str, port: int) -> str:
        """Where a published port is; it stays there while its container is not made again."""
        if service not in self._urls:
            self._urls[service] = f"http://{self.compose('port', service, str(port)).strip()}"
        return self._urls[service]

    def sidecar(self, path: str) -> Any:
        """What the sidecar's API answers."""
        return fetched(f"{self.url('sidecar', 9555)}/api/v1/{path}")

    def query(self, promql: str) -> list[tuple[dict[str, str], float]]:
        """Labels and value of each series that Prometheus finds."""
        asked = urllib.parse.urlencode({"query": promql})
        answer = fetched(f"{self.url('prometheus', 9090)}/api/v1/query?{asked}")
        assert answer["status"] == "success", answer
        return [(each["metric"], float(each["value"][1])) for each in answer["data"]["result"]]

    def samples(self, selector: str, began: float, over: float) -> list[float]:
        """Values that Prometheus scraped between two moments, in seconds since 1970."""
        asked = urllib.parse.urlencode({"query": f"{selector}[{over - began:.0f}s]", "time": over})
        answer = fetched(f"{self.url('prometheus', 9090)}/api/v1/query?{asked}")
        assert answer["status"] == "success", answer
        found = answer["data"]["result"]
        return [float(value) for each in found for at, value in each["values"] if at >= began]

    def printed(self, container: dict[str, Any]) -> str:
        """What a container has printed; its log is another stream."""
        return docker("logs", container["Id"]).stdout


def eventually(value: Callable[[], T], holds: Callable[[T], object], limit_s: float = 60.0) -> T:
    """The first ``value()`` for which ``holds``. Looks are rare: each is a process or a request."""
    give_up = time.monotonic() + limit_s
    while not holds(last := value()):
        assert time.monotonic() < give_up, f"not within {limit_s:g} s; the last value: {last!r}"
        time.sleep(LOOK_S)
    return last


def health(container: dict[str, Any]) -> str:
    state = container["State"]
    return str(state.get("Health", {}).get("Status", state["Status"]))


def docker(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["docker", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def pause(*containers: str) -> None:
    """Have containers do nothing. Now and then the engine is "unable to freeze" one, and is asked
    again."""

    def tried(container: str) -> str:
        done = docker("pause", container)
        return "" if inspected(container)[0]["State"]["Paused"] else done.stderr or "not paused"

    for each in containers:
        eventually(partial(tried, each), lambda fault: not fault)


def unpause(*containers: str) -> None:
    """Have them go on."""
    done = docker("unpause", *containers)
    assert done.returncode == 0, done.stderr


def inspected(*names: str) -> list[dict[str, Any]]:
    done = docker("inspect", *names)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def fetched(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)
