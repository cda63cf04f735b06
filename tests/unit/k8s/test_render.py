"""What the chart promises of its pods, on the objects that it renders to."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import yaml

from tests.unit.k8s.charts import (
    EXAMPLES,
    ROOT,
    Manifest,
    containers,
    example,
    of_kind,
    one,
    pods,
    render,
)

FULL = yaml.safe_load((ROOT / "tests" / "unit" / "k8s" / "full-0.1.0.yaml").read_text())
EVERY = {
    "default": {},
    "full": FULL,
    **{path.stem: example(path.stem) for path in sorted(EXAMPLES.glob("*.yaml"))},
}

UNITS = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "": 1}


def nbytes(quantity: str) -> int:
    number = quantity.rstrip("KMGi")
    return int(number) * UNITS[quantity[len(number) :]]


def every_pod() -> Iterator[tuple[str, Manifest]]:
    for name, values in EVERY.items():
        for maker, pod in pods(render(values)).items():
            yield f"{name}: {maker}", pod


PODS = dict(every_pod())


def of_every_pod(promise: Callable[[Manifest], None]) -> Callable[[], None]:
    """A test of every pod of all of these values, which says of which one it does not hold."""

    def test() -> None:
        assert len(PODS) > 40
        for name, pod in PODS.items():
            try:
                promise(pod)
            except AssertionError as fault:
                fault.add_note(name)
                raise

    test.__name__ = promise.__name__
    return test


def environment(container: Manifest) -> dict[str, str]:
    """Variables that stand there; of the others, which the cluster knows, where they come from."""
    return {
        each["name"]: each["value"]
        if "value" in each
        else each["valueFrom"]["fieldRef"]["fieldPath"]
        for each in container.get("env", [])
    }


@of_every_pod
def test_pods_are_of_no_user_that_matters(pod: Manifest) -> None:
    spec = pod["spec"]
    assert spec["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 10001,
        "runAsGroup": 10001,
        "fsGroup": 10001,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert spec["automountServiceAccountToken"] is False
    assert spec["enableServiceLinks"] is False
    for key in ("hostNetwork", "hostPID", "hostIPC"):
        assert key not in spec


@of_every_pod
def test_containers_may_nothing_and_write_nowhere_but_into_their_volumes(pod: Manifest) -> None:
    for container in containers(pod):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert "/tmp" in {each["mountPath"] for each in container["volumeMounts"]}


@of_every_pod
def test_every_mount_has_its_volume_once_and_every_volume_is_mounted(pod: Manifest) -> None:
    volumes = [each["name"] for each in pod["spec"]["volumes"]]
    if "data" not in volumes:  # of a StatefulSet's claims
        volumes += [
            each["name"]
            for container in containers(pod)
            for each in container["volumeMounts"]
            if each["name"] == "data"
        ][:1]
    mounts = {each["name"] for container in containers(pod) for each in container["volumeMounts"]}
    assert sorted(volumes) == sorted(set(volumes))
    assert mounts == set(volumes)


@of_every_pod
def test_what_is_written_in_a_pod_has_a_size_and_memory_has_room_for_it(pod: Manifest) -> None:
    shm = 0
    for volume in pod["spec"]["volumes"]:
        if "emptyDir" in volume:
            size = nbytes(volume["emptyDir"]["sizeLimit"])
            assert size > 0
            if volume["emptyDir"].get("medium") == "Memory":
                shm += size
    for container in containers(pod):
        limit = nbytes(container["resources"]["limits"]["memory"])
        if "/dev/shm" in {each["mountPath"] for each in container["volumeMounts"]}:
            assert limit > shm > 0
        assert limit > 0


@of_every_pod
def test_images_have_a_version_and_it_is_not_latest(pod: Manifest) -> None:
    for container in containers(pod):
        image = container["image"]
        assert "@sha256:" in image or ":" in image.rpartition("/")[2], image
        assert "latest" not in image


@of_every_pod
def test_names_are_short_enough_for_whatever_is_made_of_them(pod: Manifest) -> None:
    for container in containers(pod):
        assert len(container["name"]) <= 63
    for key, value in pod["metadata"]["labels"].items():
        assert len(value) <= 63, key


def serving(pod: Manifest) -> list[Manifest]:
    """The containers that stay: those that end before others start have no probes."""
    return [
        each
        for each in containers(pod)
        if each["name"] not in ("store-init", "test")
        and (each in pod["spec"]["containers"] or each.get("restartPolicy") == "Always")
    ]


@of_every_pod
def test_three_probes_that_differ_and_of_which_liveness_is_the_most_patient(pod: Manifest) -> None:
    for container in serving(pod):
        probes = [container[f"{kind}Probe"] for kind in ("startup", "readiness", "liveness")]
        assert all(probes[at] != probes[at - 1] for at in range(3))
        _, ready, alive = (each["periodSeconds"] * each["failureThreshold"] for each in probes)
        assert alive > ready
        for probe in probes:
            (command,) = probe["exec"].values()  # which no network policy is asked about
            assert command[0] in ("python", "mc")
            assert probe["timeoutSeconds"] > 4  # healthy.py gives up by itself before that


def test_nobody_is_restarted_because_somebody_else_is_gone() -> None:
    for maker, pod in PODS.items():
        for container in serving(pod):
            words = container["livenessProbe"]["exec"]["command"]
            if container["name"] in ("broker", "sidecar", "store"):
                asked = " ".join(words)
                assert "127.0.0.1" in asked or words[-1] in ("broker", "local"), maker
            else:
                assert words[-1] == "running", maker
                starting = container["startupProbe"]["exec"]["command"]
                assert {"started", "running"} & {*starting}, maker


def test_a_supplier_has_more_time_than_its_drain_takes() -> None:
    seen = 0
    for pod in PODS.values():
        grace = pod["spec"].get("terminationGracePeriodSeconds", 30)
        for container in containers(pod):
            drain = environment(container).get("ENTREPOT_SUPPLIER__DRAIN_S")
            if drain is not None:
                seen += 1
                assert grace >= int(drain) + 15
                assert "preStop" not in container.get("lifecycle", {})  # SIGTERM is the drain
    assert seen > 10
    served = PODS["full: market-supplier-served"]["spec"]
    assert served["terminationGracePeriodSeconds"] == 90 + 30


def test_clients_and_suppliers_are_spread_over_nodes() -> None:
    for maker, pod in PODS.items():
        if "client" not in maker and "supplier" not in maker:
            continue
        for constraint in pod["spec"]["topologySpreadConstraints"]:
            selected = constraint["labelSelector"]["matchLabels"]
            assert selected.items() <= pod["metadata"]["labels"].items()
            assert {"entrepot/client", "entrepot/supplier"} & selected.keys(), "of this kind alone"


@of_every_pod
def test_keys_are_files_and_stand_in_no_description(pod: Manifest) -> None:
    said = json.dumps(pod)
    for secret in ("entrepot-demo", "something-long", "not-a-secret-at-all"):
        assert secret not in said
    for container in containers(pod):
        told = environment(container)
        assert not {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "MINIO_ROOT_USER"} & told.keys()
        if "AWS_SECRET_ACCESS_KEY_FILE" in told:
            mounted = {each["mountPath"]: each for each in container["volumeMounts"]}
            assert mounted["/run/secrets/store"]["readOnly"] is True


def test_the_broker_is_one_and_is_never_two() -> None:
    broker = one(render(), "Deployment", "-broker")
    assert broker["spec"]["replicas"] == 1
    assert broker["spec"]["strategy"] == {"type": "Recreate"}
    names = [each["name"] for each in broker["spec"]["template"]["spec"]["containers"]]
    assert names == ["broker", "sidecar"]


def test_each_port_of_the_broker_has_its_own_service_which_a_sidecar_cannot_close() -> None:
    objects = render()
    found = {
        each["metadata"]["name"]: [(port["port"], port["targetPort"]) for port in ports]
        for each in of_kind(objects, "Service")
        if (ports := each["spec"]["ports"])
    }
    assert found == {
        "entrepot-broker-frontend": [(5555, "frontend")],
        "entrepot-broker-backend": [(5556, "backend")],
        "entrepot-sidecar": [(9555, "http")],
        "entrepot-store": [(9000, "s3")],
    }
    for name in ("broker-frontend", "broker-backend", "sidecar"):
        assert one(objects, "Service", name)["spec"]["publishNotReadyAddresses"] is True


def test_ports_and_services_agree() -> None:
    for values in EVERY.values():
        objects = render(values)
        made = pods(objects)
        for service in of_kind(objects, "Service"):
            chosen = [
                pod
                for pod in made.values()
                if service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
            ]
            assert len(chosen) == 1
            ports = {
                port["name"]: port["containerPort"]
                for container in containers(chosen[0])
                for port in container.get("ports", [])
            }
            (port,) = service["spec"]["ports"]
            assert ports[port["targetPort"]] == port["port"]


def test_a_budget_of_disruption_for_the_broker_and_each_supplier() -> None:
    objects = render()
    budgets = {
        each["metadata"]["name"]: each["spec"] for each in of_kind(objects, "PodDisruptionBudget")
    }
    assert budgets.keys() == {
        "entrepot-broker",
        "entrepot-supplier-clean",
        "entrepot-supplier-embed",
    }
    made = pods(objects)
    for name, spec in budgets.items():
        assert spec["maxUnavailable"] == 1  # none at all would keep a node from being drained
        labels = spec["selector"]["matchLabels"].items()
        assert [
            maker for maker, pod in made.items() if labels <= pod["metadata"]["labels"].items()
        ] == [name]


def test_the_broker_and_the_sidecar_listen_where_the_others_look() -> None:
    made = pods(render(FULL))
    broker, sidecar = made["market-broker"]["spec"]["containers"]
    assert environment(broker)["ENTREPOT_BROKER__FRONTEND"] == "tcp://*:6555"
    assert environment(broker)["ENTREPOT_BROKER__BACKEND"] == "tcp://*:6556"
    assert environment(broker)["ENTREPOT_BROKER__MAX_OUTBOX_NBYTES"] == "128MiB"
    assert environment(broker)["ENTREPOT_BROKER__ALLOW_DRAIN"] == "false"
    assert environment(sidecar)["ENTREPOT_CLIENT__ENDPOINT"] == "tcp://127.0.0.1:6555"
    url = "s3://searches/team/a?endpoint=http://market-store:9000"
    assert environment(sidecar)["ENTREPOT_SIDECAR__STORE"] == url
    served = environment(made["market-supplier-served"]["spec"]["containers"][0])
    assert served["ENTREPOT_SUPPLIER__ENDPOINT"] == "tcp://market-broker-backend:6556"
    assert served["ENTREPOT_SUPPLIER__CREDIT"] == "8"
    assert served["STORE_URL"] == url
    client = made["market-client-served"]["spec"]["containers"][0]
    assert environment(client)["ENTREPOT_CLIENT__ENDPOINT"] == "tcp://market-broker-frontend:6555"
    assert environment(client)["ENTREPOT_CLIENT__TCP_PORT"] == "6557"
    assert client["ports"] == [{"name": "slots", "containerPort": 6557}]


def test_a_number_is_written_as_it_was_meant() -> None:
    large = {"broker": {"settings": {"max_open_orders_total": 20_000_000, "elsewhere_s": 0.5}}}
    told = environment(pods(render(large))["entrepot-broker"]["spec"]["containers"][0])
    assert told["ENTREPOT_BROKER__MAX_OPEN_ORDERS_TOTAL"] == "20000000"
    assert told["ENTREPOT_BROKER__ELSEWHERE_S"] == "0.5"
