"""The Makefile says what is missing, and the pins, the bounds and the package agree."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import tomllib
from importlib.metadata import entry_points, version
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import entrepot

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
INSTALLED_BY_CI = ("bucket", "contract", "study", "study-optuna", "test", "torch")


def make(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs make as from a shell, though the tests themselves may have been started by it."""
    inherited = {"MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "MFLAGS", "PYTHON", "VENV"}
    return subprocess.run(
        ["make", "--no-print-directory", *arguments],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name not in inherited},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    return tmp_path / "venv"


def interpreter(directory: Path, script: str) -> Path:
    """A stand-in for Python, as a shell script."""
    path = directory / "python-stand-in"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        (None, "install Python 3.11 or newer"),
        ("case $1 in --version) echo Python 3.9.2;; *) exit 1;; esac", "is Python 3.9.2, and"),
        ("case $2 in *ensurepip*) exit 1;; esac", "apt-get install python3-venv"),
    ],
    ids=["no python", "an old python", "no venv"],
)
def test_make_says_what_is_missing(
    environment: Path, tmp_path: Path, script: str | None, sentence: str
) -> None:
    python = tmp_path / "nowhere" if script is None else interpreter(tmp_path, script)
    result = make(f"VENV={environment}", f"PYTHON={python}", "demo")
    assert result.returncode == 2
    assert sentence in result.stderr
    assert str(python) in result.stderr
    assert not environment.exists()


def test_what_is_installed_is_installed_once_and_again_when_the_pins_change(
    environment: Path, tmp_path: Path
) -> None:
    # A Python that only notes what it is asked for, and whose environment has itself in it.
    calls = tmp_path / "calls"
    python = interpreter(
        tmp_path,
        f'echo "$@" >>{calls}\n'
        f'case "$1 $2" in "-m venv") mkdir -p {environment}/bin; '
        f"for name in python entrepot; do cp $0 {environment}/bin/$name; done;; esac",
    )
    arguments = (f"VENV={environment}", f"PYTHON={python}", "demo")

    def pip_calls() -> list[str]:
        made = make(*arguments)
        assert made.returncode == 0, made.stderr
        lines = calls.read_text().splitlines()
        calls.write_text("")
        return [line for line in lines if "pip install" in line]

    assert pip_calls()[-1].endswith(
        "--constraint constraints.txt --no-build-isolation --editable .[contract,study,sidecar]"
    )
    assert pip_calls() == []
    for changed in ("constraints.txt", "pyproject.toml"):
        assert (
            "--editable '.[contract,study,sidecar]'" in make("-n", "-W", changed, *arguments).stdout
        )


def test_make_alone_lists_every_target() -> None:
    targets = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[0]
    listed = re.findall(r"^make (\w+)", make().stdout, re.MULTILINE)
    assert sorted([*listed, "help"]) == sorted(targets.split())


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    exact = [line.split("==") for line in lines if not line.startswith("#")]
    return {canonicalize_name(name): release for name, release in exact}


def test_all_that_ci_installs_is_pinned_within_its_bounds() -> None:
    asked = [*PROJECT["dependencies"]]
    for extra in INSTALLED_BY_CI:
        asked += PROJECT["optional-dependencies"][extra]
    pinned = pins()
    for requirement in map(Requirement, asked):
        release = pinned[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(release), f"{requirement}, pinned to {release}"


def test_the_pins_name_no_build() -> None:
    # torch 2.13.0+cpu is to be found as torch 2.13.0; an address would tie CI to one place. What is
    # published a second time is a release like any other, and so is one of another epoch.
    release = re.compile(r"([0-9]+!)?[0-9][0-9.]*(\.post[0-9]+)?")
    assert [each for each in pins().values() if not release.fullmatch(each)] == []


def test_everything_that_runs_the_library_has_a_lower_bound() -> None:
    extras = PROJECT["optional-dependencies"]
    asked = [*PROJECT["dependencies"]]
    for extra in extras.keys() - {"all", "test"}:
        asked += extras[extra]
    unbounded = [str(each) for each in map(Requirement, asked) if ">=" not in str(each.specifier)]
    assert unbounded == []


def test_all_has_every_extra_of_the_library() -> None:
    extras = PROJECT["optional-dependencies"]
    (everything,) = map(Requirement, extras["all"])
    assert everything.extras == extras.keys() - {"all", "test"}


def test_the_package_knows_its_version() -> None:
    assert version("entrepot") == entrepot.__version__


def test_the_command_is_there() -> None:
    (command,) = entry_points(group="console_scripts", name="entrepot")
    assert callable(command.load())
