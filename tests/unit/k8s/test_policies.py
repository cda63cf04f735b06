"""The checker of NetworkPolicies: what the API's description says, and laws that it implies."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.k8s.policies import Peer, Port, allows, matches, receives, sends, types

WEB = Peer("web", "10.0.0.1", "shop", {"app": "web"}, ports={"http": Port(8080)})
DB = Peer("db", "10.0.0.2", "shop", {"app": "db", "tier": "data"}, ports={"sql": Port(5432)})
SPY = Peer("spy", "10.0.0.3", "other", {"app": "web"}, {"team": "red"})
OUTSIDE = Peer("outside", "203.0.113.7")
PEERS = (WEB, DB, SPY, OUTSIDE)
PORTS = (Port(8080), Port(5432), Port(53, "UDP"), Port(53))


def policy(
    *, namespace: str = "shop", selector: dict[str, Any] | None = None, **spec: Any
) -> dict[str, Any]:
    return {
        "kind": "NetworkPolicy",
        "metadata": {"name": "one", "namespace": namespace},
        "spec": {"podSelector": selector or {}, **spec},
    }


# --- what is written in the API's description ---------------------------------------------


def test_without_a_policy_everything_is_open() -> None:
    for source, destination, port in itertools.product(PEERS, PEERS, PORTS):
        assert allows([], source, destination, port)


def test_a_policy_with_no_rule_denies_its_direction_in_its_namespace_alone() -> None:
    deny = [policy(policyTypes=["Ingress"])]
    assert not receives(deny, WEB, DB, Port(5432))
    assert not receives(deny, OUTSIDE, DB, Port(5432))
    assert receives(deny, WEB, SPY, Port(80))
    assert sends(deny, DB, WEB, Port(80))
    assert not sends([policy(policyTypes=["Egress"])], DB, OUTSIDE, Port(80))


def test_a_pod_reaches_itself_whatever_is_denied() -> None:
    assert allows([policy(policyTypes=["Ingress", "Egress"])], DB, DB, Port(1))


def test_an_address_outside_is_bound_by_no_policy() -> None:
    everything = policy(policyTypes=["Ingress", "Egress"])
    assert sends([everything], OUTSIDE, SPY, Port(80))


@pytest.mark.parametrize(
    ("spec", "meant"),
    [
        ({}, ["Ingress"]),
        ({"egress": [{}]}, ["Ingress", "Egress"]),
        ({"egress": []}, ["Ingress"]),
        ({"policyTypes": ["Egress"], "ingress": [{}]}, ["Egress"]),
    ],
)
def test_what_a_policy_is_about_where_it_does_not_say(
    spec: dict[str, Any], meant: list[str]
) -> None:
    assert list(types(policy(**spec))) == meant


@pytest.mark.parametrize("everything", [{}, {"from": []}, {"ports": []}, {"from": [], "ports": []}])
def test_a_rule_without_peers_or_ports_allows_all(everything: dict[str, Any]) -> None:
    for source, port in itertools.product(PEERS, PORTS):
        assert receives([policy(ingress=[everything])], source, DB, port)


SELECTED = [
    ({"podSelector": {"matchLabels": {"app": "web"}}}, {"web"}),
    ({"podSelector": {}}, {"web", "db"}),
    ({"namespaceSelector": {}}, {"web", "db", "spy"}),
    ({"namespaceSelector": {"matchLabels": {"team": "red"}}}, {"spy"}),
    ({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "other"}}}, {"spy"}),
    (
        {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "web"}}},
        {"web", "spy"},
    ),
    ({"ipBlock": {"cidr": "203.0.113.0/24"}}, {"outside"}),
    ({"ipBlock": {"cidr": "0.0.0.0/0", "except": ["10.0.0.2/31"]}}, {"web", "outside"}),
    ({"ipBlock": {"cidr": "10.0.0.0/30", "except": ["10.0.0.0/30"]}}, set()),
]


@pytest.mark.parametrize(("end", "who"), SELECTED)
def test_whom_a_peer_of_a_rule_means(end: dict[str, Any], who: set[str]) -> None:
    into = [policy(ingress=[{"from": [end]}])]
    out = [policy(policyTypes=["Egress"], egress=[{"to": [end]}])]
    assert {peer.name for peer in PEERS if receives(into, peer, DB, Port(1))} == who
    assert {peer.name for peer in PEERS if sends(out, DB, peer, Port(1))} == who


@pytest.mark.parametrize(
    ("port", "which"),
    [
        ({"port": 5432}, {Port(5432)}),
        ({"port": "sql"}, {Port(5432)}),
        ({"port": "sql", "protocol": "UDP"}, set()),
        ({"port": "http"}, set()),
        ({"port": 53, "protocol": "UDP"}, {Port(53, "UDP")}),
        ({"protocol": "UDP"}, {Port(53, "UDP")}),
        ({"port": 53, "endPort": 5432}, {Port(53), Port(5432)}),
        ({"port": 5433, "endPort": 8080}, {Port(8080)}),
    ],
)
def test_which_ports_a_rule_means(port: dict[str, Any], which: set[Port]) -> None:
    into = [policy(ingress=[{"ports": [port]}])]
    out = [policy(policyTypes=["Egress"], egress=[{"ports": [port]}])]
    assert {one for one in PORTS if receives(into, WEB, DB, one)} == which
    # A name is the destination's also on the way out.
    assert {one for one in PORTS if sends(out, WEB, DB, one)} == which


def test_a_flow_needs_both_ends() -> None:
    out = policy(
        selector={"matchLabels": {"app": "web"}},
        policyTypes=["Egress"],
        egress=[{"to": [{"podSelector": {"matchLabels": {"app": "db"}}}]}],
    )
    into = policy(selector={"matchLabels": {"app": "db"}}, ingress=[{"ports": [{"port": "sql"}]}])
    assert allows([out, into], WEB, DB, Port(5432))
    assert not allows([out, into], WEB, DB, Port(8080))
    assert not allows([out, into], WEB, SPY, Port(5432))


def test_an_operator_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match="'Gt'"):
        matches({"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1"]}]}, {})


# --- laws ---------------------------------------------------------------------------------

words = st.sampled_from(["web", "db", "data"])
keys = st.sampled_from(["app", "tier", "team"])
labels = st.dictionaries(keys, words, max_size=2)
expressions = st.one_of(
    st.builds(
        lambda key, operator, values: {"key": key, "operator": operator, "values": values},
        keys,
        st.sampled_from(["In", "NotIn"]),
        st.lists(words, min_size=1, max_size=2),
    ),
    st.builds(
        lambda key, operator: {"key": key, "operator": operator},
        keys,
        st.sampled_from(["Exists", "DoesNotExist"]),
    ),
)
selectors = st.fixed_dictionaries(
    {}, optional={"matchLabels": labels, "matchExpressions": st.lists(expressions, max_size=2)}
)
blocks = st.sampled_from(
    [
        {"ipBlock": {"cidr": "10.0.0.0/30"}},
        {"ipBlock": {"cidr": "0.0.0.0/0", "except": ["10.0.0.2/32"]}},
    ]
)
ends = st.one_of(
    blocks,
    st.builds(lambda pods: {"podSelector": pods}, selectors),
    st.builds(lambda spaces: {"namespaceSelector": spaces}, selectors),
    st.builds(lambda a, b: {"podSelector": a, "namespaceSelector": b}, selectors, selectors),
)
named_ports = st.one_of(
    st.sampled_from([{"port": "sql"}, {"port": "http"}, {"protocol": "UDP"}]),
    st.builds(
        lambda low, more, protocol: {"port": low, "endPort": low + more, "protocol": protocol},
        st.sampled_from([53, 5432, 8000]),
        st.integers(0, 100),
        st.sampled_from(["TCP", "UDP"]),
    ),
)
some_ends = st.lists(ends, max_size=2)
some_ports = st.lists(named_ports, max_size=2)
into_rules = st.builds(lambda a, b: {"from": a, "ports": b}, some_ends, some_ports)
out_rules = st.builds(lambda a, b: {"to": a, "ports": b}, some_ends, some_ports)
policies = st.builds(
    lambda namespace, selector, kinds, into, out: policy(
        namespace=namespace, selector=selector, policyTypes=kinds, ingress=into, egress=out
    ),
    st.sampled_from(["shop", "other"]),
    selectors,
    st.sampled_from([["Ingress"], ["Egress"], ["Ingress", "Egress"]]),
    st.lists(into_rules, max_size=2),
    st.lists(out_rules, max_size=2),
)
some_policies = st.lists(policies, max_size=4)


def flows(of: list[dict[str, Any]]) -> set[tuple[str, str, Port]]:
    every = itertools.product(PEERS, PEERS, PORTS)
    return {(a.name, b.name, port) for a, b, port in every if allows(of, a, b, port)}


CLOSED = [
    policy(namespace=namespace, policyTypes=["Ingress", "Egress"])
    for namespace in ("shop", "other")
]
"""Every pod is isolated in both directions."""


@given(some_policies, st.randoms())
def test_no_order_matters(some: list[dict[str, Any]], random: Any) -> None:
    mixed = [{**one, "spec": {**one["spec"]}} for one in some]
    random.shuffle(mixed)
    for one in mixed:
        for rules in ("ingress", "egress"):
            one["spec"][rules] = random.sample(one["spec"][rules], len(one["spec"][rules]))
    assert flows(mixed) == flows(some)


@given(some_policies, policies)
def test_where_all_is_denied_a_policy_only_adds(
    some: list[dict[str, Any]], another: dict[str, Any]
) -> None:
    assert flows([*CLOSED, *some]) <= flows([*CLOSED, *some, another])


@given(some_policies, some_policies)
def test_receiving_and_sending_are_unions_once_a_pod_is_isolated(
    some: list[dict[str, Any]], others: list[dict[str, Any]]
) -> None:
    for source, destination, port in itertools.product(PEERS, PEERS, PORTS):
        for way in (sends, receives):
            each = [way([*CLOSED, *part], source, destination, port) for part in (some, others)]
            assert way([*CLOSED, *some, *others], source, destination, port) == any(each)


@given(some_policies, policies)
def test_a_policy_of_a_namespace_without_pods_changes_nothing(
    some: list[dict[str, Any]], another: dict[str, Any]
) -> None:
    elsewhere = {**another, "metadata": {"name": "one", "namespace": "empty"}}
    assert flows([*some, elsewhere]) == flows(some)


@given(some_ends, some_ports)
def test_a_rule_is_the_union_of_its_peers_and_of_its_ports(
    peers: list[dict[str, Any]], ports: list[dict[str, Any]]
) -> None:
    apart = [
        {"from": [peer] if peer else [], "ports": [port] if port else []}
        for peer in peers or [{}]
        for port in ports or [{}]
    ]
    together = [{"from": peers, "ports": ports}]
    assert flows([policy(ingress=apart)]) == flows([policy(ingress=together)])


@given(st.integers(0, 60), st.integers(0, 60), st.integers(0, 130))
def test_a_range_is_its_numbers(low: int, more: int, asked: int) -> None:
    whole = [{"ports": [{"port": low, "endPort": low + more}]}]
    each = [{"ports": [{"port": number} for number in range(low, low + more + 1)]}]
    port = Port(asked)
    said = receives([policy(ingress=whole)], WEB, DB, port)
    assert said == receives([policy(ingress=each)], WEB, DB, port) == (low <= asked <= low + more)


@given(labels, keys, st.lists(words, min_size=1, max_size=3))
def test_what_expressions_say_of_labels(has: dict[str, str], key: str, values: list[str]) -> None:
    def holds(operator: str, **rest: Any) -> bool:
        return matches({"matchExpressions": [{"key": key, "operator": operator, **rest}]}, has)

    assert holds("In", values=values) is (has.get(key) in values)
    assert holds("NotIn", values=values) is not holds("In", values=values)
    assert holds("Exists") is (key in has)
    assert holds("DoesNotExist") is not holds("Exists")
    assert matches({"matchLabels": {key: values[0]}}, has) is holds("In", values=values[:1])


@given(selectors, labels)
def test_a_selector_asks_for_all_that_it_lists(
    selector: dict[str, Any], has: dict[str, str]
) -> None:
    parts: list[dict[str, Any]] = [
        *({"matchLabels": {key: value}} for key, value in selector.get("matchLabels", {}).items()),
        *({"matchExpressions": [one]} for one in selector.get("matchExpressions", [])),
    ]
    assert matches(selector, has) == all(matches(part, has) for part in parts)
