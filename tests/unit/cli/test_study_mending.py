"""``entrepot study rescue``, ``export`` and ``delete``: what they do, and what they refuse."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from entrepot.store import Store
from entrepot.study import held, report, take, trials
from tests.integration.cli_terminals import OnTerminal
from tests.unit.cli.studies import begin, fill, objects, run, study

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Four trials that are finished, and one that runs for nobody."""
    fill(tmp_path / "store")
    begin(tmp_path / "store", 4)
    return tmp_path / "store"


def states(folder: Path, name: str = "spam") -> list[tuple[int, int, str]]:
    with Store(folder, read_only=True) as store:
        return [(one.trial, one.attempt, one.state) for one in trials(store, study=name)]


# --- rescue -----------------------------------------------------------------------------


def test_a_silent_trial_is_free_for_whoever_works_next(folder: Path, capfd: Capture) -> None:
    code, out, _ = run(capfd, "rescue", str(folder), "spam", "--stale", "0")
    assert (code, states(folder)[4]) == (0, (4, 1, "released"))
    assert out == ("trial 4, silent for 0 s (gpu-8): attempt 1 is free for whoever works next\n")
    with Store(folder, durable=False) as store:
        for trial in study(store, me="gpu-9").work(trials=5):
            with trial:
                trial.report(0.5)
        assert (trial.number, trial.attempt) == (4, 2)
        assert trials(store, study="spam")[4].meta.who == "gpu-9"


def test_a_rescued_trial_goes_on_from_its_checkpoint(folder: Path, capfd: Capture) -> None:
    with Store(folder, durable=False) as store:
        kept = store.put(b"weights")
        point = trials(store, study="spam")[4].meta.point
        report(store, point, [0.5], study="spam", trial=4, me="gpu-8", checkpoint=kept)
    assert run(capfd, "rescue", str(folder), "spam", "--stale", "0")[0] == 0
    with Store(folder, durable=False) as store:
        for trial in study(store).work(trials=5):
            with trial:
                assert (trial.number, trial.checkpoint) == (4, b"weights")
                trial.report(0.5)


def test_of_two_that_rescue_at_once_one_does(
    folder: Path, capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = held.again

    def late(store: Store, *more: Any) -> Any:
        mine = again(store, *more)
        assert mine is not None
        with Store(folder, durable=False) as other:
            other.claim("spam/trial/4/2", meta={"state": "running", "point": mine.point})
        return mine

    monkeypatch.setattr(sys.modules["entrepot.study.rescue"], "again", late)
    code, out, err = run(capfd, "rescue", str(folder), "spam", "--stale", "0")
    assert (code, err) == (0, "")
    assert out.endswith("somebody else was faster: attempt 2 is running\n")


def test_what_is_not_silent_is_left_alone(folder: Path, capfd: Capture) -> None:
    code, out, _ = run(capfd, "rescue", str(folder), "spam")
    assert (code, states(folder)[4]) == (0, (4, 0, "running"))
    assert out.startswith("no trial was silent for 3600 s; entrepot study show ")


@pytest.mark.parametrize(
    ("trial", "why"),
    [
        ("0", "trial 0 is done"),
        ("4", "trial 4 was heard of 0 s ago, and counts as abandoned after 3600"),
        ("77", "'spam' has no trial 77"),
    ],
)
def test_a_trial_that_cannot_be_rescued_is_told_and_nothing_is_written(
    folder: Path, capfd: Capture, trial: str, why: str
) -> None:
    before = states(folder)
    code, out, err = run(capfd, "rescue", str(folder), "spam", "--trial", trial)
    assert (code, out) == (1, "")
    assert why in err
    assert "nothing was rescued" in err
    assert states(folder) == before


def test_only_the_trials_that_are_named_are_rescued(folder: Path, capfd: Capture) -> None:
    begin(folder, 5)
    line = ["rescue", str(folder), "spam", "--stale", "0", "--trial", "5", "--json"]
    code, out, _ = run(capfd, *line)
    assert (code, states(folder)[4:]) == (0, [(4, 0, "running"), (5, 1, "released")])
    one, total = objects(out)
    assert (one["trial"], one["attempt"], one["state"], one["who"]) == (5, 1, "released", "gpu-8")
    assert total == {"event": "rescued", "trials": 1}
    code, _, err = run(capfd, *line)
    assert code == 1
    assert "trial 5 is released; whoever works next has it" in err


def test_after_the_last_attempt_it_is_written_off_and_says_so(folder: Path, capfd: Capture) -> None:
    line = ["rescue", str(folder), "spam", "--stale", "0", "--max-attempts", "1"]
    code, out, _ = run(capfd, *line)
    assert (code, states(folder)[4]) == (0, (4, 1, "failed"))
    assert "written off as failed, since 1 attempts or more fell silent" in out


# --- export -----------------------------------------------------------------------------


def test_a_csv_has_a_row_a_trial_and_a_column_a_knob(folder: Path, capfd: Capture) -> None:
    _, out, _ = run(capfd, "export", str(folder), "spam")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [row["trial"] for row in rows] == ["0", "1", "2", "3", "4"]
    assert [row["score"] for row in rows] == ["0.5", "0.6", "0.7", "0.8", ""]
    assert float(rows[0]["point.lr"]) > 0
    file = folder.parent / "spam.csv"
    code, said, _ = run(capfd, "export", str(folder), "spam", "--output", str(file))
    assert (code, file.read_text()) == (0, out)
    assert said == f"wrote {file}: 5 trials, {len(out.encode()):,} bytes\n"


def test_json_has_the_curves_and_no_nan(folder: Path, capfd: Capture) -> None:
    with Store(folder, durable=False) as store:
        take(store, "a=%2C", study="spam", trial=5, me="m", goal="min")
        curve = [0.5, math.nan]
        report(store, "a=%2C", curve, study="spam", trial=5, me="m", state="pruned")
    _, out, _ = run(capfd, "export", str(folder), "spam", "--format", "json", "--curves")
    said = json.loads(out, parse_constant=pytest.fail)
    assert (said["study"], said["goal"], said["knobs"]) == ("spam", "min", ["lr", "opt", "a"])
    by_trial = {one["trial"]: one for one in said["trials"]}
    assert by_trial[0]["curve"] == [0.9, 0.5, 0.5]
    assert (by_trial[5]["curve"], by_trial[5]["score"]) == ([0.5, "nan"], "nan")
    assert (by_trial[5]["point.a"], by_trial[5]["point.lr"]) == (",", None)


def test_several_scores_have_a_column_each(tmp_path: Path, capfd: Capture) -> None:
    with Store(tmp_path / "store", durable=False) as store:
        made = study(store, sampler=None, goal={"loss": "min", "hits": "max"})
        for trial in made.work(trials=2):
            with trial:
                trial.score = {"loss": trial.number, "hits": 1}
    _, out, _ = run(capfd, "export", str(tmp_path / "store"), "spam")
    (row, *_) = csv.DictReader(io.StringIO(out))
    assert (row["score.loss"], row["score.hits"]) == ("0.0", "1.0")


def test_parquet_without_its_package_names_it(
    folder: Path, capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    file = folder.parent / "spam.parquet"
    code, _, err = run(capfd, "export", str(folder), "spam", "--output", str(file))
    assert (code, file.exists()) == (1, False)
    assert err.startswith("error (missing_extra): Parquet is written by the package pyarrow")


def test_parquet_has_a_type_a_column(folder: Path, capfd: Capture) -> None:
    from pyarrow import parquet

    file = folder.parent / "spam.parquet"
    code, _, _ = run(capfd, "export", str(folder), "spam", "--output", str(file), "--curves")
    read = parquet.read_table(file).to_pydict()
    assert (code, read["trial"], read["score"][4]) == (0, [0, 1, 2, 3, 4], None)
    assert read["curve"][0] == [0.9, 0.5, 0.5]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (["--output", "spam.txt"], "does not end in .csv, .json or .parquet"),
        (["--curves"], "a CSV has no place for curves"),
        (["--format", "parquet"], "parquet needs an --output"),
        (["--json"], "--json needs an --output"),
    ],
)
def test_an_export_that_cannot_be_is_refused(
    folder: Path, capfd: Capture, line: list[str], said: str
) -> None:
    code, out, err = run(capfd, "export", str(folder), "spam", *line)
    assert (code, out) == (2, "")
    assert said in " ".join(err.split())


def test_a_file_that_cannot_be_written_is_told(folder: Path, capfd: Capture) -> None:
    file = folder.parent / "none" / "spam.csv"
    code, _, err = run(capfd, "export", str(folder), "spam", "--output", str(file))
    assert code == 1
    assert err.startswith("error (configuration): cannot write ")
    assert list(folder.parent.glob(".*")) == []


# --- delete -----------------------------------------------------------------------------


def test_a_study_is_deleted_and_no_other(folder: Path, capfd: Capture) -> None:
    for name in ("spam2", "spam/inner", "ham"):
        fill(folder, name, 2)
    with Store(folder) as store:
        store.claim("spam/round/0/average")
    code, out, _ = run(capfd, "delete", str(folder), "spam", "--yes", "--force")
    assert (code, out) == (0, "deleted spam: 5 trials, 7 records\n")
    assert run(capfd, "show", str(folder), "spam")[0] == 1
    with Store(folder) as store:
        left = {record.name.rpartition("/trial/")[0] for record in store.scan()}
        assert {"spam2", "spam/inner", "ham"} <= left
        assert store.resolve("spam/round/0/average") is not None


def test_a_study_whose_trials_run_is_not_deleted(folder: Path, capfd: Capture) -> None:
    code, out, err = run(capfd, "delete", str(folder), "spam", "--yes")
    assert (code, out) == (1, "")
    assert err.startswith("error (study_runs): 1 trials of 'spam' run")
    assert len(states(folder)) == 5


def test_a_closed_block_is_deleted_with_its_segment(tmp_path: Path, capfd: Capture) -> None:
    path = tmp_path / "store"
    with Store(path, durable=False) as store:
        meta = {"state": "done", "score": "0.5", "point": "a=1", "goal": "min"}
        names = [f"spam/trial/{number}/0" for number in range(1000)]
        for name in names:
            store.claim(name, meta=meta)
        records = [record for record in store.resolve_many(names) if record]
        assert store.close_block("spam", 0, records)
    code, out, _ = run(capfd, "delete", str(path), "spam", "--yes", "--json")
    (said,) = objects(out)
    assert (code, said["trials"], said["records"] >= 1000) == (0, 1000, True)
    with Store(path) as store:
        assert store.scan() == []


def test_without_a_terminal_there_is_nobody_to_ask(folder: Path, capfd: Capture) -> None:
    code, _, err = run(capfd, "delete", str(folder), "spam", "--force")
    assert code == 2
    assert "give --yes" in err
    assert len(states(folder)) == 5


@pytest.mark.parametrize(("answer", "code", "left"), [("n", 1, 5), ("", 1, 5), ("y", 0, 0)])
def test_on_a_terminal_it_asks(folder: Path, answer: str, code: int, left: int) -> None:
    terminal = OnTerminal("study", "delete", str(folder), "spam", "--force")
    try:
        assert "3 done, 1 pruned, 1 running" in " ".join(terminal.read("[y/N]: ").split())
        os.write(terminal._ours, f"{answer}\n".encode())
    finally:
        ended = terminal.end()
    assert ended == code
    assert len(states(folder)) == left
