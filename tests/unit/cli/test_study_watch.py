"""``entrepot study watch``: on a terminal, in a pipe, as JSON; and how it ends."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from entrepot.errors import StoreUnreachable
from entrepot.store import Store
from entrepot.study.history import History
from tests.integration.cli_terminals import OnTerminal, Terminals
from tests.unit.cli.studies import CURVE, begin, fill, objects, run, study

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    fill(tmp_path / "store")
    return tmp_path / "store"


@pytest.fixture
def terminals(tmp_path: Path) -> Iterator[Terminals]:
    made = Terminals(tmp_path)
    yield made
    made.close()


def work(folder: Path, trials: int) -> None:
    with Store(folder, durable=False) as store:
        for trial in study(store).work(trials=trials):
            with trial:
                for one in CURVE:
                    trial.report(one)


def test_it_ends_when_the_budget_is_finished(folder: Path, capfd: Capture) -> None:
    code, out, err = run(capfd, "watch", str(folder), "spam", "--budget", "4", "--json")
    assert (code, err) == (0, "")
    (said,) = objects(out)
    assert (said["finished"], said["budget"], said["states"]) == (4, 4, {"done": 3, "pruned": 1})
    assert (said["best"][0]["score"], said["running"], said["fault"]) == (0.5, [], None)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_is_new_is_a_line_and_a_signal_ends_it_with_0(
    terminals: Terminals, folder: Path, number: signal.Signals
) -> None:
    watch = terminals.start("study", "watch", str(folder), "spam", "--json", "--interval", "0.1")
    assert watch.event("watch")["trials"] == 4
    begin(folder, 4)
    said = watch.event("watch")
    while not said["running"] or said["running"][0]["reports"] != 3:
        said = watch.event("watch")
    assert said["running"][0]["who"] == "gpu-8"
    assert said["running"][0]["best"] == 0.4
    watch.signal(number)
    code, out, err = watch.end()
    assert (code, out, err) == (0, "", "")


def test_a_study_that_grows_to_its_budget_is_told_to_its_end(
    terminals: Terminals, folder: Path
) -> None:
    line = ("study", "watch", str(folder), "spam", "--budget", "6", "--interval", "0.1")
    watch = terminals.start(*line)
    work(folder, 6)
    code, out, err = watch.end()
    assert (code, err) == (0, "")
    last = out.splitlines()[-1]
    assert last.startswith("6 of 6 finished: 5 done, 1 pruned; best 0.4 (min), trial 4: lr=")
    assert len(out.splitlines()) <= 20


def test_it_rests_between_two_looks(
    folder: Path, capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    refresh = History.refresh
    looks: list[float] = []

    def counted(self: History) -> bool:
        looks.append(time.monotonic())
        if len(looks) == 6:
            begin(folder, 4)
            work_on(folder)
        return refresh(self)

    monkeypatch.setattr(History, "refresh", counted)
    line = ["watch", str(folder), "spam", "--json", "--interval", "0.1", "--budget", "5"]
    assert run(capfd, *line)[0] == 0
    assert all(later - sooner >= 0.09 for sooner, later in pairwise(looks))


def test_on_a_terminal_there_are_a_bar_the_best_and_curves(folder: Path) -> None:
    begin(folder, 4)
    terminal = OnTerminal("study", "watch", str(folder), "spam", "--budget", "9")
    try:
        shown = terminal.read("running ")
        assert "4 of 9" in shown
        assert "best 0.5 (min), trial 0" in shown
        os.kill(terminal.process.pid, signal.SIGINT)
    finally:
        ended = terminal.end()
    assert ended == 0
    assert "█▂▁" in terminal.shown.decode()


def test_a_store_that_is_gone_for_a_moment_is_looked_at_again(
    folder: Path, capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    refresh = History.refresh
    looks: list[int] = []

    def shaky(self: History) -> bool:
        looks.append(1)
        if len(looks) == 2:
            raise StoreUnreachable("no answer")
        if len(looks) == 4:
            begin(folder, 4)
            work_on(folder)
        return refresh(self)

    monkeypatch.setattr(History, "refresh", shaky)
    line = ["watch", str(folder), "spam", "--json", "--interval", "0.1", "--budget", "5"]
    code, out, _ = run(capfd, *line)
    said = objects(out)
    assert code == 0
    assert [one["fault"] for one in said] == [None, "no answer", None, None]
    assert said[-1]["finished"] == 5


def work_on(folder: Path) -> None:
    with Store(folder, durable=False) as store:
        store.bind("spam/trial/4/0", meta={"state": "failed", "point": "lr=0.1,opt=sgd"})


def test_a_store_that_was_never_there_is_an_error(tmp_path: Path, capfd: Capture) -> None:
    code, _, err = run(capfd, "watch", str(tmp_path / "none"), "spam")
    assert (code, err.partition(":")[0]) == (1, "error (store_unreachable)")
