"""Two scripts, two spaces, one study."""

from __future__ import annotations

import pytest

from entrepot.errors import StudyError
from entrepot.store.memory import MemoryStore
from entrepot.study import Sampler, Space, Study, report, take


def test_the_best_is_never_a_point_of_another_space() -> None:
    store = MemoryStore()
    old = Space().real("width", 1.0, 2.0)
    point = old.point(width=1.5)
    assert take(store, point, study="spam", trial=0, me="m9", goal="min")
    report(store, point, [0.0], study="spam", trial=0, me="m9", state="done", goal="min")
    space = Space().real("lr", 1e-5, 1e-1, log=True)
    made = Study(store.view(), "spam", space, Sampler.sobol(), goal="min")
    with pytest.raises(StudyError, match="is done yet; 1 of another space"):
        made.best()
    for trial in made.work(trials=3):
        with trial:
            trial.report(0.5)
    assert made.best().trial == 1
    assert space.read(made.best().meta.point)
    assert "width" in str(made.table())  # which shows all that there is
    assert made.history().skipped_points["space"] == 1
