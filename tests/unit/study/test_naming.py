"""What names a study may have: the rule, and that all who make a study keep it."""

from __future__ import annotations

from typing import Any

import pytest

from entrepot.errors import ConfigurationError, StudyError, StudyNameError
from entrepot.store.memory import MemoryStore
from entrepot.study import Space, Study, enqueue, take, trials
from entrepot.study.naming import checked_study
from tests.unit.study.names import BAD, GOOD

SPACE = Space().real("lr", 0.0, 1.0)


@pytest.mark.parametrize("name", GOOD)
def test_a_study_can_be_made_and_read_under_it(name: str) -> None:
    assert checked_study(name) == name
    store = MemoryStore()
    for trial in Study(store, name, SPACE, me="m").work(trials=1):
        with trial:
            trial.report(0.5)
    assert [one.score for one in trials(store.view(), study=name)] == [0.5]


@pytest.mark.parametrize("name", BAD)
def test_nobody_makes_a_study_under_it_and_nothing_is_written(name: str) -> None:
    store = MemoryStore()
    point = SPACE.point(lr=0.5)
    shown = repr(name)[:60]
    for make in (
        lambda: Study(store, name, SPACE),
        lambda: take(store, point, study=name, trial=0, me="m"),
        lambda: enqueue(store, point, study=name, me="m"),
    ):
        with pytest.raises(StudyNameError) as refused:
            make()
        assert shown in str(refused.value)
    assert store.scan() == []


@pytest.mark.parametrize("name", [None, 7, b"spam", ["spam"], True])
def test_what_is_no_text_is_no_name(name: Any) -> None:
    with pytest.raises(StudyNameError, match="text of 1 to 200 characters"):
        checked_study(name)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("a\nb", r"the sign '\\n' in it ends a line"),
        ("a\u200bb", r"the sign '\\u200b' in it ends a line, or cannot be seen"),
        ("\u3164", r"the sign '\\u3164' in it ends a line, or cannot be seen"),
        ("a/..", r"its part '\.\.' is a way through folders"),
        ("x" * 300, "1 to 200 characters, got 300 characters: 'xxx"),
        ("a /b", "its part 'a ' has a blank at an end"),
        ("-a", "for an option"),
        ("a//b", "two in a row"),
        ("a/trials", "taken for the trials of"),
    ],
)
def test_the_error_says_what_is_in_the_way(name: str, why: str) -> None:
    with pytest.raises(StudyNameError, match=why) as refused:
        checked_study(name)
    assert isinstance(refused.value, ConfigurationError)
    assert isinstance(refused.value, StudyError)
    assert refused.value.code == "study_name"


@pytest.mark.parametrize(
    "me", ["a\nb", "a\x1b[31m", "\u202egnp", "\u3164", "\ud800", "\x00", "a\u2028"]
)
def test_who_runs_a_trial_can_be_seen_as_well(me: str) -> None:
    """It stands in tables, on pages and in logs, a line each."""
    store = MemoryStore()
    point = SPACE.point(lr=0.5)
    for make in (
        lambda: Study(store, "spam", SPACE, me=me),
        lambda: take(store, point, study="spam", trial=0, me=me),
        lambda: enqueue(store, point, study="spam", me=me),
    ):
        with pytest.raises(ConfigurationError, match="ends a line, or cannot be seen"):
            make()
    assert store.scan() == []


def test_who_runs_a_trial_may_have_an_odd_name() -> None:
    store = MemoryStore()
    for me in ("gpu-7:4711", " x", "-", "ñandú 🦆👩🏽\u200d🔬"):
        assert Study(store, "spam", SPACE, me=me).me == me
