"""What values the chart takes: ``values.schema.json``, in Python, where what is alike is said once.

The settings of the broker, suppliers, clients, stores and the sidecar are those of
:mod:`entrepot.settings`, so that a wrong one is refused before anything is installed.
"""

from __future__ import annotations

from typing import Any

from entrepot.settings import (
    BrokerSettings,
    ClientSettings,
    Section,
    SidecarSettings,
    StoreSettings,
    SupplierSettings,
)

Schema = dict[str, Any]

QUANTITY = (
    r"^([0-9]*[1-9][0-9]*(\.[0-9]+)?|[0-9]+\.[0-9]*[1-9][0-9]*)(k|M|G|T|Ki|Mi|Gi|Ti)?$"  # not 0
)
AMOUNT = r"^[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$"
SIZE = r"^[0-9]+(\.[0-9]+)?(kB|MB|GB|KiB|MiB|GiB)?$"
NAME = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
SUBDOMAIN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
_PART = r"[a-z0-9]+([._-]+[a-z0-9]+)*"
IMAGE = (
    rf"^([A-Za-z0-9][A-Za-z0-9.-]*(:[0-9]+)?/)?{_PART}(/{_PART})*"
    r"(:[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?(@sha256:[0-9a-f]{64})?$"
)
SERVE = r"^$|^[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_.]*$"
LABEL_KEY = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
LABEL = r"^$|^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"

MOST_PODS = 10_000
"""Of one supplier or client: what is above is a slip of the hand."""

OWNED = {
    BrokerSettings: {"frontend", "backend"},
    SupplierSettings: {"endpoint", "drain_s", "mediums", "file_root"},
    ClientSettings: {
        *("endpoint", "medium", "file_root", "file_network"),
        *("tcp_host", "tcp_port", "tcp_advertise"),
    },
    StoreSettings: set[str](),
    SidecarSettings: {"host", "port", "store", "token_file"},
}
"""Settings that the chart sets itself, from other values."""


def thing(**properties: Schema) -> Schema:
    return {"type": "object", "additionalProperties": False, "properties": properties}


def listed(item: Schema) -> Schema:
    return {"type": "array", "items": item}


def text(pattern: str = "", **rest: Any) -> Schema:
    return {"type": "string", **({"pattern": pattern} if pattern else {}), **rest}


def whole(least: int, most: int | None = None) -> Schema:
    return {
        "type": "integer",
        "minimum": least,
        **({} if most is None else {"maximum": most}),
    }


FLAG: Schema = {"type": "boolean"}
PORT = whole(1, 65_535)
SECONDS = whole(1, 86_400)
QUANTITIES: Schema = {
    "type": "object",
    "additionalProperties": {
        "type": ["string", "integer", "number"],
        "pattern": AMOUNT,
        "minimum": 0,
    },
}
_KEYS: Schema = {"type": "object", "propertyNames": {"pattern": LABEL_KEY}}
TEXTS: Schema = {**_KEYS, "additionalProperties": {"type": "string"}}
"""Annotations."""

LABELS: Schema = {**_KEYS, "additionalProperties": {"type": "string", "pattern": LABEL}}
"""Labels, and what selects by them."""

THINGS = listed({"type": "object"})
"""Of Kubernetes' own types, which its server checks."""

FREE: Schema = {"type": "object"}
"""The same, one of them."""

# What decides who may reach whom is checked whole: a rule whose `to` is misspelt allows everything.
_SELECTOR = thing(
    matchLabels=LABELS,
    matchExpressions=listed(
        thing(
            key=text(LABEL_KEY),
            operator=text(enum=["In", "NotIn", "Exists", "DoesNotExist"]),
            values=listed(text(LABEL)),
        )
    ),
)
PEERS = listed(
    {
        **thing(
            podSelector=_SELECTOR,
            namespaceSelector=_SELECTOR,
            # Without a type: what is none of addresses is refused by a template, in a sentence.
            ipBlock={
                "additionalProperties": False,
                "properties": {"cidr": text(), "except": listed(text())},
            },
        ),
        "minProperties": 1,
    }
)
_POLICY_PORT = thing(
    port={"type": ["integer", "string"], "minimum": 1, "maximum": 65_535, "minLength": 1},
    endPort=PORT,
    protocol=text(enum=["TCP", "UDP", "SCTP"]),
)
EGRESS = listed({**thing(to=PEERS, ports=listed(_POLICY_PORT)), "minProperties": 1})
TOLERATIONS = listed(
    thing(
        key=text(r"^$|" + LABEL_KEY.removeprefix("^")),
        operator=text(enum=["Exists", "Equal", "Lt", "Gt"]),
        value=text(LABEL),
        effect=text(enum=["", "NoSchedule", "PreferNoSchedule", "NoExecute"]),
        tolerationSeconds={"type": "integer"},
    )
)

RESOURCES = thing(requests=QUANTITIES, limits=QUANTITIES, claims=THINGS)
PROBES = thing(enabled=FLAG, startupSeconds=SECONDS)
PDB = thing(enabled=FLAG, maxUnavailable=whole(0))
QUANTITY_TEXT = text(QUANTITY)
IMAGE_TEXT = text(IMAGE)
KEY = text(r"^[-._A-Za-z0-9]+$", maxLength=253)
"""Of a secret's data."""

OBJECT = text(r"^$|" + SUBDOMAIN, maxLength=253)
"""The name of an object that is there, or none."""

SERVICE = text(enum=["ClusterIP", "NodePort", "LoadBalancer"])

PLACEMENT = {
    "nodeSelector": LABELS,
    "tolerations": TOLERATIONS,
    "affinity": FREE,
    "priorityClassName": OBJECT,
    "runtimeClassName": OBJECT,
}
POD = {**PLACEMENT, "podLabels": LABELS, "podAnnotations": TEXTS}
SPREAD = listed(
    {
        **thing(
            maxSkew=whole(1),
            topologyKey=text(minLength=1),
            whenUnsatisfiable=text(enum=["ScheduleAnyway", "DoNotSchedule"]),
        ),
        "required": ["maxSkew", "topologyKey", "whenUnsatisfiable"],
    }
)


def settings(section: type[Section]) -> Schema:
    """The settings of a section that the chart leaves to whoever installs it."""
    known = section.model_json_schema()["properties"]
    return thing(
        **{name: _setting(name, known[name]) for name in known if name not in OWNED[section]}
    )


def _setting(name: str, known: Schema) -> Schema:
    kept = {
        key: value
        for key, value in known.items()
        if key in ("type", "enum", "minimum", "exclusiveMinimum", "maximum", "description")
    }
    if "anyOf" in known:
        kept["type"] = "string"  # what may also be left out
    if name.endswith(("_nbytes", "_nbytes_s")):
        return {
            "description": kept.pop("description"),
            "anyOf": [kept, text(SIZE)],
        }
    return kept


def container(section: type[Section]) -> dict[str, Schema]:
    """What every container has that runs what users give."""
    return {
        "image": IMAGE_TEXT,
        "command": listed(text()),
        "store": FLAG,
        "settings": settings(section),
        "env": THINGS,
        "resources": RESOURCES,
        "volumes": THINGS,
        "volumeMounts": THINGS,
        "lifecycle": FREE,
    }


BESIDE = {
    **container(SupplierSettings),
    "serve": text(SERVE),
    "products": listed(text(minLength=1)),
    "batch": whole(0, 65_536),
    "exclusive": FLAG,
    "drainSeconds": SECONDS,
    "probes": PROBES,
}
"""Of suppliers, wherever they run."""

SUPPLIER = {
    **BESIDE,
    **POD,
    "replicas": whole(0, MOST_PODS),
    "surge": whole(0, MOST_PODS),
    "mediums": {**listed(text(enum=["tcp", "file", "shm"])), "minItems": 1, "uniqueItems": True},
    "graceAfterDrainSeconds": SECONDS,
    "shm": QUANTITY_TEXT,
    "tmp": QUANTITY_TEXT,
    "egress": EGRESS,
    "autoscaling": thing(
        enabled=FLAG,
        kind=text(enum=["keda", "hpa"]),
        min=whole(0, MOST_PODS),
        max=whole(1, MOST_PODS),
        backlogPerPod=whole(1),
        supplierClass=text(),
        scaleDownSeconds=whole(0, 3_600),
        prometheusUrl=text(r"^https?://"),
        pollSeconds=SECONDS,
    ),
    "pdb": PDB,
    "topologySpread": SPREAD,
}

CLIENT = {
    **container(ClientSettings),
    **POD,
    "kind": text(enum=["Job", "Deployment"]),
    "pods": whole(1, MOST_PODS),
    "medium": text(enum=["tcp", "file", "shm"]),
    "probes": thing(enabled=FLAG),
    "backoffLimit": whole(0),
    "activeDeadlineSeconds": whole(0),
    "ttlSecondsAfterFinished": {"type": ["integer", "null"], "minimum": 0},
    "terminationGracePeriodSeconds": SECONDS,
    "shm": QUANTITY_TEXT,
    "tmp": QUANTITY_TEXT,
    "egress": EGRESS,
    "topologySpread": SPREAD,
}


def named(properties: dict[str, Schema]) -> Schema:
    """An item of a list: it has a name, and says what it has otherwise than the defaults."""
    return listed(
        {**thing(name=text(NAME, maxLength=30), **properties), "required": ["name"]},
    )


def whole_schema() -> Schema:
    """All of it."""
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Values of the chart entrepot",
        **thing(
            **{"global": FREE, "enabled": FLAG},
            fullnameOverride=text(r"^$|" + NAME, maxLength=40),
            commonLabels=LABELS,
            image=thing(
                registry=text(r"^$|^[^:/]+(:[0-9]+)?(/[^:]+)?$"),
                tag=text(r"^$|^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$"),
                pullPolicy=text(enum=["Always", "IfNotPresent", "Never"]),
                pullSecrets=listed(text(SUBDOMAIN)),
            ),
            serviceAccount=thing(create=FLAG, name=OBJECT, annotations=TEXTS),
            security=thing(setIds=FLAG),
            slotsPort=PORT,
            broker=_broker(),
            sidecar=_sidecar(),
            store=_store(),
            sharedVolume=thing(
                enabled=FLAG,
                existingClaim=OBJECT,
                storageClass=OBJECT,
                size=QUANTITY_TEXT,
                mountPath=text("^/[^:]+$"),
                network=FLAG,
            ),
            suppliers=named(SUPPLIER),
            supplierDefaults=thing(**SUPPLIER),
            clients=named({**CLIENT, "suppliers": named(BESIDE)}),
            clientDefaults=thing(**CLIENT, suppliers=named(BESIDE)),
            networkPolicy=thing(
                enabled=FLAG,
                dns=thing(peers=PEERS, ports=listed(PORT)),
                prometheus=PEERS,
                sidecarNamespaces=listed(text(NAME)),
                storePeers=PEERS,
            ),
            monitoring=thing(
                serviceMonitor=thing(
                    enabled=FLAG,
                    interval=text("^[1-9][0-9]{0,6}(ms|s|m)$"),
                    scrapeTimeout=text("^[1-9][0-9]{0,6}(ms|s|m)$"),
                    labels=LABELS,
                ),
                rules=thing(enabled=FLAG, labels=LABELS, runbookUrl=text()),
                dashboards=thing(enabled=FLAG, labels=LABELS, annotations=TEXTS),
            ),
            test=thing(
                enabled=FLAG,
                image=IMAGE_TEXT,
                stage=text(),
                product=text(),
                timeoutSeconds=SECONDS,
                resources=RESOURCES,
                shm=QUANTITY_TEXT,
                tmp=QUANTITY_TEXT,
                nodeSelector=LABELS,
                tolerations=TOLERATIONS,
            ),
        ),
    }


def _broker() -> Schema:
    port = thing(port=PORT, type=SERVICE, annotations=TEXTS)
    return thing(
        image=IMAGE_TEXT,
        frontend=port,
        backend=port,
        settings=settings(BrokerSettings),
        env=THINGS,
        resources=RESOURCES,
        shm=QUANTITY_TEXT,
        tmp=QUANTITY_TEXT,
        probes=PROBES,
        terminationGracePeriodSeconds=SECONDS,
        pdb=PDB,
        **POD,
    )


def _sidecar() -> Schema:
    return thing(
        enabled=FLAG,
        image=IMAGE_TEXT,
        port=PORT,
        type=SERVICE,
        annotations=TEXTS,
        token=thing(existingSecret=OBJECT, secretKey=KEY, value=text()),
        settings=settings(SidecarSettings),
        env=THINGS,
        resources=RESOURCES,
        probes=PROBES,
    )


def _store() -> Schema:
    return thing(
        kind=text(enum=["minio", "s3", "none"]),
        bucket=text(r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$"),
        prefix=text(r"^$|^[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*$"),
        s3=thing(endpoint=text(r"^$|^https?://[^/?#@\s]+$"), region=text(r"^[a-z0-9-]*$")),
        existingSecret=OBJECT,
        secretKeys=thing(key=KEY, secret=KEY),
        keys=thing(key=text(), secret=text()),
        settings=settings(StoreSettings),
        init=thing(
            enabled=FLAG, image=IMAGE_TEXT, waitSeconds=whole(0, 3_600), resources=RESOURCES
        ),
        minio=thing(
            image=IMAGE_TEXT,
            persistence=thing(enabled=FLAG, size=QUANTITY_TEXT, storageClass=OBJECT),
            tmp=QUANTITY_TEXT,
            resources=RESOURCES,
            **PLACEMENT,
        ),
    )
