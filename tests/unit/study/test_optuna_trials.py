"""What Optuna's suite does not ask: several processes, long trials, finished blocks."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import RetryHeartbeatStaleTrialCallback, fail_stale_trials
from optuna.study import StudyDirection
from optuna.trial import TrialState, create_trial

from entrepot.errors import StoreUnreachable
from entrepot.store import Store
from entrepot.store.memory import MemoryStore
from entrepot.study.optuna import EntrepotStorage

ROOT = Path(__file__).parents[3]
FORK = multiprocessing.get_context("fork")
WORKERS = 8

MINIMIZE = [StudyDirection.MINIMIZE]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    yield
    optuna.logging.set_verbosity(before)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    Store(tmp_path / "store", durable=False)
    return tmp_path / "store"


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def storage_in(folder: Path, **options: Any) -> EntrepotStorage:
    return EntrepotStorage(Store(folder, durable=False), **options)


def at_once(work: Callable[[int], object], workers: int = WORKERS) -> list[Any]:
    """What each of several processes that start together returns, by its number."""
    ready, start, answers = FORK.Semaphore(0), FORK.Event(), FORK.SimpleQueue()

    def run(number: int) -> None:
        ready.release()
        start.wait()
        try:
            answers.put((number, work(number)))
        except BaseException as error:
            answers.put((number, error))
            raise

    processes = [FORK.Process(target=run, args=(number,)) for number in range(workers)]
    for process in processes:
        process.start()
    for _ in processes:
        ready.acquire()
    start.set()
    found = dict(answers.get() for _ in processes)
    for process in processes:
        process.join()
        process.close()
    answers.close()
    for answer in found.values():
        if isinstance(answer, BaseException):
            raise answer
    return [found[number] for number in range(workers)]


# --- several processes ------------------------------------------------------------------


def test_each_number_is_given_out_once(folder: Path) -> None:
    study = storage_in(folder).create_new_study(MINIMIZE, "spam")

    def work(_: int) -> list[int]:
        storage = storage_in(folder)
        return [storage.create_new_trial(study) for _ in range(20)]

    made = sorted(trial for trials in at_once(work) for trial in trials)
    storage = storage_in(folder)
    assert [storage.get_trial_number_from_id(trial) for trial in made] == list(range(160))
    assert [trial._trial_id for trial in storage.get_all_trials(study)] == made


def test_one_of_all_gets_a_trial_that_waits_and_one_finishes_it(folder: Path) -> None:
    storage = storage_in(folder)
    study = storage.create_new_study(MINIMIZE, "spam")
    waiting = create_trial(state=TrialState.WAITING)
    trials = [storage.create_new_trial(study, waiting) for _ in range(10)]

    def work(number: int) -> tuple[list[int], list[int]]:
        mine = storage_in(folder)
        taken, finished = [], []
        for trial in trials:
            try:
                if mine.set_trial_state_values(trial, TrialState.RUNNING):
                    taken.append(trial)
                mine.set_trial_state_values(trial, TrialState.COMPLETE, [number])
                finished.append(trial)
            except UpdateFinishedTrialError:
                pass
        return taken, finished

    found = at_once(work)
    assert sorted(trial for taken, _ in found for trial in taken) == trials
    assert sorted(trial for _, finished in found for trial in finished) == trials
    for number, (_, finished) in enumerate(found):
        assert all(storage.get_trial(trial).value == number for trial in finished)


def test_a_name_is_given_to_one_study(folder: Path) -> None:
    def work(_: int) -> int:
        study = optuna.create_study(
            storage=storage_in(folder), study_name="spam", load_if_exists=True
        )
        return study._study_id

    assert len(set(at_once(work))) == 1
    assert len(storage_in(folder).get_all_studies()) == 1


def test_attributes_that_all_write_at_once_are_all_there(folder: Path) -> None:
    storage = storage_in(folder)
    study = storage.create_new_study(MINIMIZE)
    trial = storage.create_new_trial(study)

    def work(number: int) -> None:
        mine = storage_in(folder)
        for place in range(5):
            mine.set_study_user_attr(study, f"{number}.{place}", number)
            mine.set_trial_user_attr(trial, f"{number}.{place}", number)
            mine.set_trial_intermediate_value(trial, 5 * number + place, place)

    at_once(work, 4)
    wanted = {f"{number}.{place}": number for number in range(4) for place in range(5)}
    for reader in (storage, storage_in(folder)):
        assert reader.get_study_user_attrs(study) == wanted
        assert reader.get_trial(trial).user_attrs == wanted
        assert sorted(reader.get_trial(trial).intermediate_values) == list(range(20))


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_a_killed_process_is_found_silent_and_its_trial_is_tried_again(folder: Path) -> None:
    """It is killed with -9 within its objective; the trial fails once, and a retry is enqueued."""
    running, never = FORK.Event(), FORK.Event()

    def objective(trial: optuna.Trial) -> float:
        trial.suggest_float("x", 0, 1)
        running.set()
        never.wait()
        return 0.0

    def die() -> None:
        storage = storage_in(folder, heartbeat_interval=1)
        study = optuna.create_study(storage=storage, study_name="spam")
        study.optimize(objective, n_trials=1)

    process = FORK.Process(target=die)
    process.start()
    assert running.wait(60)
    reader = optuna.load_study(storage=storage_in(folder), study_name="spam")
    while not reader.trials[0].params:  # written in a moment, not at once
        pass
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    process.close()

    retry = RetryHeartbeatStaleTrialCallback(max_retry=1)
    storage = storage_in(
        folder,
        heartbeat_interval=1,
        grace_period=1,
        heartbeat_stale_trial_callback=retry,
    )
    study = optuna.load_study(storage=storage, study_name="spam")
    was = study.trials[0]
    assert was.state is TrialState.RUNNING
    assert set(was.params) == {"x"}
    while study.trials[0].state is not TrialState.FAIL:
        fail_stale_trials(study)
    assert [trial.state for trial in study.trials] == [TrialState.FAIL, TrialState.WAITING]
    study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=1)
    assert study.trials[1].params == was.params
    assert study.trials[1].state is TrialState.COMPLETE


def test_a_sign_of_life_that_cannot_be_written_ends_no_trial(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = EntrepotStorage(store, heartbeat_interval=1)
    trial = storage.create_new_trial(storage.create_new_study(MINIMIZE))

    def unreachable(*_: Any, **__: Any) -> None:
        raise StoreUnreachable("for a test")

    with monkeypatch.context() as patch:
        patch.setattr(store, "bind", unreachable)
        storage.record_heartbeat(trial)
    storage.record_heartbeat(trial)
    assert storage.set_trial_state_values(trial, TrialState.COMPLETE, [1.0])
    storage.record_heartbeat(trial)


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_a_trial_of_this_process_that_fell_silent_is_found_too() -> None:
    time = [1e9]
    store = MemoryStore(wall=lambda: time[0])
    storage = EntrepotStorage(store, heartbeat_interval=10)
    study = optuna.create_study(storage=storage)
    beaten, never_beaten = (storage.create_new_trial(study._study_id) for _ in range(2))
    storage.record_heartbeat(beaten)
    time[0] += 19
    fail_stale_trials(study)
    assert [trial.state for trial in study.trials] == [TrialState.RUNNING] * 2
    storage.record_heartbeat(beaten)
    time[0] += 19
    fail_stale_trials(study)
    assert storage.get_trial(beaten).state is TrialState.RUNNING
    time[0] += 2
    fail_stale_trials(study)
    assert storage.get_trial(beaten).state is TrialState.FAIL
    assert storage.get_trial(never_beaten).state is TrialState.RUNNING


def test_threads_of_one_process_share_a_storage(folder: Path) -> None:
    storage = storage_in(folder)
    study = optuna.create_study(storage=storage, pruner=optuna.pruners.NopPruner())

    def objective(trial: optuna.Trial) -> float:
        x = trial.suggest_float("x", 0, 1)
        for step in range(3):
            trial.report(x + step, step)
            trial.should_prune()
        trial.set_user_attr("number", trial.number)
        return x

    study.optimize(objective, n_trials=24, n_jobs=4)
    for reader in (storage, storage_in(folder)):
        trials = reader.get_all_trials(study._study_id)
        assert [trial.user_attrs["number"] for trial in trials] == list(range(24))
        assert all(trial.value == trial.params["x"] for trial in trials)
        assert all(len(trial.intermediate_values) == 3 for trial in trials)


def test_a_forked_child_goes_on_by_itself(folder: Path) -> None:
    storage = storage_in(folder)
    study = storage.create_new_study(MINIMIZE)
    trial = storage.create_new_trial(study)
    storage.set_trial_user_attr(trial, "from", "parent")

    def work(_: int) -> int:
        storage.set_trial_user_attr(trial, "child", "child")
        return storage.create_new_trial(study)

    (made,) = at_once(work, 1)
    assert storage.create_new_trial(study) == made + 1
    storage.set_trial_user_attr(trial, "after", "parent")
    found = {"from": "parent", "child": "child", "after": "parent"}
    assert storage.get_trial(trial).user_attrs == found
    assert storage_in(folder).get_trial(trial).user_attrs == found


def test_a_process_that_asks_and_ends_leaves_what_it_asked_for(folder: Path) -> None:
    """Another may run the trial and tell: what it tries is in the store when the first is gone."""
    code = (
        "import optuna\n"
        "from entrepot.study.optuna import EntrepotStorage\n"
        f"storage = EntrepotStorage({str(folder)!r}, params_within_s=0.5)\n"
        "study = optuna.create_study(storage=storage, study_name='spam')\n"
        "study.ask().suggest_float('x', 0, 1)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    study = optuna.load_study(storage=storage_in(folder), study_name="spam")
    assert list(study.trials[0].params) == ["x"]
    study.tell(0, 1.0)
    assert study.trials[0].state is TrialState.COMPLETE


# --- two storages over one store --------------------------------------------------------


def test_who_writes_last_is_read_whoever_made_the_trial(store: MemoryStore) -> None:
    one, two = EntrepotStorage(store), EntrepotStorage(store)
    trial = one.create_new_trial(one.create_new_study(MINIMIZE))
    for place in range(3):
        one.set_trial_user_attr(trial, "key", f"one {place}")
        assert two.get_trial(trial).user_attrs == {"key": f"one {place}"}
        two.set_trial_user_attr(trial, "key", f"two {place}")
        assert one.get_trial(trial).user_attrs == {"key": f"two {place}"}
    two.set_trial_state_values(trial, TrialState.COMPLETE, [1.0])
    with pytest.raises(UpdateFinishedTrialError):
        one.set_trial_user_attr(trial, "key", "late")
    with pytest.raises(UpdateFinishedTrialError):
        one.set_trial_state_values(trial, TrialState.FAIL)
    assert one.get_trial(trial) == two.get_trial(trial)


def test_what_waits_is_seen_by_others_at_once(store: MemoryStore) -> None:
    one, two = EntrepotStorage(store), EntrepotStorage(store)
    mine = optuna.create_study(storage=one, study_name="spam")
    other = optuna.load_study(storage=two, study_name="spam")
    for _ in range(3):
        mine.enqueue_trial({"x": 0.5})
        assert other.ask().suggest_float("x", 0, 1) == 0.5
    assert other.ask().number == 3


def test_what_is_kept_changes_no_more_and_other_trials_are_not_read_again(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = EntrepotStorage(store), EntrepotStorage(store)
    study = one.create_new_study(MINIMIZE)
    for _ in range(50):
        one.set_trial_state_values(one.create_new_trial(study), TrialState.COMPLETE, [1.0])
    before = two.get_all_trials(study, deepcopy=False)
    read: list[str] = []
    real = store._read_many

    def noted(keys: Sequence[str]) -> Iterable[bytes | None]:
        read.extend(keys)
        return real(keys)

    monkeypatch.setattr(store, "_read_many", noted)
    one.create_new_trial(study)
    read.clear()
    after = two.get_all_trials(study, deepcopy=False)
    assert len(read) == 1
    assert len(before) == 50
    assert all(one is two for one, two in zip(before, after[:-1], strict=True))


def test_a_deleted_study_is_gone_for_all_and_its_name_and_not_its_id_is_free(
    store: MemoryStore,
) -> None:
    one, two = EntrepotStorage(store), EntrepotStorage(store)
    study = optuna.create_study(storage=one, study_name="spam")
    study.optimize(lambda trial: 0.0, n_trials=2)
    other = optuna.load_study(storage=two, study_name="spam")
    optuna.delete_study(storage=one, study_name="spam")
    with pytest.raises(KeyError):
        other.ask()
    with pytest.raises(KeyError):
        other.get_trials()
    assert two.get_all_studies() == []
    again = optuna.create_study(storage=two, study_name="spam")
    assert again._study_id > study._study_id
    assert again.trials == []


# --- the documentation ------------------------------------------------------------------


def test_the_example_runs_as_it_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "study.md").read_text()
    section = page.partition("## Optuna's own storage")[2]
    found = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    assert found is not None
    code = found.group(1)
    assert '"/mnt/shared/studies"' in code
    monkeypatch.setattr("builtins.print", lambda *said: None)
    exec(code.replace("/mnt/shared/studies", str(tmp_path / "studies")), {})
    study = optuna.load_study(storage=EntrepotStorage(tmp_path / "studies"), study_name="parabola")
    assert len(study.trials) == 50
    assert study.best_value < 1.0
