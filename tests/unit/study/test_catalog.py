"""Many studies of one store, followed by one look."""

from __future__ import annotations

import pytest

from entrepot.store.memory import MemoryStore
from entrepot.study import Space, report, take
from entrepot.study.catalog import Catalog, study_of
from entrepot.study.closing import compact

SPACE = Space().real("lr", 0.0, 1.0)


def ran(store: MemoryStore, study: str, trial: int, score: float) -> None:
    point = SPACE.point(lr=score)
    assert take(store, point, study=study, trial=trial, me="m", goal="min")
    report(store, point, [score], study=study, trial=trial, me="m", state="done")


def test_each_study_has_its_own_trials_and_a_refresh_tells_which_changed() -> None:
    store = MemoryStore()
    for study in ("spam", "ham", "team/spam"):
        ran(store, study, 0, 0.5)
    store.bind("spam/notes")
    catalog = Catalog(store.view())
    assert catalog.refresh() == {"spam", "ham", "team/spam"}
    assert {name: len(one) for name, one in catalog.studies.items()} == dict.fromkeys(
        ("spam", "ham", "team/spam"), 1
    )
    assert catalog.refresh() == set()
    ran(store, "ham", 1, 0.25)
    assert catalog.refresh() == {"ham"}
    assert [one.score for one in catalog.studies["ham"]] == [0.5, 0.25]


def test_a_block_that_is_closed_meanwhile_stays_what_it_was() -> None:
    store = MemoryStore()
    for trial in range(1000):
        ran(store, "spam", trial, 0.5)
    catalog = Catalog(store.view())
    catalog.refresh()
    assert compact(store, study="spam", grace_s=0.0) == [0]
    assert catalog.refresh() == {"spam"}
    assert len(catalog.studies["spam"]) == 1000
    fresh = Catalog(store.view())
    fresh.refresh()
    assert len(fresh.studies["spam"]) == 1000


def test_studies_that_are_too_many_are_counted_and_not_kept() -> None:
    store = MemoryStore()
    for number in range(5):
        ran(store, f"s{number}", 0, 0.5)
    catalog = Catalog(store.view(), most=3)
    catalog.refresh()
    assert (len(catalog.studies), len(catalog.left_out)) == (3, 2)


@pytest.mark.parametrize(
    ("name", "study"),
    [
        ("spam/trial/3/0", "spam"),
        ("team/spam/trial/3/0", "team/spam"),
        ("spam/trial/x/0", None),
        ("spam/trial/3", None),
        ("trial/3/0", None),
        ("spam/segment/0", None),
        ("", None),
    ],
)
def test_which_study_a_record_is_of(name: str, study: str | None) -> None:
    assert study_of(name) == study
