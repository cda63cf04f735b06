"""``entrepot study`` on a bucket of a real server: what a folder does, a bucket does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from entrepot.cli.commands import app
from entrepot.store.bucket import BucketStore
from entrepot.study import report, take
from tests.unit.cli.studies import SPACE, study


def ran(*line: str) -> list[dict[str, Any]]:
    """What a command that succeeds prints as JSON."""
    result = CliRunner().invoke(app, ["study", *line, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return [json.loads(each) for each in result.stdout.splitlines()]


@pytest.fixture
def url(store: BucketStore) -> str:
    """A bucket with a study of three trials that are done, and one that runs for nobody."""
    for trial in study(store).work(trials=3):
        with trial:
            trial.report(1.0)
            trial.report(0.5 + trial.number)
    point = SPACE.at([0.5, 0.5])
    assert take(store, point, study="spam", trial=3, me="gpu-8", goal="min")
    report(store, point, [1 / (n + 1) for n in range(600)], study="spam", trial=3, me="gpu-8")
    study(store, "spam2")._describe()
    return store.url


def test_a_study_in_a_bucket_from_its_first_look_to_its_end(url: str, tmp_path: Path) -> None:
    spam, other, _ = ran("list", url)
    assert (spam["states"], other["name"]) == ({"done": 3, "running": 1}, "spam2")
    assert spam["best"][0]["score"] == 0.5
    head, *trials = ran("show", url, "spam", "--stale", "0")
    assert [one["trial"] for one in head["abandoned"]] == [3]
    assert [one["trial"] for one in trials] == [0, 1, 2, 3]
    (page,) = ran("show", url, "spam", "--html", str(tmp_path / "spam.html"))
    assert page["nbytes"] == (tmp_path / "spam.html").stat().st_size
    (watched,) = ran("watch", url, "spam", "--budget", "3")
    assert watched["running"][0]["reports"] == 600
    assert len(ran("curves", url, "spam", "--trial", "3")[0]["curve"]) > 30
    (rescued, _) = ran("rescue", url, "spam", "--stale", "0")
    assert (rescued["attempt"], rescued["state"]) == (1, "released")
    (exported,) = ran("export", url, "spam", "--output", str(tmp_path / "spam.json"), "--curves")
    assert exported["trials"] == 4
    said = json.loads((tmp_path / "spam.json").read_text())
    assert said["trials"][0]["curve"] == [1.0, 0.5]
    (deleted,) = ran("delete", url, "spam", "--yes")
    assert (deleted["trials"], deleted["records"]) == (4, 7)
    assert [one.get("name") for one in ran("list", url)] == ["spam2", None]


def test_a_study_that_is_not_in_the_bucket_is_told(url: str) -> None:
    result = CliRunner().invoke(app, ["study", "best", url, "spma"])
    assert type(result.exception).__name__ == "NoStudy"
    assert "it has 'spam', 'spam2'" in str(result.exception)


def test_a_bucket_without_studies_says_so(store: BucketStore) -> None:
    assert ran("list", store.url) == [{"event": "studies", "studies": 0, "unreadable": {}}]
