"""``entrepot settings`` shows what holds, and ``docs/settings.md`` is what it makes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from entrepot.cli import main
from entrepot.cli.settings import SECTIONS, every, page
from entrepot.settings import Settings

DOCS = Path(__file__).parents[3] / "docs"


def out_of(capsys: pytest.CaptureFixture[str], *line: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["settings", *line])
    assert not ended.value.code
    return capsys.readouterr().out


def test_the_page_is_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert (DOCS / "settings.md").read_text() == out_of(capsys, "--markdown") == page()


def test_the_page_does_not_depend_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    before = page()
    monkeypatch.setenv("ENTREPOT_CLIENT__SLOTS", "7")
    assert page() == before


def test_every_section_has_a_title() -> None:
    assert set(SECTIONS) == set(Settings.model_fields)


def test_every_setting_says_its_meaning_and_numbers_their_unit() -> None:
    for section, name, known in every():
        assert known.description, f"{section}.{name}"
        if name.endswith("_s"):
            assert "second" in known.description.lower(), f"{section}.{name}"
        if name.endswith("_nbytes"):
            assert "bytes" in known.description.lower(), f"{section}.{name}"


def test_values_that_hold_here_are_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ENTREPOT_CLIENT__SLOTS", "7")
    assert "ENTREPOT_CLIENT__SLOTS=7  (default 64)\n" in out_of(capsys)
    said = [json.loads(line) for line in out_of(capsys, "--json").splitlines()]
    slots = next(each for each in said if each["variable"] == "ENTREPOT_CLIENT__SLOTS")
    assert (slots["value"], slots["default"]) == (7, 64)
    assert len(said) == len(every())
