"""JSON schemas of the kinds that Kubernetes does not bring: what a chart may well say of them.

By hand, after the fields of Prometheus Operator (monitoring.coreos.com/v1) and KEDA
(keda.sh/v1alpha1), and stricter: a field that stands in none of these is refused, since an API
server drops it without a word.
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

TEXT: Schema = {"type": "string", "minLength": 1}
BOOLEAN: Schema = {"type": "boolean"}
COUNT: Schema = {"type": "integer", "minimum": 0}
TEXTS: Schema = {"type": "array", "items": TEXT}
TEXT_TO_TEXT: Schema = {"type": "object", "additionalProperties": {"type": "string"}}
DURATION: Schema = {"type": "string", "pattern": r"^([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?$"}
SECRET_KEY: Schema = {
    "type": "object",
    "required": ["name", "key"],
    "properties": {"name": TEXT, "key": TEXT, "optional": BOOLEAN},
    "additionalProperties": False,
}


def thing(required: list[str] | None = None, **properties: Schema) -> Schema:
    """An object with these fields and no others."""
    return {
        "type": "object",
        "required": required or [],
        "properties": properties,
        "additionalProperties": False,
    }


def kind(api_version: str, name: str, spec: Schema) -> Schema:
    return thing(
        ["apiVersion", "kind", "metadata", "spec"],
        apiVersion={"const": api_version},
        kind={"const": name},
        metadata=thing(
            ["name"], name=TEXT, namespace=TEXT, labels=TEXT_TO_TEXT, annotations=TEXT_TO_TEXT
        ),
        spec=spec,
    )


SELECTOR = thing(
    matchLabels=TEXT_TO_TEXT,
    matchExpressions={
        "type": "array",
        "items": thing(
            ["key", "operator"],
            key=TEXT,
            operator={"enum": ["In", "NotIn", "Exists", "DoesNotExist"]},
            values=TEXTS,
        ),
    },
)

RELABELING = thing(
    sourceLabels=TEXTS,
    separator={"type": "string"},
    targetLabel=TEXT,
    regex={"type": "string"},
    modulus=COUNT,
    replacement={"type": "string"},
    action={
        "enum": [
            *("replace", "keep", "drop", "hashmod", "labelmap", "labeldrop", "labelkeep"),
            *("lowercase", "uppercase", "keepequal", "dropequal"),
        ]
    },
)

ENDPOINT = thing(
    ["port"],  # a name: of the service's port
    port=TEXT,
    path={"type": "string", "pattern": "^/"},
    scheme={"enum": ["http", "https", "HTTP", "HTTPS"]},
    interval=DURATION,
    scrapeTimeout=DURATION,
    honorLabels=BOOLEAN,
    honorTimestamps=BOOLEAN,
    authorization=thing(["credentials"], type=TEXT, credentials=SECRET_KEY),
    bearerTokenSecret=SECRET_KEY,
    tlsConfig={"type": "object"},
    params={"type": "object", "additionalProperties": TEXTS},
    relabelings={"type": "array", "items": RELABELING},
    metricRelabelings={"type": "array", "items": RELABELING},
)

SERVICE_MONITOR = thing(
    ["endpoints", "selector"],
    endpoints={"type": "array", "items": ENDPOINT, "minItems": 1},
    selector=SELECTOR,
    namespaceSelector=thing(any=BOOLEAN, matchNames=TEXTS),
    jobLabel=TEXT,
    targetLabels=TEXTS,
    podTargetLabels=TEXTS,
    sampleLimit=COUNT,
    targetLimit=COUNT,
    labelLimit=COUNT,
    labelNameLengthLimit=COUNT,
    labelValueLengthLimit=COUNT,
)

RULE = {
    **thing(
        ["expr"],
        alert=TEXT,
        record=TEXT,
        expr=TEXT,
        labels=TEXT_TO_TEXT,
        annotations=TEXT_TO_TEXT,
        keep_firing_for=DURATION,
        **{"for": DURATION},
    ),
    "oneOf": [{"required": ["alert"]}, {"required": ["record"]}],
}

PROMETHEUS_RULE = thing(
    ["groups"],
    groups={
        "type": "array",
        "minItems": 1,
        "items": thing(
            ["name", "rules"],
            name=TEXT,
            interval=DURATION,
            labels=TEXT_TO_TEXT,
            limit=COUNT,
            rules={"type": "array", "items": RULE, "minItems": 1},
        ),
    },
)

TRIGGER = thing(
    ["type", "metadata"],
    type={"enum": ["prometheus", "metrics-api"]},
    name=TEXT,
    metricType={"enum": ["AverageValue", "Value", "Utilization"]},
    useCachedMetrics=BOOLEAN,
    metadata=TEXT_TO_TEXT,  # numbers too are texts there
    authenticationRef=thing(
        ["name"],
        name=TEXT,
        kind={"enum": ["TriggerAuthentication", "ClusterTriggerAuthentication"]},
    ),
)

TRIGGER["allOf"] = [
    {
        "if": {"properties": {"type": {"const": "prometheus"}}},
        "then": {"properties": {"metadata": {"required": ["serverAddress", "query", "threshold"]}}},
    },
    {
        "if": {"properties": {"type": {"const": "metrics-api"}}},
        "then": {"properties": {"metadata": {"required": ["url", "valueLocation", "targetValue"]}}},
    },
]

SCALED_OBJECT = thing(
    ["scaleTargetRef", "triggers"],
    scaleTargetRef=thing(
        ["name"], apiVersion=TEXT, kind=TEXT, name=TEXT, envSourceContainerName=TEXT
    ),
    pollingInterval=COUNT,
    cooldownPeriod=COUNT,
    initialCooldownPeriod=COUNT,
    idleReplicaCount=COUNT,
    minReplicaCount=COUNT,
    maxReplicaCount={"type": "integer", "minimum": 1},
    fallback=thing(
        ["failureThreshold", "replicas"],
        failureThreshold=COUNT,
        replicas=COUNT,
        behavior=TEXT,
    ),
    advanced=thing(
        restoreToOriginalReplicaCount=BOOLEAN,
        horizontalPodAutoscalerConfig=thing(name=TEXT, behavior={"type": "object"}),
    ),
    triggers={"type": "array", "items": TRIGGER, "minItems": 1},
)

SCHEMAS = {
    "ServiceMonitor": kind("monitoring.coreos.com/v1", "ServiceMonitor", SERVICE_MONITOR),
    "PrometheusRule": kind("monitoring.coreos.com/v1", "PrometheusRule", PROMETHEUS_RULE),
    "ScaledObject": kind("keda.sh/v1alpha1", "ScaledObject", SCALED_OBJECT),
}
