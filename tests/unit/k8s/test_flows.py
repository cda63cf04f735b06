"""Which flows the chart's NetworkPolicies allow: those of the design, and no other.

Every pod of a release, strangers in its namespace and in others, and addresses outside the cluster
are tried against each other, at every port that any of them has and at some that nobody has.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import pytest

from tests.unit.k8s.charts import example, of_kind, render
from tests.unit.k8s.policies import Peer, Port, allows, pods_of, receives, sends

HERE = "search"
"""The namespace that is installed into."""

FRONTEND, BACKEND, SLOTS, SIDECAR, STORE = (Port(n) for n in (5555, 5556, 5557, 9555, 9000))
HTTPS = Port(443)
DNS = (Port(53, "UDP"), Port(53))
ODD = tuple(Port(n, protocol) for n in (1, 22, 80, 8080, 65535) for protocol in ("TCP", "UDP"))

STRANGER = Peer("stranger", "10.244.9.1", HERE, {"app.kubernetes.io/name": "wordpress"})
ELSEWHERE = Peer("elsewhere", "10.244.9.2", "other", {"app.kubernetes.io/name": "entrepot"})
RESOLVER = Peer("dns", "10.244.9.3", "kube-system", {"k8s-app": "kube-dns"})
PROMETHEUS = Peer(
    "prometheus", "10.244.9.4", "monitoring", {"app.kubernetes.io/name": "prometheus"}
)
BUCKET = Peer("bucket", "203.0.113.10")
WORLD = Peer("world", "198.51.100.20")
OTHERS = (STRANGER, ELSEWHERE, RESOLVER, PROMETHEUS, BUCKET, WORLD)

Flow = tuple[str, str, Port]


def installed(
    values: dict[str, Any], release: str = "trial", namespace: str = HERE
) -> list[dict[str, Any]]:
    """The objects as they lie in the cluster: each in a namespace."""
    objects = render(values, release=release, namespace=namespace)
    for each in objects:
        each["metadata"].setdefault("namespace", namespace)
    return objects


def pods(objects: Iterable[dict[str, Any]], place: int = 0) -> list[Peer]:
    """Two pods of each kind that there is: they may not reach each other either.

    :param place: of their addresses, for those of another release.
    """
    found = [*objects]
    return [
        pod
        for subnet in (10 + 2 * place, 11 + 2 * place)
        for pod in pods_of(found, f"10.244.{subnet}.0/24")
    ]


def role(pod: Peer) -> str:
    return pod.labels.get("app.kubernetes.io/component", pod.name) if pod.namespace else pod.name


def every_port(of: Iterable[Peer]) -> set[Port]:
    return {*(port for pod in of for port in pod.ports.values()), *DNS, *ODD, HTTPS, SLOTS}


def flows(objects: Iterable[dict[str, Any]], of: Iterable[Peer]) -> set[Flow]:
    """What is allowed from or to one of these pods, by role."""
    policies = of_kind(objects, "NetworkPolicy")
    mine = [*of]
    ports = every_port(mine)
    every = [*mine, *OTHERS]
    return {
        (role(source), role(destination), port)
        for source, destination, port in itertools.product(every, every, ports)
        if (source in mine or destination in mine)
        and source is not destination
        and allows(policies, source, destination, port)
    }


def to_dns(*roles: str) -> set[Flow]:
    return {(each, "dns", port) for each in roles for port in DNS}


DEFAULT: set[Flow] = {
    ("supplier", "broker", BACKEND),
    ("supplier", "client", SLOTS),
    ("supplier", "test", SLOTS),
    ("client", "broker", FRONTEND),
    ("client", "store", STORE),
    ("test", "broker", FRONTEND),
    ("test", "store", STORE),
    ("broker", "store", STORE),  # the sidecar, in the broker's pod
    ("prometheus", "broker", SIDECAR),
    *to_dns("broker", "supplier", "client", "test", "store"),
}
"""Clients, the test and the broker's pod also make the bucket, before they begin."""


def test_the_default_values_allow_what_the_design_lists_and_nothing_else() -> None:
    objects = installed({})
    roles = {"broker", "supplier", "client", "test", "store"}
    assert {role(pod) for pod in pods(objects)} == roles
    assert flows(objects, pods(objects)) == DEFAULT


def test_each_end_alone_lets_no_more_through() -> None:
    """Neither leans on the other: a flow is denied twice."""
    objects = installed({})
    policies, mine = of_kind(objects, "NetworkPolicy"), pods(objects)
    ports = every_port(mine)
    received = {
        (role(source), role(destination), port)
        for source, destination, port in itertools.product([*mine, *OTHERS], mine, ports)
        if source is not destination and receives(policies, source, destination, port)
    }
    sent = {
        (role(source), role(destination), port)
        for source, destination, port in itertools.product(mine, [*mine, *OTHERS], ports)
        if source is not destination and sends(policies, source, destination, port)
    }
    roles = {role(pod) for pod in mine}
    assert received == {flow for flow in DEFAULT if flow[1] in roles}
    assert sent == {flow for flow in DEFAULT if flow[0] in roles}


def test_production_allows_the_same_with_the_store_outside() -> None:
    objects = installed(example("production"))
    within = {flow for flow in DEFAULT if "store" not in flow[:2]}
    outside = {(each, "bucket", HTTPS) for each in ("broker", "client", "test")}
    assert flows(objects, pods(objects)) == within | outside


def test_a_namespace_that_is_named_reaches_the_sidecar_and_nothing_more() -> None:
    objects = installed({"networkPolicy": {"sidecarNamespaces": ["other"]}})
    found = flows(objects, pods(objects))
    assert found == DEFAULT | {("elsewhere", "broker", SIDECAR)}


def test_without_a_store_and_a_sidecar_their_flows_are_gone() -> None:
    values = {"store": {"kind": "none"}, "sidecar": {"enabled": False}, "clients": []}
    objects = installed(values)
    assert flows(objects, pods(objects)) == {
        ("supplier", "broker", BACKEND),
        ("supplier", "test", SLOTS),
        ("test", "broker", FRONTEND),
        *to_dns("broker", "supplier", "test"),
    }


def test_only_a_supplier_that_keeps_something_in_the_store_reaches_it() -> None:
    keeps = {"name": "keeps", "serve": "m:f", "products": ["p"], "store": True}
    plain = {"name": "plain", "serve": "m:f", "products": ["q"]}
    objects = installed({"suppliers": [keeps, plain]})
    named = {pod.labels.get("entrepot/supplier", role(pod)): pod for pod in pods(objects)}
    policies = of_kind(objects, "NetworkPolicy")
    assert allows(policies, named["keeps"], named["store"], STORE)
    assert not allows(policies, named["plain"], named["store"], STORE)


def test_without_policies_the_strangers_get_in() -> None:
    """What the other tests see is seen."""
    objects = installed({"networkPolicy": {"enabled": False}})
    found = flows(objects, pods(objects))
    assert ("stranger", "broker", BACKEND) in found
    assert ("client", "world", HTTPS) in found


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("trial", HERE), ("serious", HERE)),
        (("trial", HERE), ("trial-2", HERE)),
        (("trial", HERE), ("trial", "elsewhere")),
    ],
    ids=["one namespace", "one is the beginning of the other", "two namespaces"],
)
def test_two_releases_are_kept_apart(first: tuple[str, str], second: tuple[str, str]) -> None:
    mine, other = installed({}, *first), installed({}, *second)
    policies = of_kind([*mine, *other], "NetworkPolicy")
    ours, theirs = pods(mine), pods(other, place=1)
    ports = every_port(ours)
    across = [
        (source.name, destination.name, port)
        for ends in itertools.product(ours, theirs)
        for source, destination in itertools.permutations(ends)
        for port in ports
        if allows(policies, source, destination, port)
    ]
    assert across == []
    # And neither takes anything from the other.
    assert flows([*mine, *other], ours) == flows(mine, ours) == DEFAULT
