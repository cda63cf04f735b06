"""Writes what the chart has of other files: ``python -m k8s.build``.

- ``values.schema.json``, of :mod:`k8s.schema` and the comments of ``values.yaml``;
- ``README.md``, a table of the values, of the same comments;
- ``files/``, the dashboards and rules of ``observability/``: Helm reads nothing outside the chart.

All of it is committed, and a test asserts that it is what this makes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from k8s.schema import Schema, whole_schema

ROOT = Path(__file__).parents[1]
CHART = ROOT / "k8s" / "entrepot"

COMMENT = re.compile(r"^(?P<indent> *)# -- (?P<said>.*)$")
KEY = re.compile(r"^(?P<indent> *)(?P<key>[A-Za-z0-9]+):")


class Value(NamedTuple):
    """A value of ``values.yaml`` that is documented."""

    path: str
    default: Any
    said: str


def values() -> list[Value]:
    """Every value with a comment, in the file's order.

    :raises ValueError: a comment stands before no key.
    """
    source = (CHART / "values.yaml").read_text()
    loaded = yaml.safe_load(source)
    return [
        Value(".".join(path), _at(loaded, path), said)
        for path, said in _documented(source.splitlines())
    ]


def _documented(lines: list[str]) -> Iterator[tuple[list[str], str]]:
    above: list[tuple[int, str]] = []
    said = ""
    for line in lines:
        if comment := COMMENT.match(line):
            if said:
                raise ValueError(f"no key stands behind the comment {said!r}")
            said = comment["said"]
        elif key := KEY.match(line):
            indent = len(key["indent"])
            above = [(depth, name) for depth, name in above if depth < indent]
            above.append((indent, key["key"]))
            if said:
                yield [name for _, name in above], said
                said = ""


def _at(loaded: Any, path: list[str]) -> Any:
    for key in path:
        loaded = loaded[key]
    return loaded


def readme() -> str:
    """The page of the values."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    lines = [
        f"# Values of the chart `{chart['name']}` {chart['version']}",
        "",
        "<!-- Made by `python -m k8s.build`, of the comments in values.yaml; a test compares. -->",
        "",
        f"{chart['description']}. How to install it, and what to do when something is wrong: "
        "[k8s/README.md](../README.md).",
        "",
        "Kubernetes 1.29 or newer. A value that is none of these, or of a wrong kind, is refused "
        "before anything is installed.",
        "",
        "| value | default | meaning |",
        "| --- | --- | --- |",
    ]
    for value in values():
        default = _cell(json.dumps(value.default, ensure_ascii=False))
        lines.append(f"| `{value.path}` | `{default}` | {_cell(value.said)} |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", r"\|")


def schema() -> str:
    """The schema, with what the comments say."""
    made = whole_schema()
    for value in values():
        _describe(made, value.path.split("."), value.said)
    for items, defaults in (("suppliers", "supplierDefaults"), ("clients", "clientDefaults")):
        known = made["properties"][defaults]["properties"]
        for name, each in made["properties"][items]["items"]["properties"].items():
            if name in known and "description" in known[name]:
                each["description"] = known[name]["description"]
    return json.dumps(made, indent=1, ensure_ascii=False) + "\n"


def _describe(made: Schema, path: list[str], said: str) -> None:
    """Puts the sentence where the path leads; what is shared is copied on the way."""
    for key in path:
        properties = made["properties"] = dict(made["properties"])
        made = properties[key] = dict(properties[key])
    made["description"] = said


def everything() -> dict[Path, str]:
    """The files, by path."""
    boards = ROOT / "observability" / "grafana" / "dashboards"
    return {
        CHART / "values.schema.json": schema(),
        CHART / "README.md": readme(),
        CHART / "files" / "rules.yml": (
            ROOT / "observability" / "prometheus" / "rules.yml"
        ).read_text(),
        **{
            CHART / "files" / "dashboards" / board.name: board.read_text()
            for board in sorted(boards.glob("*.json"))
        },
    }


if __name__ == "__main__":
    for path, said in everything().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(said, encoding="utf-8")
