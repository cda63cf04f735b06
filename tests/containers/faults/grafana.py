"""What Grafana asks Prometheus for a dashboard: its variables filled in, over its range of time."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "observability" / "grafana"
FILES = ("market.json", "studies.json")

STEPS_S = (1, 2, 5, 10, 15, 20, 30, 60, 120, 300)
PIXELS = 900
"""Of a panel that is half as wide as a screen."""


@dataclass(frozen=True)
class Query:
    """One query of a panel.

    :ivar legend: what its lines are called, with their labels in it.
    :ivar instant: it is asked of one moment, and not of a range.
    :ivar named: lines that the panel gives a colour by their name.
    """

    dashboard: str
    panel: str
    ref: str
    expr: str
    legend: str
    instant: bool
    named: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.dashboard}: {self.panel} {'now' if self.instant else self.ref}"

    def line(self, labels: Mapping[str, str]) -> str:
        """What the line with these labels is called."""
        return re.sub(r"\{\{(\w+)\}\}", lambda found: labels.get(found[1], ""), self.legend)


def dashboard(file: str) -> dict[str, Any]:
    made: dict[str, Any] = json.loads((FOLDER / "dashboards" / file).read_text())
    return made


def queries() -> list[Query]:
    """Every query of every panel of every dashboard."""
    return [
        Query(
            file.removesuffix(".json"),
            panel["title"],
            target["refId"],
            target["expr"],
            target["legendFormat"],
            bool(target["instant"]),
            tuple(
                override["matcher"]["options"]
                for override in panel["fieldConfig"].get("overrides", ())
                if override["matcher"]["id"] == "byName"
            ),
        )
        for file in FILES
        for panel in dashboard(file)["panels"]
        if panel["type"] != "row"
        for target in panel["targets"]
    ]


# --- variables --------------------------------------------------------------------------


@dataclass(frozen=True)
class Variable:
    """One that is filled from a label: ``label_values(selector, label)``."""

    name: str
    selector: str
    label: str
    of_all: str


def variables(file: str) -> list[Variable]:
    found = []
    for each in dashboard(file)["templating"]["list"]:
        if each["type"] == "query":
            asked = re.fullmatch(r"label_values\((.*), (\w+)\)", each["query"])
            assert asked, each["query"]
            found.append(Variable(each["name"], asked[1], asked[2], each["allValue"]))
    return found


def filled(expr: str, values: Mapping[str, str]) -> str:
    """With a value in the place of each variable; KeyError if it has none."""
    return re.sub(r"\$(\w+)|\$\{(\w+)\}", lambda found: values[found[1] or found[2]], expr)


def escaped(value: str) -> str:
    """A value that was chosen, as it stands in a regular expression within quotes."""
    return re.sub(r"([\\^$*+?.()|\[\]{}])", r"\\\\\1", value)


# --- time -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pace:
    """How far apart the points of a line are, and the variables that say so."""

    step_s: int
    variables: dict[str, str]


def pace(span_s: float) -> Pace:
    """Of a panel that shows so many seconds: a point a pixel, and none between two scrapes."""
    scrape = scrape_s()
    wanted = max(span_s / PIXELS, scrape)
    step = min(STEPS_S, key=lambda each: abs(each - wanted))
    rate = max(step + scrape, 4 * scrape)
    return Pace(step, {"__interval": f"{step}s", "__rate_interval": f"{rate}s"})


def scrape_s() -> int:
    """What the data source says of how often Prometheus scrapes."""
    provisioned = FOLDER / "provisioning" / "datasources" / "prometheus.yaml"
    (source,) = yaml.safe_load(provisioned.read_text())["datasources"]
    interval: str = source["jsonData"]["timeInterval"]
    return int(interval.removesuffix("s"))
