"""The search over real messages in the containers of ``docker-compose.yml``: what is promised of
it, over TCP and through files on a shared volume. ``make containers`` runs these."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from math import ceil
from typing import Any

import docker
import pytest
from docker.models.containers import Container

from entrepot.store import Store
from entrepot.study.trials import DONE, PRUNED
from examples.sms_search.data import BATCH
from examples.sms_search.run import reports
from tests.containers.stack import ROOT, SERVICES, START_S, Stack, eventually, pause, unpause
from tests.integration import sms_promises
from tests.integration.sms_promises import Searched, running, told_in_json

pytestmark = pytest.mark.timeout(300)

TRIALS, EPOCHS, MESSAGES = 12, 3, 448
CLIENTS = 2
STUDY_S = 150
SCRAPED_S = 45.0
"""Less than a client waits for a stage that is paused."""

STOP_S = 40

KEYS = ROOT / "services" / "store" / "demo-keys"
MEDIUMS = {"tcp": "tcp", "filesystem": "file"}
SERVING = ("tokens", "embeddings")


@dataclass(frozen=True)
class Run:
    """A search that is over, as it was found.

    :ivar profile: of Compose's; ``tcp`` is none.
    :ivar clients: what the engine says of the containers that searched.
    :ivar searched: what they said, and what is in the store.
    :ivar shown: the trials, as the sidecar's API has them.
    :ivar served: orders that each supplier of the market served, by the name of its container.
    """

    stack: Stack
    profile: str
    clients: list[dict[str, Any]]
    searched: Searched
    shown: list[dict[str, Any]]
    served: dict[str, int]

    @property
    def suffix(self) -> str:
        return suffix_of(self.profile)

    def serving(self, engine: docker.DockerClient) -> list[Container]:
        """The containers of the two stages."""
        return [one for each in SERVING for one in found(engine, self.stack, each + self.suffix)]


def suffix_of(profile: str) -> str:
    """What the names of a profile's services and stages have."""
    return "-files" if profile == "filesystem" else ""


def name_of(profile: str) -> str:
    """Of the study."""
    return "files/spam" if profile == "filesystem" else "spam"


def found(engine: docker.DockerClient, stack: Stack, service: str) -> list[Container]:
    """The containers of a service, gone or not."""
    labels = {"project": stack.project, "service": service}
    chosen = [f"com.docker.compose.{name}={value}" for name, value in labels.items()]
    made: list[Container] = engine.containers.list(all=True, filters={"label": chosen})
    return made


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """All that is no client, and well."""
    study = {"TRIALS": TRIALS, "EPOCHS": EPOCHS, "MESSAGES": MESSAGES}
    variables = {f"SEARCH_{name}": str(value) for name, value in study.items()}
    stack = Stack(f"entrepot-cluster-{os.getpid()}", CLIENTS=str(CLIENTS), **variables)
    try:
        stack.up(*(each for each in SERVICES if each != "client"), "prometheus")
        stack.wait_until_well()
        eventually(lambda: stack.query("entrepot_broker_up == 1"), bool, START_S)
        yield stack
    finally:
        stack.down()


@pytest.fixture
def engine() -> Iterator[docker.DockerClient]:
    with closing(docker.from_env()) as engine:
        yield engine


@pytest.fixture(scope="module", params=MEDIUMS)
def run(stack: Stack, request: pytest.FixtureRequest) -> Run:
    """A search by two clients, while Prometheus looks on."""
    profile: str = request.param
    with closing(docker.from_env()) as engine:
        return searched_by(stack, profile, engine)


def searched_by(stack: Stack, profile: str, engine: docker.DockerClient) -> Run:
    suffix, study = suffix_of(profile), name_of(profile)
    stack.up(*(f"{each}{suffix}" for each in (*SERVING, "client")), profile=profile * bool(suffix))

    def scraped(query: str) -> None:
        eventually(lambda: stack.query(query), bool, SCRAPED_S)

    with in_the_bucket(stack, engine) as store:
        eventually(partial(running, store, study), lambda count: count == CLIENTS, START_S)
    # Held up here, both are seen while they run, however fast they are.
    (embeddings,) = found(engine, stack, f"embeddings{suffix}")
    pause(embeddings.attrs["Id"])
    try:
        scraped(f'entrepot_study_trials{{study="{study}",state="running"}} > 0')
        scraped('sum(entrepot_orders_queued{product=~"stage/.*embed/.*"}) > 0')
    finally:
        unpause(embeddings.attrs["Id"])
    clients = found(engine, stack, f"client{suffix}")
    said = {}
    for client in clients:
        client.wait(timeout=STUDY_S)
        client.reload()
        printed = client.logs(stdout=True, stderr=False).decode()
        said[client.attrs["Config"]["Hostname"]] = told_in_json(printed)
    with in_the_bucket(stack, engine) as store:
        searched = Searched(store, said, trials=TRIALS, epochs=EPOCHS, name=study)
    finished = eventually(
        lambda: stack.sidecar(f"studies/{study}/trials?limit={TRIALS}")["trials"],
        lambda trials: [each["state"] in (DONE, PRUNED) for each in trials] == [True] * TRIALS,
    )
    told = json.loads(stack.compose("exec", "-T", "broker", "entrepot", "stats", "--json"))
    suppliers = told["suppliers"]["list"]
    served = {each["name"].partition(":")[0]: each["served"] for each in suppliers}
    return Run(stack, profile, [each.attrs for each in clients], searched, finished, served)


@contextmanager
def in_the_bucket(stack: Stack, engine: docker.DockerClient) -> Iterator[Store]:
    """The store, whose port is not published: in the containers' network, which is also ours."""
    (server,) = found(engine, stack, "store")
    address = server.attrs["NetworkSettings"]["Networks"][f"{stack.project}_data"]["IPAddress"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", (KEYS / "key").read_text().strip())
        patch.setenv("AWS_SECRET_ACCESS_KEY", (KEYS / "secret").read_text().strip())
        url = f"s3://studies?endpoint=http://{address}:9000"
        with Store.open(url, read_only=True) as store:
            yield store


# --- what is promised -------------------------------------------------------------------


def test_each_trial_ran_once_over_both_clients(run: Run) -> None:
    sms_promises.each_trial_ran_once(run.searched)
    assert len(run.searched.said) == CLIENTS
    assert all(run.searched.said.values()), "one of the clients ran no trial"


def test_the_points_are_those_that_one_machine_alone_would_have_tried(run: Run) -> None:
    sms_promises.the_points_are_those_of_one_machine_alone(run.searched)


def test_the_configurations_differ(run: Run) -> None:
    sms_promises.the_configurations_differ(run.searched)


def test_the_record_says_which_container_ran_which(run: Run) -> None:
    sms_promises.the_record_says_who_ran_which(run.searched)


def test_the_best_is_far_better_than_always_saying_ham(run: Run) -> None:
    sms_promises.the_best_is_far_better_than_always_saying_ham(run.searched)


def test_what_was_pruned_stopped_early_and_is_not_among_the_finished(run: Run) -> None:
    sms_promises.what_was_pruned_stopped_early_and_is_not_among_the_finished(run.searched)


def test_the_tokenising_container_cannot_import_torch(
    run: Run, engine: docker.DockerClient
) -> None:
    tokens, embeddings = run.serving(engine)
    asked = ["python", "-c", "import torch"]
    code, said = tokens.exec_run(asked)
    assert isinstance(said, bytes)
    assert (code, said.splitlines()[-1]) == (1, b"ModuleNotFoundError: No module named 'torch'")
    assert embeddings.exec_run(asked)[0] == 0


def test_the_far_half_learned(run: Run) -> None:
    sms_promises.the_far_half_learned(run.searched)


# --- how it went ------------------------------------------------------------------------


def test_every_batch_crossed_from_container_to_container(
    run: Run, engine: docker.DockerClient
) -> None:
    """The two stages served them, no more; and they take nothing from any other medium."""
    batches = sum(map(reports, run.searched.attempts)) * ceil(MESSAGES / BATCH)
    tokens, embeddings = run.serving(engine)
    assert run.served[tokens.attrs["Config"]["Hostname"]] == batches
    # Forward, backward and step; and what describes and ends a run.
    assert run.served[embeddings.attrs["Config"]["Hostname"]] >= 3 * batches + 3 * TRIALS
    for container in (tokens, embeddings):
        assert variables(container.attrs)["ENTREPOT_SUPPLIER__MEDIUMS"] == MEDIUMS[run.profile]
    for client in run.clients:
        assert variables(client)["ENTREPOT_CLIENT__MEDIUM"] == MEDIUMS[run.profile]


def test_containers_have_nothing_in_common_but_what_the_medium_needs(
    run: Run, engine: docker.DockerClient
) -> None:
    parties = [*run.clients, *(each.attrs for each in run.serving(engine))]
    assert {each["HostConfig"]["IpcMode"] for each in parties} == {"private"}
    networks = [each["NetworkSettings"]["Networks"] for each in parties]
    assert {name for each in networks for name in each} == {f"{run.stack.project}_data"}
    common = set.intersection(*map(writable, parties))
    assert common == ({"/shared"} if run.profile == "filesystem" else set())


def variables(container: dict[str, Any]) -> dict[str, str]:
    return dict(each.split("=", 1) for each in container["Config"]["Env"])


def writable(container: dict[str, Any]) -> set[str]:
    return {each["Destination"] for each in container["Mounts"] if each["RW"]}


def test_the_sidecar_the_clients_and_the_store_say_the_same(run: Run) -> None:
    shown = [
        (each["trial"], each["attempt"], each["who"], each["state"], each["point"])
        for each in run.shown
    ]
    kept = [
        (each.trial, each.attempt, each.meta.who, each.state, each.meta.point)
        for each in run.searched.attempts
    ]
    assert shown == kept
    assert [(each["score"], each["reports"]) for each in run.shown] == [
        (float(each.meta.score), reports(each)) for each in run.searched.attempts
    ]
    said = [(one.trial, who) for who, told in run.searched.said.items() for one in told]
    assert sorted(said) == [(each["trial"], each["who"]) for each in run.shown]
    study = run.stack.sidecar(f"studies/{run.searched.name}")
    states = [each["state"] for each in run.shown]
    assert study["states"] == {each: states.count(each) for each in set(states)}
    best = min(run.shown, key=lambda each: each["score"])
    assert study["best"][0]["trial"] == best["trial"]


def test_prometheus_saw_the_queue_and_the_trials_while_it_ran(run: Run) -> None:
    began = min(moment(each["StartedAt"]) for each in states(run))
    over = max(moment(each["FinishedAt"]) for each in states(run))
    stage = f"stage/{run.suffix[1:] + '-' * bool(run.suffix)}embed/.*"
    queued = run.stack.samples(f'entrepot_orders_queued{{product=~"{stage}"}}', began, over)
    assert max(queued) >= 1
    trials = f'entrepot_study_trials{{study="{run.searched.name}",state="%s"}}'
    at_work = run.stack.samples(trials % "running", began, over)
    assert 1 <= max(at_work) <= CLIENTS
    for state in (DONE, PRUNED):
        left = f"{trials % state} == {len(run.searched.of(state))}"
        eventually(partial(run.stack.query, left), bool, SCRAPED_S)


def states(run: Run) -> list[dict[str, Any]]:
    return [each["State"] for each in run.clients]


def moment(written: str) -> float:
    """Seconds since 1970 of a moment as Docker writes it, to the microsecond."""
    return datetime.fromisoformat(f"{written[:26].rstrip('Z')}+00:00").timestamp()


def test_every_container_ends_in_order_and_leaves_nothing(
    run: Run, engine: docker.DockerClient
) -> None:
    for client in run.clients:
        assert client["State"]["Status"] == "exited"
        assert client["State"]["ExitCode"] == 0
        assert client["RestartCount"] == 0
        assert not client["State"]["OOMKilled"]
    for container in run.serving(engine):
        container.stop(timeout=STOP_S)
        container.reload()
        assert container.attrs["State"]["ExitCode"] == 0, container.logs()
    if run.profile == "filesystem":
        look = ["python", "-c", "import os; print(os.listdir('/shared'))"]
        alone = ["run", "--rm", "--no-deps", "--no-TTY", "tokens-files"]
        assert run.stack.compose(*alone, *look) == "[]\n"
