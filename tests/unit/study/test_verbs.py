"""The words of a study, each promise by itself, in a folder and in memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from entrepot.errors import ConfigurationError, GoalMismatch, PointError, StudyError, TrialLost
from entrepot.store import Store
from entrepot.store.memory import MemoryStore
from entrepot.store.record import EMPTY
from entrepot.study import (
    Sampler,
    Space,
    abandoned,
    compact,
    curves,
    direction,
    enqueue,
    finished,
    in_flight,
    next_free,
    report,
    rescue,
    take,
    trials,
)
from entrepot.study.held import history

SPACE = Space().real("lr", 1e-4, 1.0, log=True).choice("opt", ["adam", "sgd"])
POINT = SPACE.point(lr=0.01, opt="sgd")


@pytest.fixture(params=["folder", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path / "store", durable=False) if request.param == "folder" else MemoryStore()
    with made:
        yield made


def again(store: Store) -> Store:
    """The same store, as another machine has it."""
    return store.view() if isinstance(store, MemoryStore) else Store.open(store.url)


def run(store: Store, trial: int, *reports: float, state: str = "done", me: str = "m0") -> None:
    assert take(store, POINT, study="spam", trial=trial, me=me, goal="min")
    report(store, POINT, reports, study="spam", trial=trial, me=me, state=state)


def test_the_loop_as_it_is_printed(store: Store) -> None:
    sampler, space, me = Sampler.sobol(0), SPACE, "m0"
    tried = []
    for trial in range(20):
        point = sampler.ask(space, trial, finished(store, space, study="spam"))
        if not take(store, point, study="spam", trial=trial, me=me, goal="min"):
            continue
        assert point is not None
        tried.append(point)
        reports = [1.0 / (epoch + 1) for epoch in range(3)]
        report(store, point, reports, study="spam", trial=trial, me=me, state="done", goal="min")
    assert finished(store, space, study="spam") == [(point, 1 / 3) for point in tried]
    assert len(set(map(str, tried))) == 20


def test_a_trial_is_taken_once(store: Store) -> None:
    assert take(store, POINT, study="spam", trial=7, me="m0")
    assert not take(store, POINT, study="spam", trial=7, me="m1")
    assert take(store, POINT, study="ham", trial=7, me="m1")
    assert [one.meta.who for one in trials(store, study="spam")] == ["m0"]


def test_what_else_lies_there_is_no_trial(store: Store) -> None:
    run(store, 0, 1.0)
    for name in ("spam/trial/not-a-number/0", "spam/trial/0", "spam/trial/1/0/more", "spam/x"):
        store.bind(name, EMPTY, {"state": "done", "point": str(POINT), "score": "0.0"})
    store.bind("spam/trial/3/0", EMPTY, {"state": "dnoe", "point": str(POINT)})
    store.bind("spam/trial/4/0", EMPTY, {"state": "done", "point": str(POINT), "score": "low"})
    store.bind("spam/trial/5/0", EMPTY, {"state": "done", "point": str(POINT)})
    assert [one.trial for one in trials(store, study="spam")] == [0]
    assert history(store, "spam").strangers >= 3


def test_the_history_is_records_and_no_blobs(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for trial in range(5):
        run(store, trial, *([0.5] * 2000))
    fetched: list[str] = []

    def fetch(_store: Store, keys: Sequence[str]) -> list[bytes | None]:
        fetched.extend(keys)
        return [None for _ in keys]

    monkeypatch.setattr(type(store), "_read_blobs", fetch)
    assert len(finished(again(store), SPACE, study="spam")) == 5
    assert fetched == []


def test_short_curves_need_no_blob_and_long_ones_are_exact(store: Store) -> None:
    run(store, 0, 0.5, math.nan, math.inf, -1 / 3, state="failed")
    long = [1 / (number + 3) for number in range(3000)]
    run(store, 1, *long)
    found = curves(store, study="spam")
    assert found[1] == long
    assert [repr(one) for one in found[0]] == ["0.5", "nan", "inf", repr(-1 / 3)]
    assert trials(store, study="spam")[0].digest == EMPTY


def test_a_curve_is_watched_while_it_grows(store: Store) -> None:
    assert take(store, POINT, study="spam", trial=0, me="m0", goal="max")
    other = again(store)
    for count in range(1, 4):
        report(store, POINT, [float(n) for n in range(count)], study="spam", trial=0, me="m0")
        (seen,) = trials(other, study="spam")
        assert (seen.state, seen.tail.length, seen.tail.last) == ("running", count, count - 1.0)
        assert curves(other, study="spam") == {0: [float(n) for n in range(count)]}


def test_pruned_and_failed_are_not_among_the_finished(store: Store) -> None:
    run(store, 0, 0.3)
    run(store, 1, 0.1, state="pruned")
    run(store, 2, 0.1, state="failed")
    assert [score for _, score in finished(store, SPACE, study="spam")] == [0.3]
    assert [one.state for one in trials(store, study="spam")] == ["done", "pruned", "failed"]


def test_what_runs_is_in_flight_without_a_score(store: Store) -> None:
    run(store, 0, 0.3)
    assert take(store, POINT, study="spam", trial=1, me="m1")
    report(store, POINT, [0.2], study="spam", trial=1, me="m1")
    assert in_flight(again(store), SPACE, study="spam") == [(POINT, None)]
    assert finished(store, SPACE, study="spam") == [(POINT, 0.3)]


def test_the_highest_attempt_speaks(store: Store) -> None:
    assert take(store, POINT, study="spam", trial=0, me="m0", goal="min")
    held = rescue(store, study="spam", trial=0, me="m1")
    assert held is not None
    (running,) = trials(store, study="spam")
    assert (running.attempt, running.meta.who, running.meta.point) == (1, "m1", str(POINT))
    report(store, POINT, [0.25], study="spam", trial=0, me="m1", state="done")
    assert finished(store, SPACE, study="spam") == [(POINT, 0.25)]


def test_a_finished_attempt_is_never_hidden_by_one_that_runs(store: Store) -> None:
    assert take(store, POINT, study="spam", trial=0, me="m0", goal="min")
    other = again(store)
    # Both look, and the first finishes between the other's look and its claim.
    report(store, POINT, [0.5], study="spam", trial=0, me="m0", state="done")
    assert take(other, POINT, study="spam", trial=0, me="m1", attempt=1)
    assert finished(store, SPACE, study="spam") == [(POINT, 0.5)]
    assert rescue(store, study="spam", trial=0, me="m2") is None
    report(other, POINT, [0.75], study="spam", trial=0, me="m1", attempt=1, state="done")
    assert finished(store, SPACE, study="spam") == [(POINT, 0.75)]


def test_who_was_rescued_is_told_and_hurts_nobody(store: Store) -> None:
    assert take(store, POINT, study="spam", trial=0, me="m0", goal="min")
    other = again(store)
    assert rescue(other, study="spam", trial=0, me="m1") is not None
    with pytest.raises(TrialLost, match="rescued"):
        report(store, POINT, [0.1], study="spam", trial=0, me="m0", state="done")
    assert finished(store, SPACE, study="spam") == []
    report(other, POINT, [0.2], study="spam", trial=0, me="m1", state="done")
    assert finished(store, SPACE, study="spam") == [(POINT, 0.2)]


def test_a_trial_is_reported_by_who_took_it_and_once(store: Store) -> None:
    with pytest.raises(TrialLost, match="take it first"):
        report(store, POINT, [0.1], study="spam", trial=0, me="m0")
    run(store, 0, 0.1)
    with pytest.raises(TrialLost, match="done before"):
        report(store, POINT, [0.1], study="spam", trial=0, me="m0", state="done")
    assert take(store, POINT, study="spam", trial=1, me="m0")
    with pytest.raises(TrialLost, match="'m1' did not take it"):
        report(again(store), POINT, [0.1], study="spam", trial=1, me="m1")
    # Another process of the same machine may, as when a job step reports.
    report(again(store), POINT, [0.1], study="spam", trial=1, me="m0", state="done")
    assert len(finished(store, SPACE, study="spam")) == 2


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        ({"state": "dnoe"}, StudyError),
        ({"state": "done", "score": math.nan}, StudyError),
        ({"state": "done", "score": math.inf}, StudyError),
        ({"state": "done", "reports": []}, StudyError),
        ({"state": "done", "reports": [0.5, math.nan]}, StudyError),
        ({"state": "done", "score": {"loss": 1.0}}, StudyError),
        ({"goal": "max"}, StudyError),
        ({"goal": "minimise"}, ConfigurationError),
        ({"reports": ["low"]}, ConfigurationError),
        ({"point": SPACE.point(lr=0.02, opt="sgd")}, PointError),
        ({"me": ""}, ConfigurationError),
        ({"trial": -1}, ConfigurationError),
        ({"study": "spam/"}, ConfigurationError),
    ],
)
def test_a_wrong_report_is_refused_and_nothing_is_written(
    store: Store, wrong: dict[str, object], kind: type[Exception]
) -> None:
    assert take(store, POINT, study="spam", trial=0, me="m0", goal="min")
    before = store.resolve("spam/trial/0/0")
    given = {"point": POINT, "reports": [0.5], "study": "spam", "trial": 0, "me": "m0", **wrong}
    with pytest.raises(kind):
        report(store, **given)  # type: ignore[arg-type]
    assert store.resolve("spam/trial/0/0") == before
    report(store, POINT, [0.5], study="spam", trial=0, me="m0", state="done")


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        ({"goal": "minimum"}, ConfigurationError),
        ({"trial": 1.5}, ConfigurationError),
        ({"trial": True}, ConfigurationError),
        ({"attempt": -1}, ConfigurationError),
        ({"me": "x" * 201}, ConfigurationError),
        ({"study": "a/trial/b"}, ConfigurationError),
        ({"study": ""}, ConfigurationError),
        ({"point": None}, PointError),
        ({"point": {"lr": 1.0}}, PointError),
    ],
)
def test_a_wrong_claim_is_refused_and_nothing_is_written(
    store: Store, wrong: dict[str, object], kind: type[Exception]
) -> None:
    given = {"point": POINT, "study": "spam", "trial": 0, "me": "m0", **wrong}
    with pytest.raises(kind):
        take(store, **given)  # type: ignore[arg-type]
    assert store.scan() == []


def test_several_scores_are_kept_by_name(store: Store) -> None:
    assert take(store, POINT, study="spam", trial=0, me="m0", goal={"loss": "min", "ms": "min"})
    with pytest.raises(StudyError, match="loss, ms"):
        report(store, POINT, [0.1], study="spam", trial=0, me="m0", state="done", score=0.5)
    score = {"loss": 0.1, "ms": 3.0}
    report(store, POINT, [0.1], study="spam", trial=0, me="m0", state="done", score=score)
    assert finished(store, SPACE, study="spam") == [(POINT, score)]


def test_the_goal_is_what_was_said_first(store: Store) -> None:
    assert direction(store, study="spam") is None
    assert take(store, POINT, study="spam", trial=0, me="m0")
    assert direction(store, study="spam") is None
    assert "goal" not in (store.resolve("spam/trial/0/0") or pytest.fail("none")).meta
    assert take(store, POINT, study="spam", trial=1, me="m0", goal="max")
    with pytest.raises(GoalMismatch, match=r"'max'.*'min'"):
        take(store, POINT, study="spam", trial=2, me="m0", goal="min")
    assert take(store, POINT, study="spam", trial=2, me="m0", goal="max")
    assert direction(store, study="spam") == "max"
    assert [one.goal for one in trials(store, study="spam")] == [None, "max", "max"]


def test_a_trial_of_another_space_is_passed_over_and_counted(store: Store) -> None:
    run(store, 0, 0.5)
    wide = Space().real("lr", 1e-6, 10.0, log=True).choice("opt", ["adam", "sgd"])
    point = wide.point(lr=5.0, opt="adam")
    assert take(store, point, study="spam", trial=1, me="m1")
    report(store, point, [0.1], study="spam", trial=1, me="m1", state="done")
    assert finished(store, SPACE, study="spam") == [(POINT, 0.5)]
    assert finished(store, wide, study="spam") == [(point, 0.1)]
    assert history(store, "spam").skipped_points["space"] >= 2


def test_a_queued_point_is_a_trial_that_anybody_may_have(store: Store) -> None:
    run(store, 0, 0.5)
    point = SPACE.point(lr=0.5, opt="adam")
    assert enqueue(store, point, study="spam", me="me") == 1
    (_, queued) = trials(store, study="spam")
    assert (queued.state, queued.meta.point) == ("released", str(point))
    held = rescue(again(store), study="spam", trial=1, me="m1")
    assert held is not None
    assert (held.attempt, held.point) == (1, str(point))


def test_what_is_released_again_and_again_is_not_written_off(store: Store) -> None:
    enqueue(store, POINT, study="spam", me="me")
    for attempt in range(1, 8):
        held = rescue(store, study="spam", trial=0, me=f"m{attempt}")
        assert held is not None
        assert held.attempt == attempt
        report(store, POINT, [], study="spam", trial=0, me=f"m{attempt}", state="released")


def test_after_three_silent_attempts_a_tombstone_says_so(store: Store) -> None:
    assert take(store, POINT, study="spam", trial=0, me="m0", goal="min")
    for attempt in (1, 2):
        held = rescue(store, study="spam", trial=0, me=f"m{attempt}")
        assert held is not None
        assert held.attempt == attempt
    before = [store.resolve(f"spam/trial/0/{attempt}") for attempt in range(3)]
    assert rescue(store, study="spam", trial=0, me="m3") is None
    assert [store.resolve(f"spam/trial/0/{attempt}") for attempt in range(3)] == before
    (tomb,) = trials(store, study="spam")
    assert (tomb.attempt, tomb.state, tomb.meta.because) == (3, "failed", "lost")
    assert rescue(store, study="spam", trial=0, me="m4") is None
    assert store.resolve("spam/trial/0/4") is None


def test_numbers_are_found_where_they_are_free(store: Store) -> None:
    assert next_free(store, study="spam") == 0
    for trial in (0, 1, 3):
        run(store, trial, 0.5)
    assert next_free(store, study="spam") == 2
    run(store, 2, 0.5)
    assert next_free(again(store), study="spam") == 4


def test_nobody_is_abandoned_who_was_heard(store: Store) -> None:
    assert take(store, POINT, study="spam", trial=0, me="m0")
    assert abandoned(store, study="spam") == []
    (gone,) = abandoned(again(store), study="spam", stale=0)
    assert (gone.trial, gone.attempt, gone.point, gone.who) == (0, 0, str(POINT), "m0")
    assert 0 <= gone.silent_s < 60


def test_a_finished_block_becomes_one_segment_and_says_the_same(store: Store) -> None:
    for trial in range(1001):
        store.claim(
            f"spam/trial/{trial}/0",
            EMPTY,
            {"state": "done", "point": str(POINT), "score": repr(trial / 7), "goal": "min"},
        )
    assert compact(store, study="spam", grace_s=3600) == []
    before = [(one.trial, one.score) for one in trials(store, study="spam")]
    assert compact(store, study="spam", grace_s=0) == [0]
    assert compact(store, study="spam", grace_s=0) == []
    other = again(store)
    assert [(one.trial, one.score) for one in trials(other, study="spam")] == before
    assert [(one.trial, one.score) for one in trials(store, study="spam")] == before
    assert history(other, "spam").closed == {0}
    # A number does not become free, and what comes too late never speaks.
    assert not take(other, POINT, study="spam", trial=5, me="m1")
    assert take(other, POINT, study="spam", trial=5, me="m1", attempt=1)
    assert [(one.trial, one.score) for one in trials(again(store), study="spam")] == before
    assert next_free(other, study="spam") == 1001


def test_a_block_with_one_that_runs_stays_open(store: Store) -> None:
    for trial in range(1000):
        state = "running" if trial == 500 else "failed"
        store.claim(f"spam/trial/{trial}/0", EMPTY, {"state": state, "point": str(POINT)})
    assert compact(store, study="spam", grace_s=0) == []


@pytest.mark.parametrize(
    "word",
    [
        lambda store: take(store, POINT, study="spam", trial=0, me="m0"),
        lambda store: report(store, POINT, [1.0], study="spam", trial=0, me="m0"),
        lambda store: finished(store, SPACE, study="spam"),
        lambda store: in_flight(store, SPACE, study="spam"),
        lambda store: abandoned(store, study="spam"),
        lambda store: trials(store, study="spam"),
        lambda store: curves(store, study="spam"),
        lambda store: direction(store, study="spam"),
        lambda store: next_free(store, study="spam"),
        lambda store: rescue(store, study="spam", trial=0, me="m0"),
        lambda store: enqueue(store, POINT, study="spam", me="m0"),
        lambda store: compact(store, study="spam"),
    ],
)
@pytest.mark.parametrize("none", ["a folder", None])
def test_what_is_no_store_is_told_how_one_is_opened(
    word: Callable[[Any], object], none: object
) -> None:
    with pytest.raises(ConfigurationError, match=r"store must be .* Store\.open\(place\)"):
        word(none)
