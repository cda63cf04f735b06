"""The images of ``services/``: how large, and what is in them. They were built beforehand."""

from __future__ import annotations

import json
import re
import shutil
import subprocess

import pytest

from tests.containers.stack import ROOT, Stack, docker, inspected

BASE = "local/python:3.11-slim"
MB = 10**6

AT_MOST = {"broker": 60, "supplier": 140, "sidecar": 180}
"""Megabytes over the base."""

OURS = ("broker", "supplier", "teacher", "client", "sidecar", "store")
DOCKERFILES = sorted((ROOT / "services").glob("*/Dockerfile"))


@pytest.mark.parametrize(("service", "most"), AT_MOST.items())
def test_an_image_is_no_larger_than_said(service: str, most: int) -> None:
    image, base = inspected(f"local/entrepot-{service}", BASE)
    assert image["Size"] - base["Size"] <= most * MB


@pytest.mark.parametrize("service", OURS)
def test_an_image_says_what_it_is_and_runs_as_nobody_in_particular(service: str) -> None:
    (image,) = inspected(f"local/entrepot-{service}")
    config = image["Config"]
    assert config["User"] == "10001:10001"
    assert config["StopSignal"] == "SIGTERM"
    assert config["Healthcheck"]["Test"]
    for label in ("title", "description", "licenses"):
        assert config["Labels"][f"org.opencontainers.image.{label}"]
    # A list, and no shell before it: the service gets the signals.
    assert config["Entrypoint"] == ["python", "/opt/entrepot/services/start.py"]


LACKS = {
    "broker": ["torch", "numpy", "obstore", "scipy", "fastapi"],
    "supplier": ["torch", "obstore", "scipy", "fastapi"],
    "client": ["fastapi"],
    "sidecar": ["torch", "scipy"],
    "store": ["torch", "fastapi"],
    "teacher": ["obstore", "fastapi"],
}


@pytest.mark.parametrize(("service", "modules"), LACKS.items())
def test_an_image_has_nothing_that_its_service_does_not_need(
    service: str, modules: list[str]
) -> None:
    script = (
        "import importlib.util as u, json, sys;"
        "print(json.dumps([m for m in sys.argv[1:] if u.find_spec(m)]))"
    )
    image = f"local/entrepot-{service}"
    done = docker("run", "--rm", "--entrypoint", "python", image, "-c", script, *modules, "pip")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []


def test_the_wheel_is_made_by_the_same_lines_in_every_file() -> None:
    """So the builder makes it once. Prometheus alone has no wheel."""
    stages = {
        file.parent.name: found[1]
        for file in DOCKERFILES
        if (found := re.search(r"(?ms)^# The wheel of(.*?pip wheel [^\n]*)", file.read_text()))
    }
    assert set(stages) == {"broker", "client", "sidecar", "store", "supplier"}
    assert len(set(stages.values())) == 1


def test_the_images_with_torch_have_it_in_the_same_layer() -> None:
    """The first above their base."""
    names = [f"local/entrepot-{service}" for service in ("teacher", "client", "supplier")]
    teacher, client, supplier, base = (
        image["RootFS"]["Layers"] for image in inspected(*names, BASE)
    )
    assert teacher[: len(base) + 1] == client[: len(base) + 1]
    assert teacher[len(base)] != supplier[len(base)]


def test_hadolint_has_nothing_to_say() -> None:
    hadolint = shutil.which("hadolint", path=str(ROOT / ".venv" / "bin"))
    assert hadolint, "hadolint is not installed; `make containers` installs it"
    done = subprocess.run(
        [hadolint, *map(str, DOCKERFILES)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_compose_takes_the_file_and_every_image_is_a_variable_with_a_pinned_default() -> None:
    done = Stack("entrepot-valid").tried("--profile", "*", "config", "--quiet")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    images = re.findall(r"^ +image: (.*)$", (ROOT / "docker-compose.yml").read_text(), re.M)
    assert images
    for image in images:
        assert re.fullmatch(r"\$\{[A-Z_]+:-[a-z/]+:(?!latest)[\w.-]+\}", image), image
