"""A store that fails is no fault of the trial: it is handed back, and never written off.

What is failed is never run again, and what is running waits for ``stale``, an hour. So a disk that
was full for a moment must cost a trial neither, and an error of the user's own function still does.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from entrepot.errors import (
    MissingBlob,
    StoreDenied,
    StoreError,
    StoreFull,
    StoreUnreachable,
)
from entrepot.store.folder import FolderStore
from entrepot.store.layout import blob_key
from entrepot.study import Sampler, Space, Study, Trial, rescue
from tests.unit.store.folder_faults import Hooked

SPACE = Space().real("lr", 1e-4, 1.0, log=True)


class Disk:
    """Calls of one name fail as often as it is told to; by a rename a record is written again."""

    def __init__(self) -> None:
        self.call = "rename"
        self.left = 0
        self.number = errno.ENOSPC

    def __call__(self, name: str, call: Callable[[], Any], _arguments: tuple[Any, ...]) -> Any:
        if name == self.call and self.left:
            self.left -= 1
            raise OSError(self.number, os.strerror(self.number))
        return call()


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def store(tmp_path: Path, disk: Disk) -> Iterator[FolderStore]:
    with FolderStore(tmp_path / "store", durable=False, calls=Hooked(disk)) as made:
        yield made


def study(store: FolderStore, me: str = "m0", **options: Any) -> Study:
    return Study(store, "spam", SPACE, Sampler.sobol(0), me=me, **options)


def run(made: Study, trials: int, body: Callable[[Trial], object]) -> None:
    """The loop, as a user has it."""
    for trial in made.work(trials=trials):
        with trial:
            body(trial)


def states(made: Study) -> list[tuple[int, int, str]]:
    return [(one.trial, one.attempt, one.state) for one in made.trials()]


FAULTS = [
    (errno.ENOSPC, StoreFull),
    (errno.ESTALE, StoreUnreachable),
    (errno.EACCES, StoreDenied),
    (errno.EIO, StoreError),
]


@pytest.mark.parametrize(("number", "kind"), FAULTS)
def test_a_report_that_the_store_does_not_take_hands_the_trial_back(
    store: FolderStore, disk: Disk, number: int, kind: type[StoreError]
) -> None:
    """The store takes it again at once: the next worker runs the trial at once, to its end."""
    disk.number = number

    def body(trial: Trial) -> None:
        trial.report(0.5)
        disk.left = 1
        trial.report(0.25)

    with pytest.raises(kind):
        run(study(store), 2, body)
    assert states(study(store)) == [(0, 0, "released")]
    again = study(store, "m1")
    seen = []
    for trial in again.work(trials=2):
        with trial:
            seen.append((trial.number, trial.attempt))
            trial.report(0.5)
    assert seen == [(0, 1), (1, 0)]
    assert states(again) == [(0, 1, "done"), (1, 0, "done")]


def test_with_a_store_that_is_still_away_it_runs_and_is_rescued(
    store: FolderStore, disk: Disk
) -> None:
    made = study(store)

    def body(trial: Trial) -> None:
        disk.left = 1000
        trial.report(0.25)

    with pytest.raises(StoreFull, match="has no room"):
        run(made, 1, body)
    disk.left = 0
    assert states(made) == [(0, 0, "running")]
    assert rescue(store, study="spam", trial=0, me="m1") is not None


@pytest.mark.parametrize("own", [ValueError("no"), StoreFull("the disk of the data set is full")])
def test_an_error_of_the_users_own_is_failed(
    store: FolderStore, disk: Disk, own: Exception
) -> None:
    """Also one of a store of theirs; and also where they took the study's store's before."""
    made = study(store)

    def body(trial: Trial) -> None:
        disk.left = 1
        with pytest.raises(StoreFull):
            trial.report(0.25)
        raise own

    with pytest.raises(type(own)):
        run(made, 1, body)
    assert states(made) == [(0, 0, "failed")]
    (one,) = made.trials()
    assert one.meta.because == f"{type(own).__name__}: {own}"


def test_a_checkpoint_that_cannot_be_put_hands_the_trial_back(
    store: FolderStore, disk: Disk
) -> None:
    made = study(store)

    def body(trial: Trial) -> None:
        disk.left = 1
        trial.keep(b"weights")

    with pytest.raises(StoreFull):
        run(made, 1, body)
    assert states(made) == [(0, 0, "released")]


def test_a_checkpoint_that_is_gone_fails_its_trial(store: FolderStore) -> None:
    """It would be gone for whoever is given the trial next, and for ever."""
    made = study(store)
    loop = made.work(trials=1)
    first = next(loop)
    first.keep(b"weights")
    first.release()
    loop.close()  # type: ignore[attr-defined]
    (one,) = made.trials()
    (store.path / blob_key(one.meta.kept)).unlink()

    def body(trial: Trial) -> None:
        assert trial.checkpoint

    with pytest.raises(MissingBlob):
        run(study(store, "m1"), 1, body)
    assert states(study(store)) == [(0, 1, "failed")]


def test_an_end_that_was_not_taken_is_written_once_more(store: FolderStore, disk: Disk) -> None:
    """What was computed to its end is not computed again for a moment's fault, nor does it end
    the worker."""
    made = study(store)
    for trial in made.work(trials=2):
        with trial:
            trial.report(0.25)
            disk.left = 1
    assert disk.left == 0
    assert states(made) == [(0, 0, "done"), (1, 0, "done")]


def test_an_end_of_ones_own_that_was_not_taken_is_written_and_told(
    store: FolderStore, disk: Disk
) -> None:
    made = study(store)

    def body(trial: Trial) -> None:
        disk.left = 1
        trial.prune("by hand")

    with pytest.raises(StoreFull):
        run(made, 1, body)
    (one,) = made.trials()
    assert (one.state, one.meta.because) == ("pruned", "by hand")


def test_an_end_that_is_not_taken_twice_is_told_and_the_trial_runs(
    store: FolderStore, disk: Disk
) -> None:
    made = study(store)

    def body(trial: Trial) -> None:
        trial.report(0.25)
        disk.left = 2

    with pytest.raises(StoreFull):
        run(made, 1, body)
    assert states(made) == [(0, 0, "running")]


def test_what_tidying_meets_ends_no_worker(
    store: FolderStore, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    """Blocks are closed between two trials, once a minute: the next look does what this could
    not, and neither the trial nor its error is hidden by it."""
    now = [0.0]
    made = study(store, clock=lambda: now[0])
    disk.call = "scandir"
    for trial in made.work(trials=3):
        with trial:
            trial.report(0.25)
            now[0] += 61
            disk.left = 1
        assert disk.left == 0
    said = [record.message.partition(":") for record in caplog.records]
    assert [before for before, _, _ in said] == ["finished trials are not tidied"] * 3
    assert all("No space left" in why for _, _, why in said)
    assert [state for _, _, state in states(made)] == ["done"] * 3
