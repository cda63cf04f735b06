"""What the chart promises of names, releases, clients, stores, and what is told."""

from __future__ import annotations

import json
import shutil
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from tests.unit.k8s.charts import (
    CHART,
    Manifest,
    containers,
    of_kind,
    one,
    pods,
    render,
    texts,
)
from tests.unit.k8s.test_render import EVERY, FULL, environment

LONGEST = "r" * 53
"""Helm takes no longer name of a release."""

RECOMMENDED = {
    f"app.kubernetes.io/{name}" for name in ("name", "instance", "version", "part-of", "managed-by")
} | {"helm.sh/chart"}


def identity(each: Manifest) -> tuple[str, str]:
    return each["kind"], each["metadata"]["name"]


# --- names and labels -------------------------------------------------------------------


@pytest.mark.parametrize("values", EVERY.values(), ids=EVERY)
def test_names_are_for_one_each_and_short_and_labels_are_those_recommended(
    values: dict[str, Any],
) -> None:
    unnamed = {key: value for key, value in values.items() if key != "fullnameOverride"}
    unnamed["suppliers"] = [
        *values.get("suppliers", []),
        {"name": "a" * 30, "command": ["x"]},
        {"name": "a" * 29 + "b", "command": ["x"]},
    ]
    objects = render(unnamed, release=LONGEST)
    names = [identity(each) for each in objects]
    assert len(names) == len(set(names))
    for each in objects:
        # 63, and what StatefulSets, Jobs and Deployments put behind a name.
        assert len(each["metadata"]["name"]) <= (63 if each["kind"] == "ServiceAccount" else 52)
        labels = each["metadata"]["labels"]
        assert labels.keys() >= RECOMMENDED
        assert labels["app.kubernetes.io/name"] == "entrepot"
        assert labels["app.kubernetes.io/instance"] == LONGEST
        assert all(len(value) <= 63 for value in labels.values())


def selectors(each: Manifest) -> list[dict[str, str]]:
    """What an object selects pods by."""
    spec = each.get("spec", {})
    found = spec.get("selector") or spec.get("podSelector")
    return [found.get("matchLabels", found)] if found else []


@pytest.mark.parametrize("pair", [("a", "a-entrepot"), ("entrepot", "b"), (LONGEST, "r" * 52)])
def test_two_releases_in_one_namespace_share_nothing(pair: tuple[str, str]) -> None:
    unnamed = {**FULL, "fullnameOverride": "", "serviceAccount": {}}
    mine, others = render(unnamed, release=pair[0]), render(release=pair[1])
    assert not {*map(identity, mine)} & {*map(identity, others)}
    for these, those in ((mine, others), (others, mine)):
        labels = [pod["metadata"]["labels"] for pod in pods(those).values()]
        for each in these:
            for selector in selectors(each):
                assert selector
                assert not any(selector.items() <= them.items() for them in labels), identity(each)


def test_a_release_that_is_called_as_the_chart_has_its_name_once() -> None:
    assert one(render(release="entrepot"), "Service", "sidecar")["metadata"]["name"] == (
        "entrepot-sidecar"
    )
    assert one(render(release="try"), "Service", "sidecar")["metadata"]["name"] == (
        "try-entrepot-sidecar"
    )


def test_what_an_upgrade_could_not_change_is_as_it_was() -> None:
    """Selectors of Deployments and StatefulSets; another one is another release."""
    of_us = {"app.kubernetes.io/name": "entrepot", "app.kubernetes.io/instance": "entrepot"}
    found = {
        each["metadata"]["name"]: each["spec"]["selector"]["matchLabels"]
        for each in [*of_kind(render(), "Deployment"), *of_kind(render(), "StatefulSet")]
    }
    component = "app.kubernetes.io/component"
    assert found == {
        "entrepot-broker": {**of_us, component: "broker"},
        "entrepot-store": {**of_us, component: "store"},
        "entrepot-supplier-clean": {**of_us, component: "supplier", "entrepot/supplier": "clean"},
        "entrepot-supplier-embed": {**of_us, component: "supplier", "entrepot/supplier": "embed"},
    }


# --- as a subchart ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def umbrella(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("umbrella")
    shutil.copytree(CHART, folder / "charts" / "entrepot")
    depends = {"name": "entrepot", "version": ">=0.0.0", "condition": "entrepot.enabled"}
    chart = {"apiVersion": "v2", "name": "umbrella", "version": "1.0.0", "dependencies": [depends]}
    (folder / "Chart.yaml").write_text(json.dumps(chart))
    return folder


def test_it_is_a_subchart_with_global_and_enabled(umbrella: Path) -> None:
    values = {"global": {"any": 1}, "entrepot": {"enabled": True, "broker": {"shm": "32Mi"}}}
    objects = render(values, release="app", chart=umbrella)
    assert {*map(identity, objects)} == {*map(identity, render(release="app"))}
    (volume,) = (
        each
        for each in pods(objects)["app-entrepot-broker"]["spec"]["volumes"]
        if each["name"] == "shm"
    )
    assert volume["emptyDir"]["sizeLimit"] == "32Mi"
    assert not render({"entrepot": {"enabled": False}}, release="app", chart=umbrella)


# --- clients ----------------------------------------------------------------------------


def test_a_job_has_so_many_pods_and_the_budget_is_told_to_each_as_it_is() -> None:
    job = one(render(), "Job")
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == 2
    (client,) = job["spec"]["template"]["spec"]["containers"]
    words = client["args"]
    assert words[words.index("--trials") + 1] == "40"
    assert words[words.index("--store") + 1] == "s3://studies?endpoint=http://entrepot-store:9000"
    assert job["spec"]["template"]["spec"]["restartPolicy"] == "Never"
    (rule,) = job["spec"]["podFailurePolicy"]["rules"]
    assert rule["action"] == "Ignore"  # a drained node is no failure
    assert rule["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]


def test_an_upgrade_makes_a_job_anew_only_if_it_runs_something_else() -> None:
    def name(**values: Any) -> str:
        found: str = one(render(values, upgrade=True), "Job")["metadata"]["name"]
        return found

    same = name()
    assert name(monitoring={"rules": {"enabled": True}}) == name(broker={"shm": "32Mi"}) == same
    assert name(image={"tag": "0.2.0"}) != same
    assert name(clientDefaults={"backoffLimit": 1}) != same


def test_a_client_over_tcp_says_its_address_and_one_over_files_has_the_volume() -> None:
    made = pods(render(FULL))
    served = environment(made["market-client-served"]["spec"]["containers"][0])
    assert served["ENTREPOT_CLIENT__TCP_HOST"] == "0.0.0.0"
    assert served["ENTREPOT_CLIENT__TCP_ADVERTISE"] == "status.podIP"
    (files,) = (pod for name, pod in made.items() if "-client-files-" in name)
    (client,) = files["spec"]["containers"]
    told = environment(client)
    assert told["ENTREPOT_CLIENT__MEDIUM"] == "file"
    assert told["ENTREPOT_CLIENT__FILE_ROOT"] == "/common"
    assert told["ENTREPOT_CLIENT__FILE_NETWORK"] == "true"
    supplier = made["market-supplier-served"]["spec"]["containers"][0]
    assert environment(supplier)["ENTREPOT_SUPPLIER__MEDIUMS"] == "tcp,file"
    assert environment(supplier)["ENTREPOT_SUPPLIER__FILE_ROOT"] == "/common"
    plain = made["market-supplier-plain"]
    assert environment(plain["spec"]["containers"][0])["ENTREPOT_SUPPLIER__MEDIUMS"] == "tcp"
    for pod, has in ((files, True), (made["market-supplier-served"], True), (plain, False)):
        claims = [
            each["persistentVolumeClaim"]
            for each in pod["spec"]["volumes"]
            if "persistentVolumeClaim" in each
        ]
        assert claims == ([{"claimName": "market-shared"}] if has else [])
    claim = one(render(FULL), "PersistentVolumeClaim", "-shared")
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]


def test_shared_memory_is_of_one_pod_whose_suppliers_end_with_the_client() -> None:
    (near,) = (pod for name, pod in pods(render(FULL)).items() if "-client-near-" in name)
    before = {each["name"]: each for each in near["spec"]["initContainers"]}
    assert [*before] == ["store-init", "beside"]
    assert before["beside"]["restartPolicy"] == "Always"  # else the client would wait for its end
    assert "restartPolicy" not in before["store-init"]
    assert environment(before["beside"])["ENTREPOT_SUPPLIER__MEDIUMS"] == "shm"
    (client,) = near["spec"]["containers"]
    assert environment(client)["ENTREPOT_CLIENT__MEDIUM"] == "shm"
    for each in (before["beside"], client):
        assert {"name": "shm", "mountPath": "/dev/shm"} in each["volumeMounts"]
    assert "entrepot/slots" not in near["metadata"]["labels"]
    assert near["metadata"]["labels"]["entrepot/supplies"] == "yes"


def test_volumes_of_all_that_run_in_a_pod_are_there_once() -> None:
    common = {"name": "common", "emptyDir": {}}
    near = {
        "name": "near",
        "command": ["x"],
        "medium": "shm",
        "shm": "128Mi",
        "volumes": [common],
        "suppliers": [
            {"name": "one", "command": ["x"], "volumes": [common, {"name": "own", "emptyDir": {}}]},
            {"name": "two", "command": ["x"]},
        ],
    }
    defaults = {"volumes": [{"name": "all", "emptyDir": {}}]}
    objects = render({"clients": [near], "supplierDefaults": defaults})
    (pod,) = (pod for name, pod in pods(objects).items() if "-client-" in name)
    names = [each["name"] for each in pod["spec"]["volumes"]]
    assert sorted(names) == ["all", "common", "own", "shm", "store-keys", "tmp"]


# --- store and secrets ------------------------------------------------------------------


def test_the_bucket_is_made_before_whoever_needs_it_and_by_no_hook() -> None:
    objects = render()
    for name, pod in pods(objects).items():
        told = [each["name"] for each in pod["spec"].get("initContainers", [])]
        needs = "client" in name or name.endswith("-test")
        assert told == (["store-init"] if needs else []), name
    # So that `kubectl apply` of what is rendered does it as well.
    hooks = [each for each in objects if "helm.sh/hook" in each["metadata"].get("annotations", {})]
    assert [identity(each) for each in hooks] == [("Pod", "entrepot-test")]
    off = render({"store": {"init": {"enabled": False}}})
    assert not any(pod["spec"].get("initContainers") for pod in pods(off).values())


@pytest.mark.parametrize(
    ("store", "url"),
    [
        ({"endpoint": "https://s3.example.com"}, "s3://studies?endpoint=https://s3.example.com"),
        ({"region": "eu-central-1"}, "s3://studies?region=eu-central-1"),
        (
            {"endpoint": "http://s3:9000", "region": "a"},
            "s3://studies?endpoint=http://s3:9000&region=a",
        ),
        ({}, "s3://studies"),
    ],
)
def test_a_bucket_that_is_elsewhere(store: dict[str, str], url: str) -> None:
    objects = render({"store": {"kind": "s3", "s3": store, "existingSecret": "bucket"}})
    assert not of_kind(objects, "StatefulSet") + of_kind(objects, "Secret")
    broker = pods(objects)["entrepot-broker"]
    assert environment(broker["spec"]["containers"][1])["ENTREPOT_SIDECAR__STORE"] == url
    (keys,) = (each["secret"] for each in broker["spec"]["volumes"] if "secret" in each)
    assert keys["secretName"] == "bucket"
    assert {each["key"]: each["path"] for each in keys["items"]} == {
        "key": "key",
        "secret": "secret",
    }


def test_minio_has_a_home_that_it_can_write_to() -> None:
    store = pods(render())["entrepot-store"]
    (container,) = store["spec"]["containers"]
    # It makes $HOME/.minio, and does not start on a read-only root otherwise.
    home = environment(container)["HOME"]
    assert {"name": "tmp", "mountPath": home} in container["volumeMounts"]
    assert container["args"] == ["server", "/data"]
    (claim,) = one(render(), "StatefulSet")["spec"]["volumeClaimTemplates"]
    assert claim["spec"]["resources"]["requests"]["storage"] == "8Gi"
    kept = {"store": {"minio": {"persistence": {"enabled": False}}}}
    assert "volumeClaimTemplates" not in one(render(kept), "StatefulSet")["spec"]


def test_without_keys_the_pods_identity_is_asked() -> None:
    keys = {"key": "", "secret": ""}
    account = {"annotations": {"example.com/role": "studies"}}
    objects = render({"store": {"kind": "s3", "keys": keys}, "serviceAccount": account})
    assert not of_kind(objects, "Secret")
    for pod in pods(objects).values():
        assert pod["spec"]["serviceAccountName"] == "entrepot"
        assert not any("secret" in each for each in pod["spec"]["volumes"])
        for container in containers(pod):
            assert "AWS_ACCESS_KEY_ID_FILE" not in environment(container)
    assert one(objects, "ServiceAccount")["metadata"]["annotations"] == account["annotations"]


def test_a_token_is_a_file_and_with_it_prometheus_shows_it_only_where_it_must() -> None:
    objects = render(FULL)
    sidecar = pods(objects)["market-broker"]["spec"]["containers"][1]
    assert environment(sidecar)["ENTREPOT_SIDECAR__TOKEN_FILE"] == "/run/secrets/sidecar/token"
    (endpoint,) = one(objects, "ServiceMonitor")["spec"]["endpoints"]
    assert endpoint["authorization"]["credentials"] == {
        "name": "market-sidecar-token",
        "key": "token",
    }
    open_metrics = deepcopy(FULL)
    open_metrics["sidecar"]["settings"]["open_metrics"] = True
    (endpoint,) = one(render(open_metrics), "ServiceMonitor")["spec"]["endpoints"]
    assert "authorization" not in endpoint


# --- suppliers --------------------------------------------------------------------------


def test_suppliers_run_what_they_are_told() -> None:
    made = pods(render(FULL))
    (served,) = made["market-supplier-served"]["spec"]["containers"]
    assert served["args"] == [
        *("entrepot", "supplier", "--serve", "mine:make"),
        *("--product", r"made/\d+", "--product", "made", "--batch", "4"),
    ]
    (single,) = made["market-supplier-single"]["spec"]["containers"]
    assert single["args"][-1] == "--exclusive"
    kinds = {
        each["metadata"]["name"]: each["spec"]["strategy"]["type"]
        for each in of_kind(render(FULL), "Deployment")
        if "-supplier-" in each["metadata"]["name"]
    }
    assert kinds["market-supplier-single"] == "Recreate"
    assert kinds["market-supplier-served"] == "RollingUpdate"


@pytest.mark.parametrize(("surge", "unavailable"), [(2, 0), (1, 0), (0, 1)])
def test_an_upgrade_starts_more_or_ends_one_first(surge: int, unavailable: int) -> None:
    supplier = one(render({"supplierDefaults": {"surge": surge}}), "Deployment", "-clean")
    assert supplier["spec"]["strategy"]["rollingUpdate"] == {
        "maxSurge": surge,
        "maxUnavailable": unavailable,
    }


# --- the test, and what is told ---------------------------------------------------------


def test_helm_test_is_a_client_as_any_other() -> None:
    pod = one(render(), "Pod", "-test")
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    (test,) = pod["spec"]["containers"]
    assert test["args"][:2] == ["python", "-c"]
    script = (CHART / "files" / "try.py").read_text()
    assert test["args"][2].strip() == script.strip()
    compile(test["args"][2], "try.py", "exec")
    told = environment(test)
    assert told["TRY_STAGE"] == "clean"
    assert told["STORE_URL"] == "s3://studies?endpoint=http://entrepot-store:9000"
    assert told["ENTREPOT_CLIENT__ENDPOINT"] == "tcp://entrepot-broker-frontend:5555"
    none = {"store": {"kind": "none"}, "clients": []}
    (test,) = one(render(none), "Pod", "-test")["spec"]["containers"]
    assert "STORE_URL" not in environment(test)


def test_the_notes_say_what_to_open_and_what_is_waited_for() -> None:
    notes = texts(namespace="ml")["entrepot/templates/NOTES.txt"]
    assert "kubectl --namespace ml port-forward service/entrepot-sidecar 9555:9555" in notes
    assert "kubectl --namespace ml create configmap sms-messages --from-file" in notes
    assert "helm test entrepot --namespace ml" in notes
    assert (
        "any name, and the token of secret market-sidecar-token"
        in (texts(FULL)["entrepot/templates/NOTES.txt"])
    )
