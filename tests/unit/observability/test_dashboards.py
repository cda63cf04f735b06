"""Dashboards and alerts: they ask for what the sidecar tells, and say what they show."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from entrepot.sidecar.metrics import SUPPLIER_STATES, TRIAL_STATES, registry_of
from entrepot.sidecar.studies import StoreWatch
from entrepot.store.memory import MemoryStore
from entrepot.study import report, take
from observability.grafana.build import everything
from observability.grafana.market import SUPPLIER_STATES as SUPPLIER_COLORS
from observability.grafana.studies import TRIAL_STATES as TRIAL_COLORS
from tests.unit.sidecar.figures import NOW, figures, product, watch

ROOT = Path(__file__).parents[3]
GRAFANA = ROOT / "observability" / "grafana"
FILES = ("market.json", "studies.json")

WORDS = {
    *("sum", "min", "max", "rate", "increase", "deriv", "histogram_quantile"),
    *("by", "on", "and", "or"),
}
"""All of PromQL that is used."""

OF_PROMETHEUS = {"job", "instance", "namespace"}
"""Labels that are of the target, so the sidecar does not tell them."""

Samples = dict[str, list[dict[str, str]]]


# --- what the sidecar tells ---------------------------------------------------------------


@pytest.fixture(scope="module")
def told() -> Samples:
    """The labels of each series of a sidecar that saw something of everything."""
    said = figures()
    said["products"] = [product("sms/tokens/batch-1", 5, 1)]
    said["classes"] = [{"patterns": ["sms/.*"], "queued": 5, "in_flight": 1, "suppliers": 1}]
    said["refused"], said["dropped"] = {"bad_frame": 1}, {"silent": 1}
    store = MemoryStore()
    for trial, state in enumerate(("done", "running")):
        assert take(store, "lr=1.0", study="spam", trial=trial, me="gpu-7", goal="min")
        if state == "done":
            report(store, "lr=1.0", [0.5], study="spam", trial=trial, me="gpu-7", state=state)
    studies = StoreWatch(store.view, every_s=5.0, stale_s=60.0, most=10, clock=lambda: NOW)
    studies.look()
    studies.seen = replace(studies.seen, skipped={"torn": 1})
    registry = registry_of(
        watch(said), studies, max_products=20, max_studies=100, clock=lambda: NOW
    )
    made: Samples = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            made.setdefault(sample.name, []).append(dict(sample.labels))
    return made


# --- what is asked for --------------------------------------------------------------------


def dashboard(name: str) -> dict[str, Any]:
    made: dict[str, Any] = json.loads((GRAFANA / "dashboards" / name).read_text())
    return made


def panels(name: str) -> list[dict[str, Any]]:
    return [each for each in dashboard(name)["panels"] if each["type"] != "row"]


PANELS = [
    pytest.param(panel, id=f"{name[:-5]}: {panel['title']} ({panel['type']})")
    for name in FILES
    for panel in panels(name)
]


def rules() -> list[dict[str, Any]]:
    said = yaml.safe_load((ROOT / "observability" / "prometheus" / "rules.yml").read_text())
    return [rule for group in said["groups"] for rule in group["rules"]]


RULES = [pytest.param(rule, id=rule["alert"]) for rule in rules()]

SELECTOR = re.compile(r"([A-Za-z_:][\w:]*)\s*(?:\{([^}]*)\})?")
GROUPING = re.compile(r"\b(by|on)\s*\(([^)]*)\)")


def grouped(expr: str, *words: str) -> set[str]:
    """The labels that stand behind `by` or `on`."""
    found = [labels for word, labels in GROUPING.findall(expr) if word in words]
    return {label.strip() for labels in found for label in labels.split(",")}


def selectors(expr: str) -> Iterator[tuple[str, list[tuple[str, str, str]]]]:
    """Each metric that is asked for, with its matchers."""
    bare = re.sub(r"\[[^]]*\]|\boffset \w+", "", GROUPING.sub("", expr))
    for name, matchers in SELECTOR.findall(bare):
        if name not in WORDS:
            yield name, re.findall(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"', matchers)


def matches(labels: dict[str, str], label: str, how: str, value: str) -> bool:
    if label in OF_PROMETHEUS or value.startswith("$"):
        return True
    same = re.fullmatch(value, labels[label]) if "~" in how else labels[label] == value
    return bool(same) == (how[0] == "=")


def check(expr: str, told: Samples) -> set[str]:
    """The labels that its metrics have. Fails if it asks for what nobody tells."""
    labels: set[str] = set()
    found = list(selectors(expr))
    assert found, f"{expr} asks for no metric"
    for name, matchers in found:
        assert name in told, f"no metric {name}"
        series = told[name]
        labels.update(*series)
        assert {label for label, _, _ in matchers} <= {*series[0], *OF_PROMETHEUS}, name
        assert any(all(matches(each, *one) for one in matchers) for each in series), expr
    assert grouped(expr, "by", "on") <= labels | OF_PROMETHEUS, expr
    return labels


@pytest.mark.parametrize("panel", PANELS)
def test_a_panel_asks_for_what_is_told(panel: dict[str, Any], told: Samples) -> None:
    assert panel["targets"]
    for target in panel["targets"]:
        expr = target["expr"]
        labels = check(expr, told)
        assert "vector(" not in expr
        named = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        if re.search(r"\b(sum|min|max)\b", expr):
            # Only so can its lines be told apart.
            assert named == grouped(expr, "by") - {"le"}
        else:
            assert named <= labels


@pytest.mark.parametrize("rule", RULES)
def test_an_alert_asks_for_what_is_told(rule: dict[str, Any], told: Samples) -> None:
    check(rule["expr"], told | {"up": [{}]})
    assert "vector(" not in rule["expr"]


@pytest.mark.parametrize(
    "wrong",
    [
        "entrepot_orders_lost",
        "sum by (products) (entrepot_orders_queued)",
        'entrepot_orders_queued{state="x"}',
        'entrepot_orders_total{outcome="lost"}',
        "orders_queued / entrepot_orders_queued",
        "1 > 0",
    ],
)
def test_the_check_finds_what_is_not_told(wrong: str, told: Samples) -> None:
    with pytest.raises(AssertionError):
        check(wrong, told)


# --- what they say ------------------------------------------------------------------------


@pytest.mark.parametrize("panel", PANELS)
def test_a_panel_has_a_unit_a_description_and_thresholds(panel: dict[str, Any]) -> None:
    assert panel["description"].endswith(".")
    defaults = panel["fieldConfig"]["defaults"]
    assert defaults["unit"]
    first, *others = [step["value"] for step in defaults["thresholds"]["steps"]]
    assert first is None
    assert others == sorted(others)
    alerts = {rule["alert"] for rule in rules()}
    for alert in re.findall(r"Alert: (\w+)\.$", panel["description"]):
        assert alert in alerts
        assert others, f"{alert} has a threshold, and the panel has none"


@pytest.mark.parametrize(
    ("title", "alert"),
    [
        ("Queued", "QueueGrowing"),
        ("Queue depth by product", "QueueGrowing"),
        ("Oldest order", "OldestOrderTooOld"),
        ("Failed", "OrdersFailing"),
        ("Silent for", "StudyStalled"),
        ("Silence of studies at work", "StudyStalled"),
        ("Errors of the store", "StoreErrors"),
    ],
)
def test_a_threshold_is_the_alerts(title: str, alert: str) -> None:
    (rule,) = [each for each in rules() if each["alert"] == alert]
    found = [each for name in FILES for each in panels(name) if each["title"] == title]
    assert found
    for panel in found:
        last = panel["fieldConfig"]["defaults"]["thresholds"]["steps"][-1]["value"]
        assert f" > {last}" in rule["expr"]


def test_every_state_has_a_color() -> None:
    assert tuple(SUPPLIER_COLORS) == SUPPLIER_STATES
    assert set(TRIAL_COLORS) == set(TRIAL_STATES)


# --- the files ----------------------------------------------------------------------------


def test_what_is_committed_is_what_is_built() -> None:
    folder = GRAFANA / "dashboards"
    committed = {path.name: path.read_text() for path in folder.glob("*.json")}
    assert committed == everything(), "run: python -m observability.grafana.build"


@pytest.mark.parametrize("name", FILES)
def test_a_dashboard_can_be_moved_to_any_grafana(name: str, told: Samples) -> None:
    made = dashboard(name)
    source, *filled = made["templating"]["list"]
    assert (source["type"], source["query"]) == ("datasource", "prometheus")
    wanted = ["namespace", "instance"] + ["study"] * (name == "studies.json")
    assert [each["name"] for each in filled] == wanted
    for each in filled:
        # Compose has no namespace: `.*` matches where there is no label.
        assert each["allValue"] == ".*"
        asked = re.fullmatch(r"label_values\((.*), (\w+)\)", each["query"])
        assert asked
        assert asked[2] in check(asked[1], told) | OF_PROMETHEUS
    uids = {each["datasource"]["uid"] for each in [*panels(name), *filled]}
    uids |= {target["datasource"]["uid"] for each in panels(name) for target in each["targets"]}
    assert uids == {"${datasource}"}


@pytest.mark.parametrize("name", FILES)
def test_panels_stand_side_by_side(name: str) -> None:
    placed = dashboard(name)["panels"]
    assert len({each["id"] for each in placed}) == len(placed)
    taken: set[tuple[int, int]] = set()
    for each in placed:
        at = each["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not taken & cells, each["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells


def test_compose_shows_them_to_read_alone() -> None:
    volumes = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["grafana"][
        "volumes"
    ]
    assert "./observability/grafana/dashboards:/etc/entrepot/dashboards:ro" in volumes
    provisioned = GRAFANA / "provisioning" / "dashboards" / "entrepot.yaml"
    (provider,) = yaml.safe_load(provisioned.read_text())["providers"]
    assert provider["options"]["path"] == "/etc/entrepot/dashboards"
    assert provider["allowUiUpdates"] is False
    assert [dashboard(name)["editable"] for name in FILES] == [False, False]
