"""The chart's default values, as pods that really run: ``podman kube play`` of what Helm renders.

What is not as in a cluster, and who does it instead, stands in ``kube_play.py``. The images are
those of ``scripts/containers/build``; SeaweedFS takes MinIO's place. To the default suppliers and
clients three are added, by values, which do what the tests need.

Collected by ``make containers`` alone. The tests run in the order they stand in.
"""

from __future__ import annotations

import json
import os
import subprocess
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.containers.stack import SMS, eventually
from tests.integration.kube_play import PODMAN, Cluster, Pod, podman, said
from tests.unit.k8s.charts import CHART, example, render

pytestmark = pytest.mark.timeout(600)

TRIALS = 100
SHORT = 8
FEW = 3
"""Trials of searches that train a model in each."""

READY_S = 120.0
JOB_S = 180.0
"""How long it may take on a busy machine."""

IMAGES = {
    "entrepot/broker": "local/entrepot-broker",
    "entrepot/sidecar": "local/entrepot-sidecar",
    "entrepot/store": "local/entrepot-store",
    "entrepot/store-server": "local/entrepot-store-server",
    "entrepot/supplier": "local/entrepot-supplier",
    "entrepot/teacher": "local/entrepot-teacher",
    "entrepot/client": "local/entrepot-client",
}

VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
VERSION = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]

SLOW = '''
"""A product that is made once the test says so."""

import time
from pathlib import Path

BEGUN, GO = Path("/tmp/begun"), Path("/tmp/go")


def make(name: str) -> bytes:
    BEGUN.touch()
    give_up = time.monotonic() + 60
    while not GO.exists():
        assert time.monotonic() < give_up, "nobody said go"
        time.sleep(0.05)
    return b"made at leisure"
'''

QUICK = '''
"""A study whose trials cost nothing, so that only who runs them is at stake."""

import sys
import time

from entrepot.store import Store
from entrepot.study import Sampler, Space, Study

url, trials = sys.argv[1], int(sys.argv[2])
space = Space().real("x", 0.0, 1.0)
study = Study(Store.open(url), "quick", space, Sampler.random(0), goal="min")
give_up = time.monotonic() + 90
for trial in study.work(trials=trials):
    with trial:
        # Nobody runs away with the budget before the other has begun.
        while len({each.meta.who for each in study.trials()}) < 2:
            assert time.monotonic() < give_up, "nobody else came"
            time.sleep(0.1)
        trial.report(trial.point["x"])
'''


def mounted(name: str) -> dict[str, Any]:
    """Of values: a module of the test's, in /code."""
    return {
        "volumes": [{"name": "code", "configMap": {"name": name}}],
        "volumeMounts": [{"name": "code", "mountPath": "/code", "readOnly": True}],
    }


def values() -> dict[str, Any]:
    slow = {
        "name": "slow",
        "serve": "slow:make",
        "products": ["slow/one"],
        "env": [{"name": "PYTHONPATH", "value": "/code"}],
        **mounted("slow-code"),
    }
    quick = {
        "name": "quick",
        "pods": 2,
        "command": ["python", "/code/quick.py", "$(STORE_URL)", str(TRIALS)],
        **mounted("quick-code"),
    }
    patient = {
        "name": "patient",
        "store": False,
        "command": ["entrepot", "client", "pull", "slow/one", "--count", "1", "--json"],
    }
    search = {**VALUES["clients"][0]}
    search["command"] = [*search["command"], "--study", "short", "--trials", str(SHORT)]
    within = {**example("shm")["clients"][0], "name": "within"}
    within["command"] = [*within["command"], "--study", "within", "--trials", str(FEW)]
    return {
        "image": {"registry": "localhost"},
        "store": {"minio": {"image": f"entrepot/store-server:{VERSION}"}},
        "suppliers": [*VALUES["suppliers"], slow],
        "clients": [search, within, quick, patient],
    }


def config_map(name: str, **data: str) -> dict[str, Any]:
    named = {key.replace("_", "."): text for key, text in data.items()}
    return {"kind": "ConfigMap", "metadata": {"name": name}, "data": named}


class Release:
    """What the chart renders, and the pods that were made of it."""

    def __init__(self, folder: Path) -> None:
        name = f"chart-{os.getpid()}"
        self.objects = [
            *render(values(), release=name),
            config_map("slow-code", slow_py=SLOW),
            config_map("quick-code", quick_py=QUICK),
            # As the chart's notes say, whoever installs the default values brings the messages.
            config_map("sms-messages", SMSSpamCollection=(SMS / "SMSSpamCollection").read_text()),
        ]
        self.cluster = Cluster(name, folder)

    def play(self, *components: str, part: str = "") -> list[Pod]:
        """The pods of these components whose maker has ``part`` in its name."""
        chosen = [
            each
            for each in self.objects
            if each["metadata"].get("labels", {}).get("app.kubernetes.io/component") in components
            and part in each["metadata"]["name"]
        ]
        return self.cluster.play(chosen, self.objects)

    def pod(self, part: str) -> Pod:
        (found,) = [pod for name, pod in self.cluster.pods.items() if part in name]
        return found

    def sidecar(self, path: str) -> Any:
        url = f"http://{self.pod('-broker-').address}:9555/api/v1/{path}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    """The default values installed: store, broker and suppliers at once, as a cluster does."""
    taken(*IMAGES.values())
    for name, built in IMAGES.items():
        said("tag", built, f"localhost/{name}:{VERSION}")
    podman("image", "prune", "--force")  # those that had the names before
    release = Release(tmp_path_factory.mktemp("pods"))
    try:
        release.play("store", "broker", "supplier")
        yield release
    finally:
        release.cluster.down()


def taken(*images: str) -> None:
    """Podman has these images of Docker's."""
    done = subprocess.run([PODMAN, "load", *images], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


# --- the market is up ---------------------------------------------------------------------


def test_every_pod_becomes_ready_by_its_own_probes(release: Release) -> None:
    pods = list(release.cluster.pods.values())
    assert len(pods) == 6  # store, broker, two that clean, one that embeds, the slow one
    for pod in pods:
        assert {"startupProbe", "readinessProbe", "livenessProbe"} <= {
            probe for container in pod.spec["containers"] for probe in container
        }
        eventually(pod.unready, lambda why: not why, READY_S)
        assert pod.failing("livenessProbe") == []


LOOK = """
import errno, json, os
try:
    open("/written", "w")
    wrote = "written"
except OSError as fault:
    wrote = errno.errorcode[fault.errno]
status = dict(line.split(":", 1) for line in open("/proc/1/status"))
print(json.dumps({
    "root": wrote,
    "ids": [sorted(set(status[name].split())) for name in ("Uid", "Gid")],
    "capabilities": [int(status[name], 16) for name in ("CapEff", "CapPrm", "CapBnd")],
    "new privileges": int(status["NoNewPrivs"]) == 0,
    "seccomp": int(status["Seccomp"]),
    "temporary": os.access("/tmp", os.W_OK),
}))
"""


def test_every_container_is_locked_down(release: Release) -> None:
    for pod in release.cluster.pods.values():
        for container in pod.spec["containers"]:
            seen = json.loads(pod.done("python", "-c", LOOK, name=container["name"]))
            assert seen == {
                "root": "EROFS",
                "ids": [["10001"], ["10001"]],
                "capabilities": [0, 0, 0],
                "new privileges": False,
                "seccomp": 2,  # a filter
                "temporary": True,
            }, (pod.name, container["name"])


def test_memory_is_limited_as_the_values_say(release: Release) -> None:
    limits = {
        (pod.name.rpartition("-")[0].partition("entrepot-")[2], container["name"]): pod.inspected(
            container["name"]
        )["HostConfig"]["Memory"]
        for pod in release.cluster.pods.values()
        for container in pod.spec["containers"]
    }
    assert limits["broker", "broker"] == limits["broker", "sidecar"] == 512 << 20
    assert limits["supplier-embed", "embed"] == limits["store", "store"] == 1 << 30


def test_what_helm_test_runs_is_served_and_claims_a_trial(release: Release) -> None:
    (pod,) = release.play("test")
    assert pod.manifest["metadata"]["annotations"]["helm.sh/hook"] == "test"
    ended(pod)
    assert "the stage says what it is" in pod.log()
    assert "a trial was claimed and finished" in pod.log()


def ended(*pods: Pod) -> None:
    """Once these have ended: each with 0."""
    codes = eventually(
        lambda: [code for pod in pods for code in pod.exit_codes()],
        lambda codes: None not in codes,
        JOB_S,
    )
    assert codes == [0] * len(pods), "\n".join(pod.log()[-2000:] for pod in pods)


# --- Jobs ---------------------------------------------------------------------------------


def test_the_default_search_is_finished_by_two_pods_each_trial_once(release: Release) -> None:
    pods = release.play("client", part="-search-")
    assert len(pods) == 2
    ended(*pods)
    assert finished(release, "short", SHORT) == dict.fromkeys(range(SHORT), 0)


def test_completions_are_pods_and_the_budget_is_the_studys(release: Release) -> None:
    pods = release.play("client", part="-quick-")
    assert len(pods) == 2
    ended(*pods)
    assert finished(release, "quick", TRIALS) == dict.fromkeys(range(TRIALS), 0)
    trials = release.sidecar(f"studies/quick/trials?limit={TRIALS}")["trials"]
    shares = Counter(each["who"] for each in trials)
    assert len(shares) == 2
    assert sum(shares.values()) == TRIALS


def finished(release: Release, study: str, count: int) -> dict[int, int]:
    """The attempt that each trial was finished in, once the sidecar has read of so many."""

    def states() -> Counter[str]:
        (one,) = [
            each for each in release.sidecar("studies")["studies"] if each["study"] == study
        ] or [{"states": {}}]
        return Counter(one["states"])

    seen = eventually(states, lambda said: said["done"] + said["pruned"] >= count)
    assert +seen == Counter(done=seen["done"], pruned=seen["pruned"])
    trials = release.sidecar(f"studies/{study}/trials?limit=1000")["trials"]
    assert len(trials) == count
    return {each["trial"]: each["attempt"] for each in trials}


def test_a_client_and_its_suppliers_share_the_memory_of_their_pod(release: Release) -> None:
    (pod,) = release.play("client", part="-within-")
    beside = [each["name"] for each in pod.containers if each not in pod.spec["containers"]]
    assert beside == ["clean", "embed"]
    ended(pod)
    assert finished(release, "within", FEW) == dict.fromkeys(range(FEW), 0)
    pod.stop()  # once the client has ended, a cluster ends those beside it
    for name in beside:
        assert pod.state(name)["ExitCode"] == 0, (name, pod.state(name), pod.log(name)[-2000:])


# --- told to stop -------------------------------------------------------------------------


def test_a_supplier_that_is_told_to_stop_finishes_its_order_within_its_grace(
    release: Release,
) -> None:
    slow = release.pod("-supplier-slow-")
    (patient,) = release.play("client", part="-patient-")
    temporary = slow.folder("tmp")
    eventually((temporary / "begun").exists, bool, READY_S)
    with ThreadPoolExecutor(1) as aside:
        stopping = aside.submit(slow.stop)
        eventually(slow.log, lambda log: "finishing the order in hand" in log)
        assert patient.exit_codes() == [None]
        (temporary / "go").touch()
        took_s = stopping.result()
    assert took_s < slow.spec["terminationGracePeriodSeconds"]
    assert slow.exit_codes() == [0]
    assert '"served": 1' in slow.log(), slow.log()
    ended(patient)
    assert '"came": 1' in patient.log()


def test_every_pod_that_is_told_to_stop_exits_0_within_its_grace(release: Release) -> None:
    staying = [pod for pod in release.cluster.pods.values() if None in pod.exit_codes()]
    ours = [pod for pod in staying if "-store-" not in pod.name]
    assert len(ours) == 4  # broker, two that clean, one that embeds
    with ThreadPoolExecutor(len(ours)) as at_once:
        for pod, took_s in zip(ours, at_once.map(Pod.stop, ours), strict=True):
            assert set(pod.exit_codes()) == {0}, pod.log()[-2000:]
            assert took_s < pod.spec["terminationGracePeriodSeconds"]


def test_nothing_is_left(release: Release) -> None:
    release.cluster.down()
    name = release.cluster.name
    for kind in ("ps --all", "pod ps", "network ls", "volume ls", "secret ls"):
        assert name not in podman(*kind.split()).stdout, kind
