"""``entrepot study list``, ``show``, ``best`` and ``curves``: what they print, and how they end."""

from __future__ import annotations

import math
import shlex
from pathlib import Path
from typing import Any

import pytest

from entrepot.cli import main
from entrepot.store import Store
from entrepot.store.record import EMPTY
from entrepot.study import Space, report, take
from tests.unit.cli.studies import CURVE, SPACE, begin, fill, objects, run, study, tear

Capture = pytest.CaptureFixture[str]

LOOKING = ("show", "best", "curves", "export", "watch")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    fill(tmp_path / "store")
    return tmp_path / "store"


# --- which study ------------------------------------------------------------------------


def test_studies_are_listed_with_their_states_and_their_best(folder: Path, capfd: Capture) -> None:
    fill(folder, "team/eggs", 2)
    with Store(folder) as store:
        store.claim("run/round/0/client/a")
        study(store, "begun")._describe()
    code, out, err = run(capfd, "list", str(folder))
    assert (code, err) == (0, "")
    assert "spam: 3 done, 1 pruned\n  best 0.5 (min), trial 0: lr=" in out
    assert [line for line in out.splitlines() if not line.startswith(" ")] == [
        "begun: no trials",
        "spam: 3 done, 1 pruned",
        "team/eggs: 2 done",
    ]
    _, out, _ = run(capfd, "list", str(folder), "--json")
    begun, spam, eggs, last = objects(out)
    assert (spam["name"], spam["trials"], spam["states"]) == ("spam", 4, {"done": 3, "pruned": 1})
    assert (spam["best"][0]["trial"], spam["best"][0]["score"], spam["goal"]) == (0, 0.5, "min")
    assert (begun["trials"], begun["best"], eggs["trials"]) == (0, [], 2)
    assert last == {"event": "studies", "studies": 3, "unreadable": {}}


def test_a_store_without_studies_says_so(tmp_path: Path, capfd: Capture) -> None:
    with Store(tmp_path / "store"):
        pass
    assert run(capfd, "list", str(tmp_path / "store"))[:2] == (
        0,
        f"no studies are in file://{tmp_path}/store\n",
    )


@pytest.mark.parametrize("verb", [*LOOKING, "rescue", "delete"])
def test_an_unknown_study_is_told_with_the_three_nearest(
    folder: Path, capfd: Capture, verb: str
) -> None:
    for name in ("spam2", "ham", "team/spam", "eggs", "x" * 40):
        with Store(folder) as store:
            study(store, name)._describe()
    code, out, err = run(capfd, verb, str(folder), "spma")
    assert (code, out) == (1, "")
    assert err.startswith("error (no_study): no study is named 'spma'")
    assert "it has 'spam', 'spam2', 'team/spam' and 3 others" in err


@pytest.mark.parametrize("verb", ["list", *LOOKING, "rescue", "delete"])
def test_a_store_that_is_not_there_is_told_and_not_made(
    tmp_path: Path, capfd: Capture, verb: str
) -> None:
    line = [verb, str(tmp_path / "none"), *(["spam"] if verb != "list" else [])]
    code, _, err = run(capfd, *line)
    assert (code, err.partition(":")[0]) == (1, "error (store_unreachable)")
    assert not (tmp_path / "none").exists()
    code, _, err = run(capfd, line[0], "ftp://host/x", *line[2:])
    assert (code, err.partition(":")[0]) == (1, "error (configuration)")


def test_a_name_that_cannot_be_is_refused(folder: Path, capfd: Capture) -> None:
    code, _, err = run(capfd, "show", str(folder), "spam/trial/0")
    assert (code, err.partition(":")[0]) == (1, "error (study_name)")


@pytest.mark.parametrize("verb", ["list", *LOOKING])
def test_a_torn_record_is_counted_and_said(folder: Path, capfd: Capture, verb: str) -> None:
    tear(folder, "spam/trial/1/0")
    line = [verb, str(folder), *(["spam"] if verb != "list" else [])]
    if verb == "watch":
        line += ["--budget", "3"]
    code, out, err = run(capfd, *line)
    assert code == 0
    assert "passed over, since they cannot be read: 1 torn; `entrepot store ls" in err
    assert out


def test_a_study_of_which_nothing_can_be_read_is_there(tmp_path: Path, capfd: Capture) -> None:
    begin(tmp_path / "store", 0)
    tear(tmp_path / "store", "spam/trial/0/0")
    code, out, err = run(capfd, "show", str(tmp_path / "store"), "spam")
    assert code == 0
    assert "no trials yet" in out
    assert "1 torn" in err


def test_a_record_that_is_no_trials_is_counted_and_said(folder: Path, capfd: Capture) -> None:
    with Store(folder) as store:
        store.claim("spam/trial/9/0", meta={"state": "asleep"})
    code, out, err = run(capfd, "show", str(folder), "spam", "--json")
    assert (code, err) == (0, "passed over, since they are no trial's record: 1\n")
    assert objects(out)[0]["strangers"] == 1


def test_nothing_is_written_by_looking(folder: Path, capfd: Capture) -> None:
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    for verb in LOOKING:
        more = ["--budget", "4"] if verb == "watch" else []
        assert run(capfd, verb, str(folder), "spam", *more)[0] == 0
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_trials_in_a_closed_block_are_there(folder: Path, capfd: Capture) -> None:
    with Store(folder, durable=False) as store:
        meta = {"state": "done", "score": "0.25", "point": "a=1", "goal": "min"}
        names = [f"old/trial/{number}/0" for number in range(1000)]
        for name in names:
            store.claim(name, meta=meta)
        assert store.close_block("old", 0, [one for one in store.resolve_many(names) if one])
    _, out, _ = run(capfd, "list", str(folder))
    assert "old: 1,000 done\n  best 0.25 (min), trial 0: a=1\n" in out
    _, out, _ = run(capfd, "show", str(folder), "old", "--rows", "1")
    assert "... and 999 more" in out


# --- show -------------------------------------------------------------------------------


def test_a_study_is_shown_with_the_best_first(folder: Path, capfd: Capture) -> None:
    code, out, err = run(capfd, "show", str(folder), "spam")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == f"spam in file://{folder}"
    assert lines[1] == "3 done, 1 pruned; best first (min)"
    assert lines[2].startswith("best 0.5 (min), trial 0: ")
    assert lines[3].startswith("what decides: lr ")
    rows = [line.split() for line in lines if " done " in line or " pruned " in line]
    assert [row[:4] for row in rows[:2]] == [["*", "0", "done", "0.5"], ["1", "done", "0.6", "3"]]
    assert max(map(len, lines[4:])) <= 80
    _, out, _ = run(capfd, "show", str(folder), "spam", "--rows", "1")
    assert "... and 3 more" in out


def test_a_study_as_json_has_every_trial(folder: Path, capfd: Capture) -> None:
    _, out, _ = run(capfd, "show", str(folder), "spam", "--json", "--rows", "1")
    head, *trials = objects(out)
    assert (head["event"], head["trials"], head["knobs"]) == ("study", 4, ["lr", "opt"])
    assert head["abandoned"] == []
    assert set(head["influence"]["score"]) == {"lr", "opt"}
    assert [one["trial"] for one in trials] == [0, 1, 2, 3]
    assert trials[3]["because"] == "worse than others"
    assert trials[0]["values"].keys() == {"lr", "opt"}


def test_what_fell_silent_is_told_with_the_command_that_hands_it_on(
    folder: Path, capfd: Capture
) -> None:
    begin(folder, 4)
    _, out, _ = run(capfd, "show", str(folder), "spam", "--stale", "0")
    assert "silent for 0 s or more:\n  trial 4, attempt 0, gpu-8: 0 s\n" in out
    command = out.splitlines()[-1].partition("   ")[0]
    assert shlex.split(command) == [
        "entrepot",
        "study",
        "rescue",
        str(folder),
        "spam",
        "--stale",
        "0",
    ]
    with pytest.raises(SystemExit):
        main(shlex.split(command)[1:])
    assert "trial 4" in capfd.readouterr().out
    assert "silent for" not in run(capfd, "show", str(folder), "spam", "--stale", "0")[1]


def test_a_store_that_cannot_be_written_to_is_shown_and_says_what_is_not_known(
    folder: Path, capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(folder, 4)
    opened = Store.open

    def read_only(url: str, **options: Any) -> Store:
        return opened(url, **options | {"read_only": True})

    monkeypatch.setattr(Store, "open", read_only)
    code, out, _ = run(capfd, "show", str(folder), "spam")
    assert code == 0
    assert "how long trials have been silent is not known" in out


def test_why_trials_failed_is_told_once_for_all_of_them(folder: Path, capfd: Capture) -> None:
    with Store(folder, durable=False) as store:
        for trial in study(store).work(trials=7):
            with pytest.raises(ZeroDivisionError), trial:
                raise ZeroDivisionError("again\x1b[2J")
    _, out, _ = run(capfd, "show", str(folder), "spam")
    assert "failed, 3 times, as trial 4: ZeroDivisionError: again" in out
    assert "\x1b" not in out


def test_no_goal_means_the_order_of_the_trials(tmp_path: Path, capfd: Capture) -> None:
    with Store(tmp_path / "store", durable=False) as store:
        for trial, score in enumerate((0.9, 0.1)):
            take(store, "a=1", study="s", trial=trial, me="m")
            report(store, "a=1", [score], study="s", trial=trial, me="m", state="done")
    _, out, _ = run(capfd, "show", str(tmp_path / "store"), "s")
    assert "none of them says what better means" in out
    assert out.index(" 0.9 ") < out.index(" 0.1 ")
    code, _, err = run(capfd, "best", str(tmp_path / "store"), "s")
    assert code == 1
    assert "no trial says what better means" in err


def test_names_cannot_play_tricks_on_a_terminal(tmp_path: Path, capfd: Capture) -> None:
    name = "\x1b[2Jevil"
    space = Space().choice("knob\n\x1b[31m", ["\x1b]0;x\x07", "b"])
    with Store(tmp_path / "store", durable=False) as store:
        for number in range(2):
            point = space.at([number])
            take(store, point, study="evil", trial=number, me="m", goal="min")
            report(store, point, [0.5], study="evil", trial=number, me="m", state="done")
            made = store.resolve(f"evil/trial/{number}/0")
            assert made is not None
            # Past the rule for names.
            store.bind(f"{name}/trial/{number}/0", EMPTY, {**made.meta, "who": "\x1b[0m"})
    for line in (["list"], ["show", name, "--stale", "0"], ["best", name], ["curves", name]):
        code, out, err = run(capfd, line[0], str(tmp_path / "store"), *line[1:])
        assert code == 0
        assert "\x1b" not in out + err
        assert "\x07" not in out + err


def test_a_wide_space_has_its_point_in_one_column(tmp_path: Path, capfd: Capture) -> None:
    space = Space()
    for number in range(30):
        space = space.real(f"knob{number}", 0, 1)
    with Store(tmp_path / "store", durable=False) as store:
        point = space.at([0.5] * 30)
        take(store, point, study="s", trial=0, me="m", goal="min")
        report(store, point, CURVE, study="s", trial=0, me="m", state="done")
    _, out, _ = run(capfd, "show", str(tmp_path / "store"), "s")
    row = next(line for line in out.splitlines() if line.startswith(" *"))
    assert row.split()[:5] == ["*", "0", "done", "0.4", "3"]
    assert row.rstrip().endswith("…")
    assert len(row) <= 80


# --- best -------------------------------------------------------------------------------


def test_the_best_is_one_line_that_a_space_reads(folder: Path, capfd: Capture) -> None:
    code, out, _ = run(capfd, "best", str(folder), "spam")
    assert (code, len(out.splitlines())) == (0, 1)
    assert out.startswith("trial 0  0.5  lr=")
    assert SPACE.read(out.split("  ")[2].strip())["opt"] in ("adam", "sgd")
    (best,) = objects(run(capfd, "best", str(folder), "spam", "--json")[1])
    assert (best["trial"], best["score"], best["goal"], best["best"]) == (0, 0.5, "min", True)


def test_the_best_of_several_goals_is_a_front(tmp_path: Path, capfd: Capture) -> None:
    with Store(tmp_path / "store", durable=False) as store:
        made = study(store, sampler=None, goal={"loss": "min", "hits": "max"})
        for trial in made.work(trials=3):
            with trial:
                trial.score = {
                    "loss": trial.number,
                    "hits": trial.number if trial.number < 2 else 0,
                }
    _, out, _ = run(capfd, "best", str(tmp_path / "store"), "spam")
    assert [line.split("  ")[:2] for line in out.splitlines()] == [
        ["trial 0", "loss 0, hits 0"],
        ["trial 1", "loss 1, hits 1"],
    ]


def test_before_a_trial_is_done_there_is_no_best(tmp_path: Path, capfd: Capture) -> None:
    begin(tmp_path / "store", 0)
    code, _, err = run(capfd, "best", str(tmp_path / "store"), "spam")
    assert (code, err) == (1, "error (study): 'spam' has no best: no trial is done yet\n")


# --- curves -----------------------------------------------------------------------------


def test_curves_are_drawn_the_best_first(folder: Path, capfd: Capture) -> None:
    begin(folder, 4)
    code, out, _ = run(capfd, "curves", str(folder), "spam")
    lines = out.splitlines()
    assert (code, len(lines)) == (0, 5)
    assert lines[0].split() == ["*", "0", "done", "█▁▁", "3", "reports,", "0.9", "to", "0.5"]
    assert "running   █▂▁" in lines[4]


def test_a_curve_as_json_is_every_report(tmp_path: Path, capfd: Capture) -> None:
    long = [1 / (n + 1) for n in range(400)]
    with Store(tmp_path / "store", durable=False) as store:
        for number, curve in enumerate(([0.5, math.nan, math.inf, 0.25], long)):
            take(store, "a=1", study="s", trial=number, me="m", goal="min")
            report(store, "a=1", curve, study="s", trial=number, me="m", state="done")
        take(store, "a=1", study="s", trial=2, me="m", goal="min")
        report(store, "a=1", long, study="s", trial=2, me="m")
        take(store, "a=1", study="s", trial=3, me="m", goal="min")
    path = str(tmp_path / "store")
    _, out, _ = run(capfd, "curves", path, "s", "--json")
    blob, short, running = objects(out)
    assert short["curve"] == [[1, 0.5], [2, "nan"], [3, "inf"], [4, 0.25]]
    assert ([value for _, value in blob["curve"]], blob["whole"]) == (long, True)
    assert (running["trial"], running["whole"], len(running["curve"])) == (2, False, 33)
    _, out, _ = run(capfd, "curves", path, "s", "--trial", "0", "--trial", "3")
    assert out.splitlines()[1:] == ["1 trials reported nothing"]
    assert "█··▁" in out
    code, _, err = run(capfd, "curves", path, "s", "--trial", "77")
    assert code == 1
    assert "has no trial 77" in err


def test_a_curve_whose_blob_is_broken_is_drawn_from_the_record(
    tmp_path: Path, capfd: Capture
) -> None:
    path = tmp_path / "store"
    with Store(path, durable=False) as store:
        take(store, "a=1", study="s", trial=0, me="m", goal="min")
        report(store, "a=1", [0.5] * 900, study="s", trial=0, me="m", state="done")
    (blob,) = (each for each in (path / "blobs").rglob("*") if each.is_file())
    blob.write_bytes(b"other")
    code, out, _ = run(capfd, "curves", str(path), "s", "--json")
    (curve,) = objects(out)
    assert (code, curve["whole"], curve["reports"]) == (0, False, 900)
    assert curve["curve"][-1][1] == 0.5


# --- show --html ------------------------------------------------------------------------


def test_a_page_is_written(folder: Path, capfd: Capture) -> None:
    file = folder.parent / "spam.html"
    code, out, err = run(capfd, "show", str(folder), "spam", "--html", str(file))
    text = file.read_text()
    assert (code, err) == (0, "")
    assert out == f"wrote {file}: 4 trials, {len(text.encode()):,} bytes; open it in a browser\n"
    assert text.startswith("<!doctype html>")
    assert "<h1>spam</h1>" in text
    line = ["show", str(folder), "spam", "--html", str(file), "--json"]
    assert objects(run(capfd, *line)[1])[0]["event"] == "page"
    code, _, err = run(capfd, "show", str(folder), "spam", "--html", str(folder / "no" / "x.html"))
    assert code == 1
    assert err.startswith("error (configuration): cannot write ")
