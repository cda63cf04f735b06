"""Values that cannot be are refused before anything is installed, each with a sentence."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.k8s.charts import Refused, render, texts

RUN = {"command": ["x"]}


def supplier(**values: Any) -> dict[str, Any]:
    return {"suppliers": [{"name": "s", **values}]}


def client(**values: Any) -> dict[str, Any]:
    return {"clients": [{"name": "c", **RUN, **values}]}


def scaled(**autoscaling: Any) -> dict[str, Any]:
    return supplier(**RUN, autoscaling={"enabled": True, "supplierClass": "a", **autoscaling})


def resources(**values: Any) -> dict[str, Any]:
    return {"broker": {"resources": values}}


def environ(*items: dict[str, Any]) -> dict[str, Any]:
    return supplier(**RUN, env=list(items))


def mounted(path: str, name: str = "v", **values: Any) -> dict[str, Any]:
    return supplier(
        **RUN,
        volumes=[{"name": "v", "emptyDir": {}}],
        volumeMounts=[{"name": name, "mountPath": path}],
        **values,
    )


def shared(path: str) -> dict[str, Any]:
    return {"sharedVolume": {"enabled": True, "mountPath": path}}


def keys(**values: Any) -> dict[str, Any]:
    return {"store": values}


def monitored(**values: Any) -> dict[str, Any]:
    return {"monitoring": {"serviceMonitor": values}}


def near(*beside: dict[str, Any], **values: Any) -> dict[str, Any]:
    return client(medium="shm", shm="128Mi", suppliers=list(beside), **values)


LIMIT = {"limits": {"memory": "64Mi"}}
SERVED = {"serve": "m:f", "products": ["p"]}
SHARED = {"sharedVolume": {"enabled": True}}

WRONG: list[tuple[dict[str, Any], str]] = [
    # What the schema says.
    ({"brokers": {}}, "additional properties 'brokers' not allowed"),
    ({"broker": {"replicas": 2}}, "at '/broker': additional properties 'replicas' not allowed"),
    ({"broker": {"frontend": {"port": "a"}}}, "'/broker/frontend/port': got string, want integer"),
    ({"broker": {"settings": {"dead": 1}}}, "'/broker/settings': additional properties 'dead'"),
    ({"broker": {"settings": {"beat_s": 0}}}, "'/broker/settings/beat_s'"),
    ({"broker": {"settings": {"frontend": "x"}}}, "additional properties 'frontend' not allowed"),
    ({"store": {"kind": "gcs"}}, "'/store/kind': value must be one of 'minio', 's3', 'none'"),
    ({"store": {"s3": {"endpoint": "s3.example.com"}}}, "does not match pattern '^$|^https?://"),
    ({"store": {"bucket": "A"}}, "'/store/bucket': 'A' does not match pattern"),
    ({"store": {"minio": {"persistence": {"size": "1 GB"}}}}, "'1 GB' does not match pattern"),
    (supplier(name="A"), "'/suppliers/0/name': 'A' does not match pattern"),
    ({"suppliers": [RUN]}, "missing property 'name'"),
    (supplier(**RUN, mediums=["rdma"]), "value must be one of 'tcp', 'file', 'shm'"),
    (supplier(**RUN, replicas=-1), "'/suppliers/0/replicas': minimum: got -1, want 0"),
    (client(kind="CronJob"), "value must be one of 'Job', 'Deployment'"),
    (client(pods=0), "'/clients/0/pods': minimum: got 0, want 1"),
    ({"fullnameOverride": "a" * 41}, "maxLength: got 41, want 40"),
    ({"monitoring": {"grafana": True}}, "additional properties 'grafana' not allowed"),
    # What it cannot say.
    ({"image": {"tag": "latest"}}, "nobody can say later what `latest` was; give a version"),
    ({"broker": {"image": "b:latest"}}, "image b:latest: nobody can say later"),
    ({"broker": {"frontend": {"port": 9555}}}, "are of one pod: give three that differ"),
    ({"broker": {"shm": "1Gi"}}, "broker: its /dev/shm of 1Gi counts as memory, and resources"),
    ({"sidecar": {"resources": {"limits": None}}}, "sidecar: its /dev/shm of 16Mi counts as"),
    ({"test": {"shm": "512Mi"}}, "test: its /dev/shm of 512Mi counts as memory"),
    ({"test": {"stage": ""}}, "test is on and has nothing to order: give test.stage or"),
    ({"sidecar": {"token": {"value": "short"}}}, "has 5 characters: a token has 16 at least"),
    (
        {"sidecar": {"token": {"value": "x" * 16, "existingSecret": "t"}}},
        "sidecar.token has both a value and an existingSecret: give one",
    ),
    (
        {"sidecar": {"enabled": False}, "monitoring": {"serviceMonitor": {"enabled": True}}},
        "asks for the metrics of the sidecar: set sidecar.enabled",
    ),
    (
        {
            "networkPolicy": {"prometheus": []},
            "monitoring": {"serviceMonitor": {"enabled": True}},
        },
        "lets nobody scrape: say there where Prometheus runs",
    ),
    ({"store": {"keys": {"key": "", "secret": ""}}}, "store.kind is minio, and it has no keys"),
    ({"store": {"keys": {"key": ""}}}, "store.keys has one of key and secret: give both"),
    ({"store": {"s3": {"region": "eu"}}}, "set store.kind to s3 as well"),
    ({"store": {"kind": "s3"}}, "store.keys are those of the demonstration: give store.existing"),
    ({"store": {"kind": "none"}}, "clients[0] (search) is to have the store, and store.kind is"),
    (supplier(), "suppliers[0] (s) has nothing to run: give `serve`"),
    (supplier(**RUN, **SERVED), "has both `serve` and `command`: give one"),
    (supplier(serve="m:f"), "serves m:f, and no product: give `products`"),
    (supplier(**RUN, batch=4), "`batch` is for `serve`"),
    (supplier(**RUN, mediums=["tcp", "shm"]), "shared memory reaches no further than a pod"),
    (supplier(**RUN, mediums=["file"]), "there is no volume: set sharedVolume.enabled"),
    (supplier(command=["$(STORE_URL)"]), "is told $(STORE_URL), and has neither keys nor"),
    (supplier(**RUN, exclusive=True, replicas=2), "a second would be sent away: give it one"),
    (scaled(exclusive=True), "additional properties 'exclusive' not allowed"),
    (supplier(**RUN, resources=LIMIT), "suppliers[0] (s): its /dev/shm of 64Mi counts as memory"),
    (
        {"suppliers": [{"name": "s", **RUN}, {"name": "s", **RUN}]},
        "suppliers[1]: there is a supplier s already",
    ),
    (scaled(min=5, max=4), "autoscaling.min is 5, and max 4: let min be at most max"),
    (scaled(kind="hpa", min=0), "which no HorizontalPodAutoscaler does: take 1, or keda"),
    (scaled(supplierClass=""), "nothing says by which backlog: give autoscaling.supplierClass"),
    (scaled(supplierClass="a" * 121), "has 121 characters, and is cut at 120 in metrics"),
    ({**scaled(), "sidecar": {"enabled": False}}, "is scaled by what the sidecar tells"),
    ({"clients": [{"name": "c"}]}, "clients[0] (c) has nothing to run: give a `command`"),
    (client(medium="file"), "there is no volume: set sharedVolume.enabled"),
    (client(resources=LIMIT), "clients[0] (c): its /dev/shm of 64Mi counts as memory"),
    (client(command=["$(STORE_URL)"], store=False), "set its `store` to true"),
    (client(suppliers=[{"name": "n", **RUN}]), "which is for the medium shm: set `medium`"),
    (near(), "clients[0] (c) has the medium shm, which reaches no further than its pod"),
    (near({"name": "n", **RUN}, pods=2), "has the medium shm and 2 pods, whose suppliers would"),
    (
        near({"name": "n", **RUN}, settings={"slots": 64, "slot_nbytes": "2MiB"}),
        "64 slots of 2MiB do not fit into its /dev/shm of 128Mi",
    ),
    (near({"name": "client", **RUN}), "a container of that pod is called so already"),
    (near({"name": "n", **RUN, "store": True}, store=False), "set `store` of its client as well"),
    (near({"name": "n"}), "clients[0] (c), suppliers[0] (n) has nothing to run"),
    (near({"name": "n", **RUN, "resources": LIMIT}), "(n): its /dev/shm of 128Mi counts as"),
    (
        {**near({"name": "n", **SERVED}), **supplier(**SERVED)},
        "serves p, and so does one outside of its pod, which cannot reach shared memory",
    ),
    # What is null has lost its default.
    *(
        ({name: None}, f"- {name} is null, which takes its default away")
        for name in ("suppliers", "clients", "broker", "store", "image", "supplierDefaults")
    ),
    ({"broker": {"resources": None}}, "- broker.resources is null, which takes"),
    ({"broker": {"probes": None}}, "- broker.probes is null, which takes"),
    ({"supplierDefaults": {"autoscaling": None}}, "- supplierDefaults.autoscaling is null"),
    ({"store": {"bucket": None}}, "- store.bucket is null, which takes"),
    # Suppliers and clients.
    (supplier(serve="mf", products=["p"]), "'/suppliers/0/serve': 'mf' does not match pattern"),
    (supplier(**RUN, replicas=10_001), "/replicas': maximum: got 10,001, want 10,000"),
    (supplier(**RUN, replicas=10**12), "'/suppliers/0/replicas': maximum: got 1"),
    (client(pods=10_001), "'/clients/0/pods': maximum: got 10,001, want 10,000"),
    (supplier(serve="m:f", products=["p", "(a"]), "the product (a is no RE2 pattern"),
    (
        supplier(**SERVED, batch=16, settings={"credit": 4}),
        "suppliers[0] (s): `batch` is 16, and settings.credit 4, so that no batch is ever full",
    ),
    ({**SHARED, **supplier(**RUN), **client(medium="file")}, "file, and no supplier takes it"),
    (client(kind="Deployment", activeDeadlineSeconds=9), "and activeDeadlineSeconds is for a Job"),
    (client(kind="Deployment", ttlSecondsAfterFinished=0), "ttlSecondsAfterFinished is for a Job"),
    # Labels.
    *(
        (supplier(**RUN, podLabels={f"app.kubernetes.io/{name}": "a"}), f"io/{name} is the chart's")
        for name in ("name", "instance", "component")
    ),
    (client(podLabels={"entrepot/orders": "no"}), "the label entrepot/orders is the chart's own"),
    (
        {"commonLabels": {"app.kubernetes.io/instance": "a"}},
        "commonLabels: the label app.kubernetes.io/instance is the chart's own",
    ),
    ({"broker": {"podLabels": {"app.kubernetes.io/name": "a"}}}, "broker.podLabels: the label app"),
    ({"commonLabels": {"a b": "c"}}, "'a b' does not match pattern"),
    ({"commonLabels": {"a": "b c"}}, "'/commonLabels/a': 'b c' does not match pattern"),
    ({"commonLabels": {"a": "b" * 64}}, "does not match pattern"),
    # Images.
    *(
        ({"broker": {"image": image}}, f"'/broker/image': '{image}' does not match pattern")
        for image in ("a:", "a:v1:v2", "a@sha256:00", "A", "a/")
    ),
    # What it may use.
    (
        resources(requests={"memory": "1Gi"}, limits={"memory": "512Mi"}),
        "broker: resources.requests.memory is 1Gi, and its limit 512Mi: let the request",
    ),
    (
        supplier(**RUN, resources={"requests": {"cpu": 1}, "limits": {"cpu": "999m"}}),
        "suppliers[0] (s): resources.requests.cpu is 1, and its limit 999m",
    ),
    (
        {"store": {"minio": {"resources": {"requests": {"memory": "2Gi"}}}}},
        "store.minio: resources.requests.memory is 2Gi, and its limit 1Gi",
    ),
    (resources(requests={"cpu": "-1"}), "requests/cpu': '-1' does not match pattern"),
    (resources(requests={"cpu": -1}), "requests/cpu': minimum: got -1, want 0"),
    (resources(limits={"memory": "lots"}), "limits/memory': 'lots' does not match pattern"),
    ({"broker": {"shm": "0"}}, "'/broker/shm': '0' does not match pattern"),
    ({"store": {"minio": {"persistence": {"size": "0"}}}}, "size': '0' does not match pattern"),
    # Volumes and mounts.
    *(
        (supplier(**RUN, volumes=[{"name": name}]), f"is called {name}, as one that the chart")
        for name in ("tmp", "shm", "shared", "store-keys")
    ),
    (client(volumes=[{"name": "v"}, {"name": "v", "a": 1}]), "there is a volume v twice"),
    (client(volumes=[{"emptyDir": {}}]), "volumes[0] has no name that a volume may have"),
    (
        near({"name": "n", **RUN, "volumes": [{"name": "v"}]}, volumes=[{"name": "v", "a": 1}]),
        "there is a volume v twice",
    ),
    (mounted("data"), '(s): volumeMounts[0] has the mountPath "data": give one that begins with /'),
    (mounted("/a/../b"), "volumeMounts[0] has the mountPath"),
    (mounted("/tmp/"), "has the mountPath /tmp/, where something is that the container needs"),
    (mounted("/dev/shm"), "has the mountPath /dev/shm, where something is"),
    (mounted("/run/secrets/store", store=True), "has the mountPath /run/secrets/store, where"),
    ({**SHARED, **mounted("/shared", mediums=["file"])}, "has the mountPath /shared, where"),
    (mounted("/a", name="w"), "volumeMounts[0] is of w, and there is no such volume"),
    (
        client(volumeMounts=[{"name": "tmp", "mountPath": path} for path in ("/a", "/a/")]),
        "volumeMounts[1] has the mountPath /a/, and so has one before it",
    ),
    (shared("/tmp"), "sharedVolume.mountPath is /tmp, where the pod has something of its own"),
    (shared("/opt/entrepot"), "sharedVolume.mountPath is /opt/entrepot, where"),
    (shared("/a/../tmp"), "sharedVolume.mountPath is /a/../tmp, where"),
    # Variables.
    (environ({"value": "a"}), "(s): env[0] has no name that a variable may have"),
    (environ({"name": "A", "value": 1}), "env[0] (A) has the value 1, which is no text: put it"),
    (environ({"name": "A", "value": "1"}, {"name": "A", "value": "2"}), "env has A twice"),
    (environ({"name": "ENTREPOT_SUPPLIER__DRAIN_S", "value": "1"}), "__DRAIN_S, which the chart"),
    (
        supplier(**RUN, settings={"credit": 2}, env=[{"name": "ENTREPOT_SUPPLIER__CREDIT"}]),
        "env[0] is ENTREPOT_SUPPLIER__CREDIT, which the chart sets",
    ),
    (client(env=[{"name": "STORE_URL", "value": "s3://a"}]), "env[0] is STORE_URL, which the"),
    (
        {"broker": {"env": [{"name": "ENTREPOT_BROKER__BACKEND", "value": "tcp://*:1"}]}},
        "broker: env[0] is ENTREPOT_BROKER__BACKEND, which the chart sets",
    ),
    (
        {"sidecar": {"env": [{"name": "A", "value": True}]}},
        "sidecar: env[0] (A) has the value true",
    ),
    # The store.
    (keys(bucket="10.0.0.1"), "store.bucket is 10.0.0.1, which S3 takes for none"),
    (keys(bucket="a..b"), "store.bucket is a..b, which S3 takes for none"),
    (keys(prefix="a/../b"), "store.prefix is a/../b: give one without . and .."),
    (keys(s3={"endpoint": "https://user:word@s3.example.com"}), "'/store/s3/endpoint': 'https:"),
    (keys(s3={"endpoint": "https://s3.example.com:65536"}), "s3.endpoint has the port 65536"),
    (
        keys(keys={"key": "me1", "secret": "seven77"}),
        "store.keys.secret has 7 characters, and MinIO",
    ),
    (keys(keys={"key": "me", "secret": "eight888"}), "store.keys.key has 2 characters, and MinIO"),
    (keys(secretKeys={"key": "a", "secret": "a"}), "store.secretKeys are both a: say which"),
    (keys(existingSecret="My_Secret"), "'/store/existingSecret': 'My_Secret' does not match"),
    # Broker, sidecar, monitoring, policies.
    (
        {"broker": {"settings": {"dead_s": 3}}},
        "dead_s is 3, and suspect_s 5, so that suppliers are lost before they are suspected",
    ),
    *(
        ({"sidecar": {"token": {"value": token}}}, "sidecar.token.value has a space, a line's end")
        for token in (" " * 16, "x" * 16 + "\n", "x" * 16 + "é", "long words and blanks")
    ),
    (monitored(interval="5s", scrapeTimeout="1m"), "scrapeTimeout is 1m, and interval 5s: let a"),
    (
        {"sidecar": {"enabled": False}, "monitoring": {"rules": {"enabled": True}}},
        "monitoring.rules look at the metrics of the sidecar: set sidecar.enabled as well",
    ),
    *(
        (
            {"networkPolicy": {"storePeers": [{"ipBlock": {"cidr": block}}]}},
            f'networkPolicy.storePeers[0] has the block "{block}", which is none of addresses',
        )
        for block in ("10.0.0.0/99", "10.0.0.256/32", "10.0.0.0", "fd00::/129")
    ),
    (
        supplier(**RUN, egress=[{"to": [{"ipBlock": {"cidr": "10.0.0.0/33"}}]}]),
        'suppliers[0] (s), egress[0].to[0] has the block "10.0.0.0/33"',
    ),
    (
        {"networkPolicy": {"prometheus": [{"ipBlock": "10.0.0.0/8"}]}},
        'networkPolicy.prometheus[0].ipBlock is "10.0.0.0/8": write it as {cidr: 203.0.113.0/28}',
    ),
    # A word that is none of the policy's: without it the rule would allow everything.
    (supplier(**RUN, egress=[{"too": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}]), "'too'"),
    (supplier(**RUN, egress=[{"to": [{"ipblock": {"cidr": "10.0.0.0/8"}}]}]), "'ipblock'"),
    (supplier(**RUN, egress=[{"to": [{"ipBlock": {"cidr": "10.0.0.0/8", "but": []}}]}]), "'but'"),
    (supplier(**RUN, egress=[{}]), "/egress/0"),
    ({"networkPolicy": {"storePeers": [{}]}}, "/networkPolicy/storePeers/0"),
    ({"networkPolicy": {"prometheus": [{"podSelector": {"app": "p"}}]}}, "'app'"),
    (supplier(**RUN, tolerations=[{"keys": "gpu"}]), "'keys'"),
    # The test.
    ({"test": {"product": "p"}}, "test has both a stage and a product: give one"),
    (
        {**supplier(**SERVED), "test": {"stage": "words"}},
        "test orders of the stage words, which no supplier serves: name what one does",
    ),
    (
        {**supplier(**SERVED), "test": {"stage": "", "product": "q"}},
        "test orders q, which no supplier serves",
    ),
]


@pytest.mark.parametrize(("values", "sentence"), WRONG, ids=[said[:50] for _, said in WRONG])
def test_a_wrong_value_is_refused_with_a_sentence(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(Refused) as told:
        render(values)
    assert sentence in str(told.value)


@pytest.mark.parametrize(
    ("limit", "enough"),
    [
        *(("16777217", True), ("16777216", False), (16777217, True), ("17M", True)),
        *(("16M", False), ("16.5Mi", True), ("2e7", True), ("1e7", False), ("1Gi", True)),
        *(("0.01Gi", False), ("16385Ki", True), ("20000000000m", True), ("1E", True)),
    ],
)
def test_quantities_are_compared_as_kubernetes_reads_them(limit: Any, enough: bool) -> None:
    values = {
        "broker": {"shm": "16Mi", "resources": {"requests": None, "limits": {"memory": limit}}}
    }
    if enough:
        assert render(values)
    else:
        with pytest.raises(Refused, match="broker: its /dev/shm of 16Mi counts as memory"):
            render(values)


def test_all_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(Refused) as told:
        render({**supplier(**RUN, mediums=["shm"]), **client(medium="file")})
    said = str(told.value)
    assert "suppliers[0] (s): shared memory" in said
    assert "clients[0] (c) has the medium file" in said


@pytest.mark.parametrize(
    "values",
    [
        {"broker": {"shm": "511Mi"}},
        {**SHARED, **supplier(**RUN, mediums=["file"]), **client(medium="file")},
        {"store": {"kind": "s3", "keys": {"key": "", "secret": ""}}},
        {"store": {"kind": "s3", "keys": {"key": "mine", "secret": "mine-too"}}},
        {"store": {"kind": "none"}, **client(store=False)},
        near({"name": "n", **RUN}, settings={"slots": 63, "slot_nbytes": "2MiB"}),
        scaled(kind="hpa", min=1, max=1),
        scaled(supplierClass="a" * 120),
        supplier(**RUN, exclusive=True, replicas=1),
        supplier(**RUN, replicas=0),
        {"suppliers": [], "clients": [], "test": {"enabled": False}},
        supplier(**SERVED, batch=16, settings={"credit": 16}),
        supplier(serve="m.n:f.g", products=[r"a\d+|\Qb.c\E", "(a|b)"]),
        supplier(**RUN, replicas=10_000),
        client(kind="Deployment", ttlSecondsAfterFinished=None),
        {"clientDefaults": {"activeDeadlineSeconds": 9}, **client(kind="Deployment")},
        {"commonLabels": {"example.com/team": "b" * 63, "a": ""}},
        {"broker": {"image": f"localhost:5000/a/b_c:v1@sha256:{'0f' * 32}"}},
        {"broker": {"image": "registry.example.com/a"}},
        resources(requests={"cpu": "1.0", "memory": "1024Mi"}, limits={"cpu": 1, "memory": "1Gi"}),
        mounted("/data/"),
        mounted("/root/.cache", name="tmp"),
        mounted("/run/secrets/store"),
        environ({"name": "A"}, {"name": "B", "value": "1"}, {"name": "AB", "valueFrom": {}}),
        keys(bucket="a.b-c", prefix="a/b.c"),
        keys(kind="s3", existingSecret="b", s3={"endpoint": "https://[fd00::1]:65535"}),
        keys(keys={"key": "me1", "secret": "eight888"}),
        {"broker": {"settings": {"dead_s": 5}}},
        {"sidecar": {"token": {"value": "!" + "~" * 15}}},
        monitored(interval="1m", scrapeTimeout="60s"),
        {
            "networkPolicy": {
                "storePeers": [{"ipBlock": {"cidr": each}} for each in ("10.0.0.0/8", "fd00::/64")]
            }
        },
        {**supplier(**SERVED), "test": {"stage": "", "product": "p"}},
        {**supplier(**RUN), "test": {"stage": "words"}},
        {**supplier(serve="m:f", products=["stage/.*"]), "test": {"stage": "words"}},
        {"store": {"prefix": None, "s3": {"endpoint": None}}, "clientDefaults": {"env": None}},
    ],
)
def test_what_only_just_is_right_is_taken(values: dict[str, Any]) -> None:
    assert render(values)


@pytest.mark.parametrize(
    ("values", "offered"),
    [({}, True), (supplier(**SERVED), False), (supplier(command=["python", "-m", "x"]), False)],
)
def test_a_test_that_must_fail_is_not_offered(values: dict[str, Any], offered: bool) -> None:
    notes = texts(values)["entrepot/templates/NOTES.txt"]
    assert ("helm test entrepot --namespace default" in notes) is offered
    assert ("There is no `helm test`" in notes) is not offered
    made = [each for each in render(values) if each["kind"] == "Pod"]
    assert bool(made) is offered
