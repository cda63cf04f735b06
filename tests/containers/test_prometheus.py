"""Prometheus, as it is configured here: rules and metrics by promtool, and what panels show.

Both are of Debian's package. Panels are asked of the stack's own Prometheus, which scraped it under
load and through faults; see faults/course.py.
"""

from __future__ import annotations

import math
import re
import subprocess

import pytest
import yaml

from tests.containers.faults import grafana
from tests.containers.faults.course import FACTOR, RULES, Course, Series, rules
from tests.containers.faults.shortened import shortened
from tests.containers.stack import ROOT

pytestmark = pytest.mark.timeout(600)

IMAGE = "local/entrepot-prometheus"


def promtool(*arguments: str, said: str = "") -> subprocess.CompletedProcess[str]:
    """What promtool has to say, of a file in its folder or of what is said to it."""
    run = ["docker", "run", "--rm", "--interactive", "--entrypoint", "promtool"]
    mounted = f"{RULES.parent}:/etc/entrepot:ro"
    return subprocess.run(
        [*run, "--volume", mounted, IMAGE, *arguments],
        input=said,
        capture_output=True,
        text=True,
        check=False,
    )


# --- promtool ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "config", "/etc/entrepot/prometheus.yml"),
        ("check", "rules", "/etc/entrepot/rules.yml"),
        ("test", "rules", "/etc/entrepot/rules-test.yml"),
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
def test_promtool_finds_no_fault(arguments: tuple[str, ...]) -> None:
    done = promtool(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SUCCESS" in done.stdout + done.stderr


def test_promtool_finds_no_fault_in_the_rules_that_are_shortened() -> None:
    done = promtool("check", "rules", "/dev/stdin", said=shortened(RULES.read_text(), FACTOR))
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_finds_no_fault_in_what_the_sidecar_tells(course: Course) -> None:
    assert 'study="steady"' in course.metrics
    done = promtool("check", "metrics", said=course.metrics)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_promtool_would_find_a_fault_in_metrics() -> None:
    done = promtool("check", "metrics", said="# TYPE orders counter\norders 1\n")
    assert done.returncode != 0
    assert "orders" in done.stderr


def test_every_alert_fires_and_stops_in_a_test_and_has_its_paragraph() -> None:
    tested: dict[str, set[bool]] = {}
    for test in yaml.safe_load(RULES.with_name("rules-test.yml").read_text())["tests"]:
        for each in test["alert_rule_test"]:
            tested.setdefault(each["alertname"], set()).add(bool(each["exp_alerts"]))
    runbook = (ROOT / "docs" / "runbook.md").read_text()
    headings = {line.lower() for line in re.findall(r"^## (\w+)$", runbook, re.M)}
    for alert in rules():
        name = str(alert["alert"])
        assert tested[name] == {True, False}, name
        assert alert["annotations"]["runbook_url"] == f"docs/runbook.md#{name.lower()}"
        assert name.lower() in headings


# --- panels -----------------------------------------------------------------------------

QUERIES = grafana.queries()
ZERO_IS_WELL = {"studies: Without series now"}
"""There are fewer than a hundred studies."""


@pytest.mark.parametrize("query", QUERIES, ids=str)
def test_a_panel_shows_something(course: Course, query: grafana.Query) -> None:
    """With all, and with the one instance or study chosen, as with any."""
    shown = course.shown[str(query)]
    choices = ["all", "instance=sidecar:9555"]
    assert list(shown) == choices + ["study=steady"] * (query.dashboard == "studies")
    for choice, answer in shown.items():
        values = [value for series in answer for _, value in series.points]
        assert any(math.isfinite(value) for value in values), choice
    if str(query) not in ZERO_IS_WELL:
        assert max(highest(series) for series in shown["all"]) > 0
    # Also in the end, when all is well.
    assert any(math.isfinite(series.points[-1][1]) for series in shown["all"])


@pytest.mark.parametrize("query", [each for each in QUERIES if each.named], ids=str)
def test_what_has_a_color_has_a_line(course: Course, query: grafana.Query) -> None:
    panel = [each for each in QUERIES if (each.dashboard, each.panel) == at(query)]
    lines = {
        each.line(series.labels)
        for each in panel
        for series in course.shown[str(each)]["all"]
        if highest(series) > 0
    }
    assert lines >= set(query.named)


def at(query: grafana.Query) -> tuple[str, str]:
    return query.dashboard, query.panel


def highest(series: Series) -> float:
    return max((value for _, value in series.points if math.isfinite(value)), default=0.0)


def test_no_two_queries_share_a_name() -> None:
    assert len({str(query) for query in QUERIES}) == len(QUERIES)


@pytest.mark.parametrize(
    ("variable", "found"),
    [("instance", ["sidecar:9555"]), ("study", ["killed", "odd", "paused", "steady"])],
)
def test_a_variable_is_filled(course: Course, variable: str, found: list[str]) -> None:
    filled = {file: found for (file, name), found in course.filled.items() if name == variable}
    assert filled
    assert all(each == found for each in filled.values()), filled


def test_the_data_source_knows_how_often_prometheus_scrapes() -> None:
    config = yaml.safe_load(RULES.with_name("prometheus.yml").read_text())
    assert config["global"]["scrape_interval"] == f"{grafana.scrape_s()}s"
