"""A request over shared memory is written while its order is on the way, whatever comes between."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from entrepot.errors import OutOfStep, StageRequestLate, StageUnavailable
from entrepot.market.broker import Broker
from entrepot.market.client import Client
from entrepot.market.placing import AHEAD_NBYTES
from entrepot.market.supplier import Work
from entrepot.mediums import Medium, ShmMedium, shm
from entrepot.stages import RemoteStage, StageServer, TorchStage, TorchStageServer, serving
from entrepot.stages.protocol import (
    PROTOCOL,
    REPLY,
    REQUEST,
    REQUESTS,
    Message,
    Request,
    is_written,
)
from tests.peer.waiting import LIMIT_S, until
from tests.unit.stages.conftest import Serve
from tests.unit.stages.cuts import CONFIG, build


class Waiting(StageServer):
    """One of which it is known whether it waits for a request.

    :ivar waits: whether it ever did.
    """

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker.backend, "double", lambda x: 2 * x, name="host-a")
        self.waits = threading.Event()

    def _wait_for(self, work: Work, data: memoryview) -> None:
        self.waits.set()
        super()._wait_for(work, data)


@pytest.fixture
def server(broker: Broker, serve: Serve) -> Waiting:
    server = Waiting(broker)
    serve(server)
    return server


@pytest.fixture
def before(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Has something happen before the next request is written, and only before that one."""

    def once(happens: Callable[[], object]) -> None:
        left = [happens]
        write = Message.write

        def late(message: Message, medium: Medium, offset: int) -> None:
            if left:
                left.pop()()
            write(message, medium, offset)

        monkeypatch.setattr(Message, "write", late)

    return once


Before = Callable[[Callable[[], object]], None]


def doubled(stage: RemoteStage, number: float) -> bool:
    x = np.full(100, number)
    got: Any = stage(x)
    return bool((got == 2 * x).all())


def test_a_server_that_is_quick_waits_for_the_rest(
    client: Client, server: Waiting, before: Before
) -> None:
    stage = RemoteStage(client, "double", timeout_s=LIMIT_S)
    assert doubled(stage, 1.0)  # its slot has a whole request now, which is not this one
    for number in (2.0, 3.0):
        server.waits.clear()
        before(lambda: until(server.waits.is_set))
        assert doubled(stage, number)
    assert client.stats()["orders"]["fulfilled"] == 3


def test_a_client_that_was_stopped_while_it_wrote_calls_again(
    client: Client, server: Waiting, before: Before, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "WRITTEN_S", 0.05)

    def given_up() -> bool:
        return server._supplier.served == 1

    before(lambda: until(given_up))
    assert doubled(RemoteStage(client, "double", timeout_s=LIMIT_S), 5.0)
    assert server._supplier.served == 2


@pytest.mark.parametrize("attempts", [1, 2, 3])
def test_a_request_that_is_late_each_time_is_said_to_be(
    client: Client,
    server: Waiting,
    before: Before,
    monkeypatch: pytest.MonkeyPatch,
    attempts: int,
) -> None:
    monkeypatch.setattr(serving, "WRITTEN_S", 0.05)
    gone = iter(range(1, attempts + 1))

    def given_up() -> None:
        order = next(gone)
        before(given_up if order < attempts else lambda: None)
        until(lambda: server._supplier.served == order)

    before(given_up)
    stage = RemoteStage(client, "double", timeout_s=LIMIT_S, attempts=attempts)
    with pytest.raises(StageRequestLate, match=r"'stage/double/forward' was not there 0\.05 s"):
        stage(np.zeros(3))
    assert client.stats()["orders"]["placed"] == attempts
    assert doubled(stage, 7.0)


def test_a_step_whose_request_was_late_is_in_doubt_until_it_is_made(
    broker: Broker,
    client: Client,
    serve: Serve,
    before: Before,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An attempt before it may have been carried out, and its answer lost."""
    monkeypatch.setattr(serving, "WRITTEN_S", 0.05)
    server = TorchStageServer(broker.backend, "embed", build)
    serve(server)
    stage = TorchStage(client, "embed", run="r", config=CONFIG, timeout_s=LIMIT_S, attempts=1)
    ids = torch.zeros(2, 3, dtype=torch.int64)
    stage(ids).sum().backward()
    before(lambda: until(lambda: server._supplier.served == 3))
    with pytest.raises(StageUnavailable, match="was not there"):
        stage.step()
    with pytest.raises(OutOfStep, match=r"step\(\) again"):
        stage(ids)
    assert stage.step() == stage.describe().step == 1


def test_a_request_whose_writing_was_interrupted_is_waited_for_by_nobody(
    client: Client, server: Waiting, before: Before, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "WRITTEN_S", LIMIT_S)

    def ctrl_c() -> None:
        until(server.waits.is_set)
        raise KeyboardInterrupt

    before(ctrl_c)
    stage = RemoteStage(client, "double", timeout_s=LIMIT_S / 2)
    with pytest.raises(KeyboardInterrupt):
        stage(np.zeros(3))
    assert doubled(stage, 9.0), "the server has seen that the order was cancelled"
    until(lambda: client.figures()["free"] == client.medium.slots)


KILLED = """
import sys, threading
import numpy as np
from entrepot.market.client import Client
from entrepot.mediums import ShmMedium
from entrepot.stages import RemoteStage
from entrepot.stages.protocol import Message

def write(message, medium, offset):
    print("begun", flush=True)
    threading.Event().wait()

Message.write = write
with Client(sys.argv[1], ShmMedium.create(1 << 16, 4)) as client:
    RemoteStage(client, "double")(np.zeros(3))
"""


def test_who_is_killed_while_it_writes_keeps_nobody_waiting(
    broker: Broker, client: Client, server: Waiting
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, broker.frontend], stdout=subprocess.PIPE, text=True
    ) as victim:
        assert victim.stdout is not None
        try:
            assert victim.stdout.readline() == "begun\n"
            until(server.waits.is_set)
        finally:
            victim.kill()
    shm.sweep()
    assert doubled(RemoteStage(client, "double", timeout_s=LIMIT_S), 11.0)


def test_a_large_request_is_there_before_its_order(
    broker: Broker, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A supplier is not to wait for what takes long to write."""
    server = Waiting(broker)
    serve(server)
    announced: list[int] = []
    announce = Message.announce

    def noted(message: Message, medium: Medium, offset: int) -> bool:
        announced.append(message.nbytes)
        return announce(message, medium, offset)

    monkeypatch.setattr(Message, "announce", noted)
    monkeypatch.setattr("entrepot.market.placing.AHEAD_NBYTES", 10_000)
    medium = ShmMedium.create(1 << 16, 4)
    with Client(broker.frontend, medium, timeout_s=LIMIT_S) as client:
        stage = RemoteStage(client, "double", timeout_s=LIMIT_S)
        assert doubled(stage, 1.0)
        assert np.all(stage(np.ones(5_000)) == 2.0)
    assert len(announced) == 1
    assert announced[0] < 10_000 < AHEAD_NBYTES


def test_a_request_is_there_first_where_its_server_would_see_a_copy(
    broker: Broker, serve: Serve, before: Before
) -> None:
    class Copied(ShmMedium):
        shared = False

    server = Waiting(broker)
    serve(server)
    with (
        Client(broker.frontend, Copied.create(1 << 16, 4), timeout_s=LIMIT_S) as client,
        Client(broker.frontend, ShmMedium.create(1, 1), timeout_s=LIMIT_S) as other,
    ):

        def nothing_was_ordered() -> None:
            assert other.stats()["orders"]["placed"] == 0

        before(nothing_was_ordered)
        assert doubled(RemoteStage(client, "double", timeout_s=LIMIT_S), 3.0)
    assert not server.waits.is_set()


def test_a_request_of_the_version_before_is_served(client: Client, server: Waiting) -> None:
    request = REQUEST.encode(Request(stage="double", verb="forward"), {"0": np.ones(3)})
    old = bytearray(request.tobytes())
    assert old[14] == REQUESTS
    old[14] = PROTOCOL
    with client.order("stage/double/forward", input=old).result(LIMIT_S) as product:
        reply, values = REPLY.decode(product.data)
        assert reply.code == "ok"
        assert np.array_equal(np.asarray(values["0"]), np.full(3, 2.0))
    old[24:32] = bytes(8)  # its sum was not written last, so one of 0 is a wrong one
    assert is_written(memoryview(old))
    with client.order("stage/double/forward", input=old).result(LIMIT_S) as product:
        assert "checksum" in REPLY.decode(product.data)[0].error
    assert not server.waits.is_set()


@pytest.mark.parametrize("length", [0, 31, 32, 1000])
def test_what_is_no_request_is_not_waited_for(length: int) -> None:
    for letter in (b"\0", b"x"):
        assert is_written(memoryview(letter * length))
