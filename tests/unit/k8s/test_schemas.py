"""Every manifest against what Kubernetes itself takes, from 1.29 to 1.37, field by field.

kubernetes-validate brings the schemas, in the strict form: a field that there is not is refused.
An API server drops it without a word, and what it was to do is not done.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Any

import kubernetes_validate
import pytest
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

from tests.unit.k8s.charts import EXAMPLES, example, render
from tests.unit.k8s.custom_kinds import SCHEMAS

VERSIONS = [f"1.{minor}" for minor in range(29, 38)]
VALUES = ("default", "minimal", "production", "gpu", "keda", "filesystem", "shm")

Manifest = dict[str, Any]


@cache
def rendered(values: str, version: str) -> list[Manifest]:
    given = {} if values == "default" else example(values)
    return render(given, kube_version=f"v{version}.0")


def faults(manifest: Manifest, version: str) -> Iterator[str]:
    """What an API server of that version would not take, or would drop."""
    if manifest["kind"] in SCHEMAS:
        validator = _custom(manifest["kind"])
    else:
        validator = _validator(version, manifest["kind"], manifest["apiVersion"])
    for fault in validator.iter_errors(manifest):
        where = "/".join(map(str, fault.path))
        yield f"{manifest['kind']} {manifest['metadata']['name']}: {where}: {fault.message[:300]}"


@cache
def _custom(kind: str) -> Draft202012Validator:
    return Draft202012Validator(SCHEMAS[kind])


@cache
def _validator(version: str, kind: str, api_version: str) -> Draft202012Validator:
    """:raises FileNotFoundError: that version has no such kind."""
    # rbac.authorization.k8s.io/v1 is called rbac-v1 there.
    short = re.sub(r"^([^./]*)(\.[^/]*)?/", r"\1-", api_version)
    schema = _schema(version, f"{kind.lower()}-{short}.json")
    registry = Resource.from_contents(schema) @ _definitions(version)
    return Draft202012Validator(schema, registry=registry)


@cache
def _definitions(version: str) -> Registry[Any]:
    registry: Registry[Any] = Registry()
    return Resource.from_contents(_schema(version, "_definitions.json")) @ registry


def _schema(version: str, name: str) -> Any:
    folder = files(kubernetes_validate) / "kubernetes-json-schema" / f"v{version}.0-local-strict"
    return json.loads((folder / name).read_text())


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("values", VALUES)
def test_kubernetes_takes_every_manifest(values: str, version: str) -> None:
    manifests = rendered(values, version)
    assert {each["kind"] for each in manifests} >= {"Deployment", "Service", "NetworkPolicy"}
    assert [fault for each in manifests for fault in faults(each, version)] == []


def test_the_examples_together_show_each_kind_of_which_there_is_no_schema_of_kubernetes() -> None:
    kinds = {each["kind"] for values in VALUES for each in rendered(values, VERSIONS[0])}
    assert kinds >= set(SCHEMAS)


def test_every_example_is_one_of_those() -> None:
    assert {each.stem for each in EXAMPLES.glob("*.yaml")} == set(VALUES) - {"default"}


# --- what the check itself sees -----------------------------------------------------------

POD: Manifest = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "one"},
    "spec": {"containers": [{"name": "one", "image": "a/b:1"}]},
}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_field_that_there_is_not_and_a_wrong_type_are_seen(version: str) -> None:
    assert list(faults(POD, version)) == []
    wrong = copy.deepcopy(POD)
    wrong["spec"]["containers"][0] |= {"immage": "a/b:1", "args": "--all"}
    said = sorted(faults(wrong, version))
    assert len(said) == 2
    assert "spec/containers/0: Additional properties are not allowed ('immage'" in said[1] + said[0]
    assert "spec/containers/0/args: '--all' is not of type" in said[0] + said[1]


def test_a_kind_that_a_version_does_not_have_is_seen() -> None:
    budget = {"apiVersion": "policy/v1beta1", "kind": "PodDisruptionBudget", "metadata": {}}
    with pytest.raises(FileNotFoundError):
        list(faults(budget, "1.29"))


def test_a_field_that_a_custom_kind_has_not_is_seen() -> None:
    monitor: Manifest = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "ServiceMonitor",
        "metadata": {"name": "one"},
        "spec": {"selector": {}, "endpoints": [{"port": "http"}]},
    }
    assert list(faults(monitor, "1.29")) == []
    monitor["spec"]["endpoints"][0] = {"port": 9555, "every": "10s"}
    assert len(list(faults(monitor, "1.29"))) == 2
