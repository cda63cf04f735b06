"""Renders the chart with Helm's own engine, in this process; no cluster and no program is asked."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from helm_python import Chart, _native
from helm_python.errors import HelmError

ROOT = Path(__file__).parents[3]
CHART = ROOT / "k8s" / "entrepot"
EXAMPLES = CHART / "examples"

KUBE_VERSION = "v1.31.0"
"""Of the cluster that is rendered for, where a test does not say another."""

Manifest = dict[str, Any]


class Refused(Exception):
    """The chart did not take the values; the text is what whoever installs it reads."""


def render(
    values: Mapping[str, object] | None = None,
    release: str = "entrepot",
    namespace: str = "default",
    kube_version: str = KUBE_VERSION,
    *,
    chart: Path = CHART,
    upgrade: bool = False,
) -> list[Manifest]:
    """The objects that an installation with ``values`` consists of, those of ``helm test`` too.

    :raises Refused: the schema or a template refuses the values.
    """
    found = texts(values, release, namespace, kube_version, chart=chart, upgrade=upgrade)
    return [
        each
        for name, text in sorted(found.items())
        if name.endswith(".yaml")
        for each in yaml.load_all(text, yaml.CSafeLoader)
        if each
    ]


def texts(
    values: Mapping[str, object] | None = None,
    release: str = "entrepot",
    namespace: str = "default",
    kube_version: str = KUBE_VERSION,
    *,
    chart: Path = CHART,
    upgrade: bool = False,
) -> dict[str, str]:
    """What each template makes, by its path; ``NOTES.txt`` is one of them."""
    options = {
        "name": release,
        "namespace": namespace,
        "kube_version": kube_version,
        "is_install": not upgrade,
        "is_upgrade": upgrade,
    }
    return dict(_rendered(chart, json.dumps(values or {}), json.dumps(options)))


@cache
def _rendered(chart: Path, values: str, options: str) -> dict[str, str]:
    try:
        # Chart.render has no word for the cluster's version.
        said = _native.call_string("helm_render", _opened(chart)._raw(), values, options)
    except HelmError as fault:
        raise Refused(str(fault)) from fault
    made: dict[str, str] = json.loads(said)
    return made


def example(name: str) -> dict[str, Any]:
    """The values of an example, such as ``production``."""
    loaded: dict[str, Any] = yaml.load((EXAMPLES / f"{name}.yaml").read_text(), yaml.CSafeLoader)
    return loaded


def of_kind(objects: Iterable[Manifest], kind: str, part: str = "") -> list[Manifest]:
    """Those of a kind whose name ends in ``part``."""
    return [
        each for each in objects if each["kind"] == kind and each["metadata"]["name"].endswith(part)
    ]


def one(objects: Iterable[Manifest], kind: str, part: str = "") -> Manifest:
    """The only one of a kind whose name ends in ``part``."""
    found = of_kind(objects, kind, part)
    assert len(found) == 1, (kind, part, [each["metadata"]["name"] for each in found])
    return found[0]


def pods(objects: Iterable[Manifest]) -> dict[str, Manifest]:
    """Pod templates and pods (``metadata`` and ``spec``), by the name of what makes them."""
    found: dict[str, Manifest] = {}
    for each in objects:
        if each["kind"] == "Pod":
            found[each["metadata"]["name"]] = each
        elif "template" in each.get("spec", {}):
            found[each["metadata"]["name"]] = each["spec"]["template"]
    return found


def containers(pod: Manifest) -> list[Manifest]:
    """All containers of a pod, those that run before it too."""
    spec = pod["spec"]
    return [*spec.get("initContainers", []), *spec["containers"]]


@cache
def _opened(chart: Path) -> Chart:
    return Chart.load(chart)
