"""``docker compose up``, and what the stack promises. The tests run in the order they stand in."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from typing import Any

import pytest

from tests.containers.stack import (
    CALLS,
    START_S,
    STAYING,
    STUDY,
    Stack,
    docker,
    eventually,
    health,
    pause,
    unpause,
)
from tests.integration.sms_promises import told_in_json

pytestmark = pytest.mark.timeout(600)

TRIALS = int(STUDY["SEARCH_TRIALS"])
STUDY_S = 180.0


def test_every_service_comes_up_healthy(stack: Stack) -> None:
    stack.wait_until_well()
    assert stack.container("store-init")["State"]["ExitCode"] == 0


def test_every_container_is_locked_down(stack: Stack) -> None:
    containers = stack.containers()
    assert len(containers) == len(STAYING) + 3  # store-init, and two clients
    for container in containers:
        name, host = container["Name"], container["HostConfig"]
        assert container["Config"]["User"] == "10001:10001", name
        assert host["ReadonlyRootfs"], name
        assert host["CapDrop"] == ["ALL"], name
        assert not host["CapAdd"], name
        assert host["SecurityOpt"] == ["no-new-privileges:true"], name
        assert not host["Privileged"], name
        assert host["IpcMode"] == "private", name
        assert host["NetworkMode"] != "host", name
        assert host["Memory"], name
        for bound in (host["PortBindings"] or {}).values():
            assert {each["HostIp"] for each in bound} == {"127.0.0.1"}, name
        variables = "\n".join(container["Config"]["Env"])
        assert "entrepot-demo" not in variables, f"{name} has a secret in its environment"


def test_the_study_is_finished_by_two_clients_each_trial_once(stack: Stack) -> None:
    clients = eventually(
        lambda: stack.containers("client"),
        lambda found: [exited(each) for each in found] == [("exited", 0)] * 2,
        STUDY_S,
    )
    shares = [ran(stack, client) for client in clients]
    assert all(shares), "one of the clients ran no trial"
    assert Counter(shares[0] + shares[1]) == Counter(range(TRIALS))


def exited(container: dict[str, Any]) -> tuple[str, int]:
    """Whether a container has ended, and how."""
    return container["State"]["Status"], container["State"]["ExitCode"]


def ran(stack: Stack, client: dict[str, Any]) -> list[int]:
    """The trials that a client says it ran."""
    return [told.trial for told in told_in_json(stack.printed(client))]


def test_the_sidecar_says_what_the_clients_say(stack: Stack) -> None:
    def study() -> dict[str, Any]:
        (one,) = stack.sidecar("studies")["studies"]
        assert isinstance(one, dict)
        return one

    seen = eventually(study, lambda one: one["states"].get("running", 0) == 0)
    ended = seen["states"].get("done", 0) + seen["states"].get("pruned", 0)
    assert (seen["study"], seen["trials"], ended) == ("spam", TRIALS, TRIALS)
    trials = stack.sidecar(f"studies/spam/trials?limit={TRIALS}")["trials"]
    assert {each["attempt"] for each in trials} == {0}
    for client in stack.containers("client"):
        mine = client["Config"]["Hostname"]
        said = {each["trial"] for each in trials if each["who"].startswith(mine)}
        assert said == set(ran(stack, client))


def test_prometheus_has_the_trials_states(stack: Stack) -> None:
    states = eventually(
        lambda: stack.query('entrepot_study_trials{study="spam",state=~"done|pruned"} > 0'),
        lambda found: sum(value for _, value in found) == TRIALS,
    )
    assert {labels["state"] for labels, _ in states} <= {"done", "pruned"}
    assert stack.query("sum(entrepot_orders_total{outcome='fulfilled'})")[0][1] >= TRIALS
    assert stack.query("entrepot_broker_up")[0][1] == 1
    assert stack.query("entrepot_orders_total{outcome='failed'}")[0][1] == 0


def called(count: int, at_once: int = 1) -> list[str]:
    """A client in a container of its own that calls the stage that tokenises."""
    command = ["python", "-c", CALLS, str(count), str(at_once)]
    return ["run", "--rm", "--no-deps", "--no-TTY", "client", *command]


def pull(product: str, count: int) -> list[str]:
    """A client in a container of its own that orders a product."""
    command = ["entrepot", "client", "pull", product, "--count", str(count), "--json"]
    return ["run", "--rm", "--no-deps", "--no-TTY", "client", *command]


def test_prometheus_has_a_queue_that_grows_while_the_supplier_is_paused(stack: Stack) -> None:
    container = stack.container("tokens")["Id"]
    pause(container)
    try:
        with stack.begun(*called(50, at_once=4)) as client:
            queued = 'entrepot_orders_queued{product="stage/clean/forward"}'
            eventually(lambda: stack.query(queued), lambda found: found and found[0][1] > 0)
            unpause(container)
            out, err = client.communicate(timeout=120)
    finally:
        docker("unpause", container)
    assert (client.returncode, json.loads(out)) == (0, {"right": 50}), err
    eventually(lambda: stack.query("entrepot_orders_open"), lambda found: found[0][1] == 0)


def test_the_tokenising_supplier_has_no_torch(stack: Stack) -> None:
    done = stack.tried("exec", "-T", "tokens", "python", "-c", "import torch")
    assert done.returncode == 1
    assert "No module named 'torch'" in done.stderr


def test_a_supplier_that_is_killed_comes_back_and_nothing_is_lost(stack: Stack) -> None:
    count = 5_000
    before = stack.container("tokens")
    placed = orders(stack)["fulfilled"]
    with stack.begun(*called(count, at_once=2)) as client:
        eventually(lambda: orders(stack)["fulfilled"], lambda now: now > placed + 100, START_S)
        # By the machine's own kill: a container that Docker was asked to kill stays down.
        os.kill(before["State"]["Pid"], signal.SIGKILL)
        out, err = client.communicate(timeout=300)
    assert (client.returncode, json.loads(out)) == (0, {"right": count}), err
    after = eventually(
        lambda: stack.container("tokens"), lambda now: health(now) == "healthy", START_S
    )
    assert after["RestartCount"] == before["RestartCount"] + 1
    assert orders(stack)["fulfilled"] - placed == count


def orders(stack: Stack) -> dict[str, Any]:
    """What the broker itself says: the sidecar's figures may be a second old."""
    said: dict[str, Any] = json.loads(
        stack.compose("exec", "-T", "broker", "entrepot", "stats", "--json")
    )["orders"]
    return said


def test_a_secret_that_cannot_be_read_stops_the_service_with_one_line(stack: Stack) -> None:
    broken = ["--env", "AWS_ACCESS_KEY_ID_FILE=/run/secrets/none"]
    done = stack.tried("run", "--rm", "--no-deps", "--no-TTY", *broken, "sidecar")
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if "start:" in line]
    assert "/run/secrets/none" in line
    assert "No such file" in line


SLOTS = """\
import socket
from entrepot.mediums.chosen import create
print(create().address, socket.gethostbyname(socket.gethostname()))
"""


def test_a_clients_slots_are_found_without_a_name_server(stack: Stack) -> None:
    asked = ["--rm", "--no-deps", "--no-TTY", "client", "python", "-c", SLOTS]
    address, mine = stack.compose("run", *asked).split()
    assert address.rpartition(":")[0] == f"tcp:{mine}"


def test_the_same_study_in_shared_memory(stack: Stack) -> None:
    """In files: see tests/integration/test_cluster.py."""
    stack.up("tokens-shm", "embeddings-shm", "client-shm", profile="shm")
    clients = eventually(
        lambda: stack.containers("client-shm"),
        lambda found: [exited(each) for each in found] == [("exited", 0)] * 2,
        STUDY_S,
    )
    told = Counter(ran(stack, clients[0]) + ran(stack, clients[1]))
    assert told == Counter(range(TRIALS))
    assert orders(stack)["failed"] == 0
    look = ["python", "-c", "import os; print(os.listdir('/dev/shm'))"]
    assert stack.compose("exec", "-T", "tokens-shm", *look) == "[]\n"


def test_down_leaves_nothing(stack: Stack) -> None:
    stack.down()
    mine = f"label=com.docker.compose.project={stack.project}"
    for kind in (["ps", "--all"], ["network", "ls"], ["volume", "ls"]):
        assert docker(*kind, "--quiet", "--filter", mine).stdout == ""
