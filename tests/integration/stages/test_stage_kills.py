"""Stages that are killed and stopped in the middle of a step: one set of weights, the right one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from entrepot.errors import StageLost
from entrepot.market.broker import Broker
from entrepot.market.client import Client
from entrepot.mediums import ShmMedium, TCPMedium
from entrepot.settings import BrokerSettings
from entrepot.stages import CutOptimizer, TorchStage
from entrepot.stages.forms import digest_of
from entrepot.stages.torch.tensors import values_of
from entrepot.store import Store
from tests.peer.host import Host
from tests.peer.process import LineProcess
from tests.peer.waiting import until, until_stopped
from tests.unit.stages.cuts import activations, build_front, build_head, build_middle, same_weights

ANY = "tcp://127.0.0.1:*"
CONFIG = {"lr": 0.05, "seed": 3}
STEPS = 8
PATIENT = BrokerSettings(beat_s=0.1, reconnect_grace_s=0.2)
"""Who is killed is lost with its connection, and nobody for being slow."""
SWIFT = BrokerSettings(beat_s=0.1, suspect_s=1.0, dead_s=3.0, reconnect_grace_s=0.2)
"""Who stands still is lost."""


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    # The first optimizer of a process imports torch._dynamo, which takes seconds.
    with Host("torch._dynamo", "entrepot.stages.torch", "tests.unit.stages.cuts") as host:
        yield host


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Scene:
    """A broker and a client here, stages in processes of their own, and a store between these."""

    def __init__(self, host: Host, broker: Broker, client: Client, folder: Path) -> None:
        self.store = Store(folder / "store", durable=False)
        self.folder = folder
        self.parties: list[LineProcess] = []
        self._host = host
        self._broker = broker
        self.stage = TorchStage(client, "middle", run="r", config=CONFIG, timeout_s=60)
        self.front, self.head = build_front(), build_head()
        near = [*self.front.parameters(), *self.head.parameters()]
        self.optimizer = torch.optim.Adam(near, 0.05)
        self.both = CutOptimizer([self.optimizer, self.stage])
        self.data = list(activations(STEPS))
        self.kept: dict[int, Any] = {}
        self.keep()

    def serve(self, name: str, **options: Any) -> LineProcess:
        party = self.party()
        party.ask("start", **self.options(name), **options)
        return party

    def party(self) -> LineProcess:
        party = self._host.start("tests.integration.stages.stage_party")
        self.parties.append(party)
        return party

    def options(self, name: str) -> dict[str, Any]:
        folder, store = str(self.folder), str(self.folder / "store")
        return {"backend": self._broker.backend, "store": store, "folder": folder, "name": name}

    def hold(self, where: str) -> None:
        (self.folder / f"hold-{where}").touch()

    def wait_until_held(self) -> None:
        until(lambda: (self.folder / "held").exists())

    def let_go(self, where: str) -> None:
        (self.folder / f"hold-{where}").unlink()

    # --- training ---

    def keep(self) -> None:
        """What is here, at this step."""
        parts = (self.front, self.head, self.optimizer)
        states = [_copied(part.state_dict()) for part in parts]
        self.kept[self.stage.steps] = states

    def step(self) -> None:
        x, y = self.data[self.stage.steps]
        self.both.zero_grad()
        out = self.head(self.stage(self.front(x)))
        nn.functional.cross_entropy(out, y).backward()  # type: ignore[no-untyped-call]
        self.both.step()
        self.keep()

    def restore(self) -> int:
        """Both halves, to where the far one can be."""
        step = self.stage.restore()
        parts: list[Any] = [self.front, self.head, self.optimizer]
        for part, state in zip(parts, self.kept[step], strict=True):
            part.load_state_dict(_copied(state))
        return step

    def is_undisturbed(self) -> bool:
        """Whether all weights are those of as many steps that nothing happened in."""
        front, head = build_front(), build_head()
        middle, its_own = build_middle(CONFIG)
        optimizer = torch.optim.Adam([*front.parameters(), *head.parameters()], 0.05)
        both = CutOptimizer([optimizer, its_own])
        for x, y in self.data[: self.stage.steps]:
            both.zero_grad()
            out = head(middle(front(x)))
            nn.functional.cross_entropy(out, y).backward()  # type: ignore[no-untyped-call]
            both.step()
        far = self.stage.describe()
        return (
            far.step == self.stage.steps
            and far.parameters == digest_of(values_of(middle.state_dict()))
            and same_weights(front, self.front)
            and same_weights(head, self.head)
        )


def _copied(state: Any) -> Any:
    if isinstance(state, torch.Tensor):
        return state.clone()
    if isinstance(state, dict):
        return {key: _copied(each) for key, each in state.items()}
    return [_copied(each) for each in state] if isinstance(state, list) else state


@pytest.fixture(params=[(ShmMedium, PATIENT), (TCPMedium, PATIENT)], ids=["shm", "tcp"])
def scene(request: pytest.FixtureRequest, host: Host, tmp_path: Path) -> Iterator[Scene]:
    kind, settings = request.param
    medium = kind.create(1 << 16, 8)
    with (
        Broker(ANY, ANY, settings=settings) as broker,
        Client(broker.frontend, medium, timeout_s=30) as client,
    ):
        scene = Scene(host, broker, client, tmp_path)
        try:
            yield scene
        finally:
            for party in scene.parties:
                party.signal(signal.SIGCONT)
                party.close()


def apart(call: Callable[[], Any]) -> Future[Any]:
    """Begin a call in a thread."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run).start()
    return future


def stop(party: LineProcess) -> None:
    """SIGSTOP; returns when all of its threads stand still."""
    party.signal(signal.SIGSTOP)
    until_stopped(party.pid)


@pytest.mark.parametrize("where", ["step-4", "backward-4"])
def test_a_stage_that_is_killed_in_the_middle_of_a_step(scene: Scene, where: str) -> None:
    """kill -9, with half of the weights stepped, or the gradients there and not yet told."""
    first = scene.serve("host-a", every=2)
    first.ask("registered")
    for _ in range(3):
        scene.step()
    scene.hold(where)
    fourth = apart(scene.step)
    scene.wait_until_held()
    first.kill()
    scene.let_go(where)
    scene.serve("host-b").ask("registered")
    with pytest.raises(StageLost, match="stage 'middle', which host-a had, is lost") as lost:
        fourth.result(60)
    assert (lost.value.stage, lost.value.host) == ("middle", "host-a")
    assert scene.restore() == 2
    while scene.stage.steps < STEPS:
        scene.step()
    assert scene.is_undisturbed()


def test_a_stage_that_is_told_to_end_keeps_its_runs(scene: Scene) -> None:
    """SIGTERM, as from whoever rolls out a new release: nothing is lost, not the last step."""
    first = scene.party()
    first.begin("serve_here", **scene.options("host-a"), every=None)
    for _ in range(3):
        scene.step()
    first.signal(signal.SIGTERM)
    assert first.finish() == 0
    scene.serve("host-b").ask("registered")
    with pytest.raises(StageLost, match="which host-a had, is lost"):
        scene.step()
    assert scene.restore() == 3
    while scene.stage.steps < STEPS:
        scene.step()
    assert scene.is_undisturbed()


@pytest.mark.parametrize(
    "scene", [(ShmMedium, SWIFT), (TCPMedium, SWIFT)], ids=["shm", "tcp"], indirect=True
)
def test_a_stage_that_was_stopped_declared_dead_replaced_and_resumed(scene: Scene) -> None:
    """The one that comes back finishes its step, keeps it in the store, and is nobody's stage."""
    zombie = scene.serve("host-a")
    zombie.ask("registered")
    for _ in range(3):
        scene.step()
    scene.hold("step-4")
    fourth = apart(scene.step)
    scene.wait_until_held()
    stop(zombie)
    scene.let_go("step-4")
    scene.serve("host-b", patience_s=30.0).ask("registered")
    with pytest.raises(StageLost, match="which host-a had, is lost"):
        fourth.result(60)
    assert scene.restore() == 3
    scene.step()
    scene.step()
    old, _ = scene.store.scan("stages/middle/")
    zombie.signal(signal.SIGCONT)

    def of_the_zombie() -> str:
        record = scene.store.resolve(old.name)
        assert record is not None
        return record.meta["step-0"].partition(" ")[0]

    until(of_the_zombie, lambda step: step == "4")  # it has kept the step that it was in
    assert zombie.ask("ended") == "PatternRefused"
    scene.step()
    assert scene.is_undisturbed()
    assert scene.restore() == 6, "what it kept is not what is restored"
    while scene.stage.steps < STEPS:
        scene.step()
    assert scene.is_undisturbed()
