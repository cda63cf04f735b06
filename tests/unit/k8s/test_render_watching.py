"""What the chart gives Prometheus, Grafana and autoscalers."""

from __future__ import annotations

import json

import yaml

from tests.unit.k8s.charts import ROOT, of_kind, one, render
from tests.unit.k8s.test_render import FULL
from tests.unit.k8s.test_render_parts import identity

# --- watching ---------------------------------------------------------------------------


def test_nothing_of_others_is_asked_of_a_cluster_that_may_not_have_it() -> None:
    for each in render():
        assert "." not in each["apiVersion"].split("/")[0] or each["apiVersion"].split("/")[
            0
        ].endswith(".k8s.io"), identity(each)


def test_rules_and_dashboards_are_those_of_observability() -> None:
    values = {"monitoring": {each: {"enabled": True} for each in ("rules", "dashboards")}}
    objects = render(values)
    rules = yaml.safe_load((ROOT / "observability" / "prometheus" / "rules.yml").read_text())
    assert one(objects, "PrometheusRule")["spec"] == rules
    boards = (ROOT / "observability" / "grafana" / "dashboards").glob("*.json")
    expected = {f"entrepot-{board.name}": json.loads(board.read_text()) for board in boards}
    found = {
        name: json.loads(text)
        for each in of_kind(objects, "ConfigMap")
        for name, text in each["data"].items()
        if each["metadata"]["labels"]["grafana_dashboard"] == "1"
    }
    assert found == expected
    assert len(found) == 2


def test_a_runbook_may_be_elsewhere() -> None:
    rule = one(render(FULL), "PrometheusRule", "-alerts")
    links = [
        each["annotations"]["runbook_url"]
        for group in rule["spec"]["groups"]
        for each in group["rules"]
    ]
    assert "https://docs.example.com/runbook#brokerdown" in links
    assert all(link.startswith("https://docs.example.com/runbook#") for link in links)


def test_the_sidecar_is_scraped_as_the_job_that_alerts_name() -> None:
    objects = render({"monitoring": {"serviceMonitor": {"enabled": True}}})
    monitor = one(objects, "ServiceMonitor")["spec"]
    services = [
        each["metadata"]["name"]
        for each in of_kind(objects, "Service")
        if monitor["selector"]["matchLabels"].items() <= each["metadata"]["labels"].items()
    ]
    assert services == ["entrepot-sidecar"]
    assert {"targetLabel": "job", "replacement": "entrepot"} in monitor["endpoints"][0][
        "relabelings"
    ]
    assert monitor["endpoints"][0]["port"] == "http"


# --- scaling ----------------------------------------------------------------------------

OURS = 'namespace="default", service="market-sidecar"'


def test_hpa_scales_by_what_is_queued_and_in_flight() -> None:
    objects = render(FULL)
    scaler = one(objects, "HorizontalPodAutoscaler")["spec"]
    assert scaler["scaleTargetRef"]["name"] == "market-supplier-by-hpa"
    assert (scaler["minReplicas"], scaler["maxReplicas"]) == (2, 5)
    (metric,) = scaler["metrics"]
    chosen = metric["external"]["metric"]["selector"]["matchLabels"]
    assert metric["external"]["target"] == {"type": "AverageValue", "averageValue": "4"}
    # What the adapter is asked for is what this rule records.
    (group,) = one(objects, "PrometheusRule", "backlog")["spec"]["groups"]
    (rule,) = group["rules"]
    assert rule["record"] == metric["external"]["metric"]["name"] == "entrepot_supplier_backlog"
    assert chosen == {"release": "entrepot", "supplier": "by-hpa"}
    assert rule["labels"] == {**chosen, "namespace": "default"}  # where the adapter looks
    assert rule["expr"] == rf'sum(entrepot_backlog{{{OURS}, supplier_class="hpa/\\d+"}})'


def test_keda_scales_by_the_same_and_brings_one_back_for_what_nobody_serves() -> None:
    scaler = one(render(FULL), "ScaledObject")["spec"]
    assert scaler["scaleTargetRef"] == {"name": "market-supplier-by-keda"}
    assert (scaler["minReplicaCount"], scaler["maxReplicaCount"]) == (0, 5)
    backlog, unservable = (each["metadata"] for each in scaler["triggers"])
    assert backlog["query"] == rf'sum(entrepot_backlog{{{OURS}, supplier_class="keda/\\d+"}})'
    assert backlog["threshold"] == "8"
    assert unservable["query"] == f"max(entrepot_orders_unservable{{{OURS}}})"


def test_what_is_scaled_has_no_number_of_replicas_that_an_upgrade_would_put_back() -> None:
    replicas = {
        each["metadata"]["name"].removeprefix("market-supplier-"): each["spec"].get("replicas")
        for each in of_kind(render(FULL), "Deployment")
        if "-supplier-" in each["metadata"]["name"]
    }
    assert replicas == {"plain": 1, "served": 3, "single": 1, "by-hpa": None, "by-keda": None}
