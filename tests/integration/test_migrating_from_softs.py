"""docs/migrating-from-softs.md has every public name of softs, and names of ours that are there."""

from __future__ import annotations

import re
import subprocess
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from entrepot.settings import read_settings
from tests.peer import peer_env

PAGE = (Path(__file__).parents[2] / "docs" / "migrating-from-softs.md").read_text()

# Names of softs itself: what it exports, and what its classes have. Mediums share their members.
NAMES = """
import inspect, softs, softs.catcher
from softs.market import Medium

public = {name: getattr(softs, name) for name in softs.__all__}
public["ModelIOCatcher"] = softs.catcher.ModelIOCatcher
public["parse_io_spec"] = softs.catcher.parse_io_spec
public["Medium"] = Medium
for name, value in public.items():
    print(name)
    if inspect.isclass(value) and not (issubclass(value, Medium) and value is not Medium):
        members = {*vars(value), *getattr(value, "__annotations__", ())}
        for member in members:
            if not member.startswith("_"):
                print(member if value is Medium else f"{name}.{member}")
"""


def cells(column: int) -> str:
    """One column of all tables."""
    rows = [line.split(" | ") for line in PAGE.splitlines() if line.startswith("| `")]
    return "\n".join(row[column] for row in rows if len(row) > column)


@pytest.mark.peer
def test_every_public_name_of_softs_has_a_row() -> None:
    try:
        python = peer_env.peer_python()
    except peer_env.PeerUnavailable as unavailable:
        if peer_env.mandatory():
            raise
        pytest.skip(str(unavailable))
    said = subprocess.run(
        [python, "-c", NAMES], capture_output=True, text=True, timeout=100, check=True
    ).stdout.split()
    assert {"Client.discard", "make_xy_config", "unlink"} <= set(said)
    known = set(re.findall(r"`([\w.]+)`", cells(0)))
    assert [name for name in said if name not in known] == []


def resolve(name: str) -> Any:
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found: Any = import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for part in parts[count:]:
            found = getattr(found, part)
        return found
    raise AssertionError(f"no module of {name}")


def test_every_name_of_ours_is_there() -> None:
    names = re.findall(r"`(entrepot(?:\.\w+)+)`", PAGE)
    assert len(names) > 30
    for name in names:
        assert resolve(name) is not None


def test_every_setting_that_it_names_is_one() -> None:
    for section, field in re.findall(r"ENTREPOT_(\w+?)__(\w+)`", PAGE):
        assert hasattr(getattr(read_settings(), section.lower()), field.lower()), (section, field)


def test_its_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^):]+)\)", PAGE):
        assert (Path(__file__).parents[2] / "docs" / target).exists(), target
