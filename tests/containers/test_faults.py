"""Faults that are brought about: alerts fire in the running stack, and stop once it is mended."""

from __future__ import annotations

import signal

import pytest

from tests.containers.stack import START_S, Stack, docker, eventually
from tests.containers.test_compose import pull

pytestmark = pytest.mark.timeout(600)

FIRES_S = 180.0
"""An alert waits for up to a minute before it fires; what it counts, it counts over two."""


def firing(stack: Stack) -> set[str]:
    return {labels["alertname"] for labels, _ in stack.query('ALERTS{alertstate="firing"}')}


def test_each_fault_fires_its_alert_and_mending_it_stops_it(stack: Stack) -> None:
    stack.wait_until_well()
    eventually(lambda: stack.query("entrepot_broker_up == 1"), bool, START_S)
    eventually(lambda: stack.query("entrepot_store_up == 1"), bool, START_S)
    assert firing(stack) == set()

    # Nobody serves what is asked for, and the store hangs.
    store = stack.container("store")["Id"]
    assert docker("pause", store).returncode == 0
    client = stack.begun(*pull("nobody/makes/this", 1))
    try:
        eventually(
            lambda: firing(stack), lambda said: said >= {"NobodyServes", "StoreErrors"}, FIRES_S
        )
    finally:
        docker("unpause", store)
        for container in stack.containers("client"):
            if container["Config"]["Labels"]["com.docker.compose.oneoff"] == "True":
                docker("kill", "--signal", "TERM", container["Id"])
        client.send_signal(signal.SIGTERM)
        client.communicate(timeout=60)
    eventually(lambda: firing(stack), lambda said: not said & {"NobodyServes"}, FIRES_S)

    broker = stack.container("broker")["Id"]
    assert docker("pause", broker).returncode == 0
    try:
        eventually(lambda: firing(stack), lambda said: "BrokerDown" in said, FIRES_S)
    finally:
        docker("unpause", broker)
    stopped = {"BrokerDown", "NobodyServes", "StoreErrors"}
    eventually(lambda: firing(stack), lambda said: not said & stopped, 2 * FIRES_S)
