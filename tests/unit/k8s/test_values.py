"""The values, their schema, their page and their use agree, both ways."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from helm_python import lint, package

from entrepot import __version__
from entrepot.settings import Section, Settings
from k8s.build import CHART, Value, everything, values
from k8s.schema import OWNED
from tests.unit.k8s.charts import Refused, render, texts
from tests.unit.k8s.test_render import EVERY, FULL

DOCUMENTED = values()
MADE = everything()
LOADED: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
TEMPLATES = {path.name: path.read_text() for path in (CHART / "templates").rglob("*.*")}


@pytest.mark.parametrize("path", MADE, ids=lambda path: path.name)
def test_what_is_made_of_other_files_is_committed(path: Path) -> None:
    assert path.read_text() == MADE[path], "run `python -m k8s.build`, and commit"


def test_no_dashboard_is_left_over() -> None:
    there = set((CHART / "files" / "dashboards").iterdir())
    assert there == {path for path in MADE if path.parent.name == "dashboards"}


@pytest.mark.parametrize("values", EVERY.values(), ids=EVERY)
def test_helm_has_nothing_against_it(values: dict[str, Any]) -> None:
    said = lint(CHART, values, strict=True)
    assert said["errors"] == []
    # An icon is all that is missed.
    assert [each["error"] for each in said["messages"]] == ["icon is recommended"]


def test_what_is_packed_renders_as_the_folder_does(tmp_path: Path) -> None:
    packed = package(CHART, destination=tmp_path)
    assert Path(packed).name == "entrepot-0.1.0.tgz"
    assert render(FULL, chart=Path(packed)) == render(FULL)


def test_the_application_is_of_this_version() -> None:
    assert yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"] == __version__


# --- documented, in the schema, and used -----------------------------------------------------


def leaves(loaded: Any, documented: set[str], path: str = "") -> Iterator[str]:
    """Paths down to what is documented, or to what is no mapping."""
    if path in documented or not isinstance(loaded, dict):
        yield path
        return
    for key, value in loaded.items():
        yield from leaves(value, documented, f"{path}.{key}".lstrip("."))


def in_schema(schema: dict[str, Any], documented: set[str], path: str = "") -> Iterator[str]:
    if path in documented or "properties" not in schema:
        yield path
        return
    for key, value in schema["properties"].items():
        yield from in_schema(value, documented, f"{path}.{key}".lstrip("."))


def test_every_value_is_documented_and_every_sentence_ends() -> None:
    paths = {value.path for value in DOCUMENTED}
    assert set(leaves(LOADED, paths)) == paths
    for value in DOCUMENTED:
        assert value.said[0].isupper() or value.said[0] == "`", value
        assert value.said.endswith("."), value


def test_every_value_is_in_the_schema_and_the_other_way_round() -> None:
    paths = {value.path for value in DOCUMENTED}
    assert set(in_schema(SCHEMA, paths)) == paths | {"global", "enabled"}


@pytest.mark.parametrize(
    ("items", "defaults"), [("suppliers", "supplierDefaults"), ("clients", "clientDefaults")]
)
def test_what_an_item_may_say_has_a_default_and_the_other_way_round(
    items: str, defaults: str
) -> None:
    item = SCHEMA["properties"][items]["items"]["properties"].keys()
    assert item == {"name"} | SCHEMA["properties"][defaults]["properties"].keys()
    assert item == {"name"} | LOADED[defaults].keys()


def things(schema: Any) -> Iterator[dict[str, Any]]:
    """Every schema of an object with properties."""
    if isinstance(schema, dict):
        if "properties" in schema:
            yield schema
        for each in schema.values():
            yield from things(each)


def test_the_schema_takes_nothing_that_it_does_not_name() -> None:
    found = list(things(SCHEMA))
    assert len(found) > 50
    assert all(each["additionalProperties"] is False for each in found)


@pytest.mark.parametrize(
    ("path", "section"),
    [
        ("broker", "broker"),
        ("sidecar", "sidecar"),
        ("store", "store"),
        ("supplierDefaults", "supplier"),
        ("clientDefaults", "client"),
    ],
)
def test_settings_are_those_that_there_are_but_for_the_charts_own(path: str, section: str) -> None:
    known: type[Section] = type(getattr(Settings(), section))
    found = SCHEMA["properties"][path]["properties"]["settings"]["properties"]
    assert found.keys() == known.model_fields.keys() - OWNED[known]
    assert known.model_fields.keys() >= OWNED[known]


def test_templates_ask_for_no_value_that_there_is_not() -> None:
    asked = {
        found for text in TEMPLATES.values() for found in re.findall(r"\.Values((?:\.\w+)+)", text)
    }
    assert len(asked) > 30
    for path in asked:
        at: Any = LOADED
        for key in path.lstrip(".").split("."):
            assert key in at, path
            at = at[key]


LISTS = {
    "dns.peers": [{"ipBlock": {"cidr": "192.0.2.1/32"}}],
    "dns.ports": [54],
    "prometheus": [{"ipBlock": {"cidr": "192.0.2.1/32"}}],
    "sidecarNamespaces": ["else"],
    "storePeers": [{"ipBlock": {"cidr": "192.0.2.1/32"}}],
    "command": ["else"],
    "products": ["else"],
    "mediums": ["file"],
    "pullSecrets": ["else"],
    "topologySpread": [{"maxSkew": 2, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}],
    "volumes": [{"name": "else", "emptyDir": {}}],
    "volumeMounts": [{"name": "tmp", "mountPath": "/else"}],
    "env": [{"name": "ELSE", "value": "1"}],
    "tolerations": [{"operator": "Exists"}],
    "egress": [{"ports": [{"port": 1}]}],
}
WORDS = {
    "store.kind": "minio",
    "autoscaling.kind": "hpa",
    "clientDefaults.kind": "Deployment",
    "medium": "file",
    "pullPolicy": "Never",
    "type": "NodePort",
    "size": "3Gi",
    "shm": "48Mi",
    "tmp": "48Mi",
    "mountPath": "/else",
    "interval": "7s",
    "scrapeTimeout": "3s",
    "endpoint": "https://else",
    "prometheusUrl": "https://else",
    "value": "else-and-else-and-else",
    "keys.secret": "else-and-else",
}


def otherwise(value: Value) -> Any:
    """Another value of the same kind."""
    default = value.default
    table = LISTS if isinstance(default, list) else WORDS
    for path, other in table.items():
        if value.path == path or value.path.endswith(f".{path}"):
            return other
    if isinstance(default, bool):
        return not default
    if isinstance(default, int) or default is None:
        return (default or 0) + 2
    if isinstance(default, str):
        return "else"
    if value.path.endswith(".resources"):
        return {"limits": {"memory": "7Gi"}}
    if value.path.endswith(".settings"):
        section = SCHEMA["properties"][value.path.split(".")[0]]
        name = "attempts" if value.path == "store.settings" else "silence_s"
        known = section["properties"]["settings"]["properties"]
        return {name if name in known else next(iter(known)): 7}
    if value.path.endswith("lifecycle"):
        return {"preStop": {"exec": {"command": ["true"]}}}
    if value.path == "clientDefaults.suppliers":
        return [{"name": "else", "command": ["x"]}]
    return {"else": "else"}


def placed(path: str, value: Any) -> dict[str, Any]:
    """The value under its path."""
    for key in reversed(path.split(".")):
        value = {key: value}
    found: dict[str, Any] = value
    return found


def over(below: Any, above: Any) -> Any:
    if not isinstance(below, dict) or not isinstance(above, dict):
        return above
    return {key: over(below.get(key), above.get(key, below.get(key))) for key in below | above}


NONE: dict[str, Any] = {"store": {"kind": "none"}, "test": {"product": "p", "stage": ""}}
RUN = {"name": "x", "command": ["x"]}
SERVED = {"name": "x", "serve": "m:f", "products": ["p"]}
WATCHED = {each: {"enabled": True} for each in ("serviceMonitor", "rules", "dashboards")}
BASES: list[dict[str, Any]] = [
    {
        "monitoring": WATCHED,
        "sharedVolume": {"enabled": True},
        "supplierDefaults": {"mediums": ["tcp", "file"]},
    },
    {
        "monitoring": WATCHED,
        "sharedVolume": {"enabled": True},
        "test": {"stage": "", "product": "p"},
        "store": {"kind": "s3", "existingSecret": "bucket"},
        "suppliers": [RUN],
        "supplierDefaults": {"mediums": ["file"]},
        "clients": [{**RUN, "medium": "file"}],
    },
    {
        **NONE,
        "suppliers": [SERVED],
        "supplierDefaults": {"autoscaling": {"enabled": True}},
        "clients": [{"name": "c", "command": ["x"], "store": False}],
        "sidecar": {"token": {"existingSecret": "t"}},
    },
    {"suppliers": [{"name": "s"}], "supplierDefaults": {"command": ["x"]}},
    {"suppliers": [{"name": "s"}], "supplierDefaults": {"serve": "m:f", "products": ["p"]}},
    {"clients": [{"name": "c"}], "clientDefaults": {"command": ["x"]}},
    {
        "clients": [{**RUN, "medium": "shm", "shm": "128Mi"}],
        "clientDefaults": {"suppliers": [RUN]},
    },
    {"serviceAccount": {"create": False}, "suppliers": [RUN]},
    {**NONE, "test": {"stage": "", "product": "q"}, "clients": []},
]
"""Values of which one at least shows what a value does."""


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The chart without its schema, which takes as long as all the rest."""
    folder = tmp_path_factory.mktemp("bare") / "entrepot"
    shutil.copytree(CHART, folder, ignore=shutil.ignore_patterns("values.schema.json"))
    return folder


@pytest.fixture(scope="module")
def before(bare: Path) -> list[dict[str, str]]:
    return [texts(base, chart=bare) for base in BASES]


@pytest.mark.parametrize("section", sorted(LOADED.keys() - {"suppliers", "clients"}))
def test_every_value_changes_what_is_rendered(
    section: str, bare: Path, before: list[dict[str, str]]
) -> None:
    mine = [each for each in DOCUMENTED if each.path.split(".")[0] == section]
    assert [each.path for each in mine if not changes(each, bare, before)] == []


def changes(value: Value, bare: Path, before: list[dict[str, str]]) -> bool:
    """Whether another value shows in what one of the bases renders to."""
    other = placed(value.path, otherwise(value))
    for base, rendered in zip(BASES, before, strict=True):
        try:
            if texts(over(base, other), chart=bare) != rendered:
                return True
        except Refused:
            continue  # it does not go together with that one
    return False


def test_nothing_that_is_null_is_answered_with_a_trace(bare: Path) -> None:
    paths = {value.path for value in DOCUMENTED if value.default and value.default is not True}
    for path in list(paths):
        keys = path.split(".")
        paths |= {".".join(keys[:depth]) for depth in range(1, len(keys))}
    assert len(paths) > 80
    answers = {path: answer(placed(path, None), bare) for path in sorted(paths)}
    refused = {path: said for path, said in answers.items() if said}
    assert len(refused) > 40
    for path, said in refused.items():
        assert "the values cannot be:\n- " in said, path
        assert "executing" not in said, path


def answer(values: dict[str, Any], chart: Path) -> str:
    """What whoever installs it reads, if the values are refused."""
    try:
        texts(values, chart=chart)
    except Refused as told:
        return str(told)
    return ""


def test_values_of_an_earlier_chart_render() -> None:
    # Of 0.1.0: there is none before it yet.
    for path in sorted(Path(__file__).parent.glob("full-*.yaml")):
        objects = render(yaml.safe_load(path.read_text()), upgrade=True)
        kinds = {each["kind"] for each in objects}
        assert kinds >= {"Deployment", "Job", "StatefulSet", "NetworkPolicy", "ScaledObject"}
