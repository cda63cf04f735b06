"""A study of Optuna's that is deleted: of a process that is killed on the way nothing stays."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from optuna.distributions import FloatDistribution
from optuna.study import StudyDirection
from optuna.trial import TrialState

from entrepot.errors import StoreReadOnly
from entrepot.store import Store
from entrepot.store.memory import MemoryStore
from entrepot.study.optuna import EntrepotStorage

MINIMIZE = [StudyDirection.MINIMIZE]
WRITES = {"os.remove", "os.link", "os.rename", "os.mkdir", "os.rmdir", "os.truncate"}


def filled(storage: EntrepotStorage, name: str, trials: int = 3) -> int:
    study = storage.create_new_study(MINIMIZE, name)
    storage.set_study_user_attr(study, "who", name)
    for number in range(trials):
        trial = storage.create_new_trial(study)
        storage.set_trial_param(trial, "x", number / 10, FloatDistribution(0, 1))
        storage.set_trial_state_values(trial, TrialState.COMPLETE, [float(number)])
    storage.remove_session()
    return study


def at(path: Path) -> EntrepotStorage:
    return EntrepotStorage(Store(path, durable=False))


def records(path: Path, study: int) -> list[str]:
    with Store(path, read_only=True) as store:
        return [record.name for record in store.scan(f"optuna/{study}/")]


def _delete(path: Path, study: int, step: int) -> None:
    """In a process of its own: killed before its so many-th change of the file system."""
    storage = at(path)
    storage.get_all_studies()
    left = step

    def look(event: str, given: tuple[Any, ...]) -> None:
        nonlocal left
        if event in WRITES or (event == "open" and given[2] & (os.O_WRONLY | os.O_RDWR)):
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1

    sys.addaudithook(look)
    storage.delete_study(study)


def by_listing(storage: EntrepotStorage, other: int) -> None:
    storage.get_all_studies()


def by_deleting(storage: EntrepotStorage, other: int) -> None:
    storage.delete_study(other)


@pytest.mark.parametrize("finish", [by_listing, by_deleting])
def test_killed_at_every_step_and_finished_by_the_next(
    tmp_path: Path, finish: Callable[[EntrepotStorage, int], None]
) -> None:
    forks = multiprocessing.get_context("fork")
    went = half = step = 0
    ended: int | None = -signal.SIGKILL
    while ended != 0:
        path = tmp_path / str(step)
        doomed, other, kept = (filled(at(path), name) for name in ("doomed", "other", "kept"))
        before = records(path, kept)
        child = forks.Process(target=_delete, args=(path, doomed, step))
        child.start()
        child.join(60)
        ended = child.exitcode
        child.close()
        assert ended in (0, -signal.SIGKILL), ended
        left = len(records(path, doomed))
        finish(at(path), other)
        seen = at(path)
        names = {study.study_name for study in seen.get_all_studies()}
        if "doomed" in names:  # it was killed before it said that the study is gone
            assert len(records(path, doomed)) == left > 0
            assert seen.get_n_trials(doomed) == 3
        else:
            assert records(path, doomed) == [], f"killed at step {step}"
            half += left > 0
            went += 1
        assert names - {"doomed"} == ({"other", "kept"} if finish is by_listing else {"kept"})
        assert records(path, kept) == before
        assert [trial.value for trial in seen.get_all_trials(kept)] == [0.0, 1.0, 2.0]
        step += 1
    assert step > 8, "a step for each record and claim"
    assert half >= 3, "it was killed between two records"
    assert went > half


def test_what_is_done_is_not_done_again(tmp_path: Path) -> None:
    storage = at(tmp_path / "store")
    storage.delete_study(filled(storage, "a"))
    with Store(tmp_path / "store") as store:
        store.bind("optuna/0/stray")
        assert at(tmp_path / "store").get_all_studies() == []
        assert store.resolve("optuna/0/stray") is not None, "its records were looked for again"


def test_who_may_not_write_lists_all_the_same(tmp_path: Path) -> None:
    storage = at(tmp_path / "store")
    filled(storage, "kept")
    doomed = filled(storage, "doomed")
    storage.store.claim(f"optuna/studies/gone-{doomed}")
    reads = EntrepotStorage(Store(tmp_path / "store", read_only=True))
    assert [study.study_name for study in reads.get_all_studies()] == ["kept"]
    assert records(tmp_path / "store", doomed)


class Stuck(MemoryStore):
    def delete(self, prefix: str) -> int:
        raise StoreReadOnly(f"{prefix} is not to be deleted, for a test")


def test_a_listing_does_not_fail_for_what_it_cannot_remove(
    caplog: pytest.LogCaptureFixture,
) -> None:
    storage = EntrepotStorage(Stuck())
    filled(storage, "kept")
    doomed = filled(storage, "doomed")
    with pytest.raises(StoreReadOnly):
        storage.delete_study(doomed)
    assert [study.study_name for study in storage.get_all_studies()] == ["kept"]
    assert "what is left of a deleted study cannot be removed" in caplog.text
