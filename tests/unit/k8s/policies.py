"""Which flows NetworkPolicies allow, worked out from the objects alone.

As the API describes them: a pod that no policy selects for a direction is open in it; one that some
policy selects may do what at least one rule of one of these allows; policies only add. A flow is
allowed if its source may send it and its destination may receive it.

Where networks differ, the wider reading is taken, as what is asked of it is that nothing else is
allowed: an ``ipBlock`` also holds the pods whose address lies in it.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Object = Mapping[str, Any]
"""A manifest, or a part of one."""

NAMESPACE_NAME = "kubernetes.io/metadata.name"
"""Every namespace has its own name as this label."""


@dataclass(frozen=True)
class Port:
    number: int
    protocol: str = "TCP"


@dataclass(frozen=True)
class Peer:
    """One end of a flow: a pod, or with no namespace an address outside the cluster."""

    name: str
    address: str
    namespace: str = ""
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    namespace_labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    ports: Mapping[str, Port] = field(default_factory=dict, hash=False)
    """Of its containers, by name."""

    def of_namespace(self) -> Mapping[str, str]:
        return {NAMESPACE_NAME: self.namespace, **self.namespace_labels}


def allows(policies: Sequence[Object], source: Peer, destination: Peer, port: Port) -> bool:
    """Whether a connection from one to the other's port comes about."""
    if source == destination:
        return True  # nothing keeps a pod from itself
    return sends(policies, source, destination, port) and receives(
        policies, source, destination, port
    )


def sends(policies: Sequence[Object], source: Peer, destination: Peer, port: Port) -> bool:
    """Whether the source's own policies let it."""
    return _permitted(policies, "Egress", source, destination, destination, port)


def receives(policies: Sequence[Object], source: Peer, destination: Peer, port: Port) -> bool:
    """Whether the destination's own policies let it."""
    return _permitted(policies, "Ingress", destination, source, destination, port)


def _permitted(
    policies: Sequence[Object],
    direction: str,
    mine: Peer,
    other: Peer,
    destination: Peer,
    port: Port,
) -> bool:
    binding = [one for one in policies if direction in types(one) and selects(one, mine)]
    if not binding:
        return True
    rules = ((one, rule) for one in binding for rule in one["spec"].get(direction.lower()) or ())
    ends = "to" if direction == "Egress" else "from"
    return any(
        _holds_peer(policy, rule.get(ends), other) and _holds_port(rule, destination, port)
        for policy, rule in rules
    )


def types(policy: Object) -> Sequence[str]:
    """The directions that it is about; where it does not say, what the API takes it to mean."""
    spec = policy["spec"]
    said: Sequence[str] | None = spec.get("policyTypes")
    return said or (["Ingress", "Egress"] if spec.get("egress") else ["Ingress"])


def selects(policy: Object, pod: Peer) -> bool:
    """Whether it is about that pod."""
    same = policy["metadata"]["namespace"] == pod.namespace
    return same and matches(policy["spec"].get("podSelector") or {}, pod.labels)


def _holds_peer(policy: Object, ends: Sequence[Object] | None, other: Peer) -> bool:
    return not ends or any(_is_peer(policy, end, other) for end in ends)


def _is_peer(policy: Object, end: Object, other: Peer) -> bool:
    if "ipBlock" in end:
        block = end["ipBlock"]
        return _within(other.address, block["cidr"]) and not any(
            _within(other.address, but) for but in block.get("except") or ()
        )
    if not other.namespace:
        return False
    if "namespaceSelector" in end:
        near = matches(end["namespaceSelector"] or {}, other.of_namespace())
    else:
        near = other.namespace == policy["metadata"]["namespace"]
    return near and matches(end.get("podSelector") or {}, other.labels)


def _within(address: str, cidr: str) -> bool:
    return ipaddress.ip_address(address) in ipaddress.ip_network(cidr)


def _holds_port(rule: Object, destination: Peer, port: Port) -> bool:
    ports = rule.get("ports")
    return not ports or any(_is_port(one, destination, port) for one in ports)


def _is_port(one: Object, destination: Peer, port: Port) -> bool:
    wanted = one.get("port")
    if isinstance(wanted, str):
        return destination.ports.get(wanted) == port and one.get("protocol", "TCP") == port.protocol
    if one.get("protocol", "TCP") != port.protocol:
        return False
    return wanted is None or wanted <= port.number <= one.get("endPort", wanted)


def matches(selector: Object, labels: Mapping[str, str]) -> bool:
    """Whether labels are what a selector asks for; an empty one takes all.

    :raises ValueError: of an operator that there is not.
    """
    wanted = (selector.get("matchLabels") or {}).items()
    return all(labels.get(key) == value for key, value in wanted) and all(
        _expressed(one, labels) for one in selector.get("matchExpressions") or ()
    )


def _expressed(one: Object, labels: Mapping[str, str]) -> bool:
    key, operator = one["key"], one["operator"]
    if operator == "In":
        return key in labels and labels[key] in one["values"]
    if operator == "NotIn":
        return key not in labels or labels[key] not in one["values"]
    if operator == "Exists":
        return key in labels
    if operator == "DoesNotExist":
        return key not in labels
    raise ValueError(f"there is no operator {operator!r} in a selector of labels")


# --- out of what a chart renders ----------------------------------------------------------

MAKERS = ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Job")


def templates_of(objects: Iterable[Object]) -> Iterator[tuple[Object, Object]]:
    """Each object that makes pods, and what its pods are made from."""
    for one in objects:
        if one["kind"] == "Pod":
            yield one, one
        elif one["kind"] == "CronJob":
            yield one, one["spec"]["jobTemplate"]["spec"]["template"]
        elif one["kind"] in MAKERS:
            yield one, one["spec"]["template"]


def pods_of(objects: Iterable[Object], network: str) -> list[Peer]:
    """A pod of each object that makes pods, in its object's namespace.

    :param network: what their addresses are taken from.
    """
    addresses = ipaddress.ip_network(network).hosts()
    return [
        Peer(
            name=maker["metadata"]["name"],
            address=str(address),
            namespace=maker["metadata"]["namespace"],
            labels=template["metadata"].get("labels") or {},
            ports={
                port["name"]: Port(port["containerPort"], port.get("protocol", "TCP"))
                for container in template["spec"]["containers"]
                for port in container.get("ports") or ()
                if "name" in port
            },
        )
        for (maker, template), address in zip(templates_of(objects), addresses, strict=False)
    ]
