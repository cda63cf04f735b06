"""What a storage for Optuna writes: long trials, finished blocks, and what cannot be read or be."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, distribution_to_json
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import TrialState, create_trial

from entrepot.errors import ConfigurationError, StoreUnreachable, StudyError
from entrepot.store import Store
from entrepot.store.memory import MemoryStore
from entrepot.study.optuna import EntrepotStorage
from tests.unit.study.test_optuna_trials import MINIMIZE, storage_in

LETTERS = CategoricalDistribution(["a", "b"])


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    Store(tmp_path / "store", durable=False)
    return tmp_path / "store"


# --- how many writes --------------------------------------------------------------------


class Counted(MemoryStore):
    """Notes what is claimed and bound."""

    def __init__(self) -> None:
        super().__init__()
        self.claims: list[str] = []
        self.binds: list[str] = []
        self.fails = False
        self.refused = 0

    def claim(self, name: str, *rest: Any, **more: Any) -> bool:
        self.claims.append(name)
        return super().claim(name, *rest, **more)

    def bind(self, name: str, *rest: Any, **more: Any) -> None:
        if self.fails:
            self.refused += 1
            raise StoreUnreachable("for a test")
        self.binds.append(name)
        super().bind(name, *rest, **more)


def suggested(storage: EntrepotStorage) -> int:
    """The id of a new trial with three parameters."""
    trial = storage.create_new_trial(storage.create_new_study(MINIMIZE))
    for name in "abc":
        storage.set_trial_param(trial, name, 0.5, FloatDistribution(0, 1))
    return trial


def test_a_trial_that_ends_at_once_is_two_claims() -> None:
    store = Counted()
    storage = EntrepotStorage(store, params_within_s=10)
    number = suggested(storage)
    before = [name for name in store.binds if "/trial/" in name]
    storage.set_trial_state_values(number, TrialState.COMPLETE, [1.0])
    storage.remove_session()
    base = "optuna/0/trial/0"
    assert [name for name in store.claims if "/trial/" in name] == [f"{base}/0", f"{base}/2"]
    assert before == [name for name in store.binds if "/trial/" in name] == []
    assert list(EntrepotStorage(store).get_trial(number).params) == ["a", "b", "c"]


def test_what_a_trial_tries_is_written_with_what_comes_next() -> None:
    store = Counted()
    storage = EntrepotStorage(store, params_within_s=10)
    writes: list[Callable[[int], None]] = [
        lambda trial: storage.set_trial_intermediate_value(trial, 0, 1.0),
        lambda trial: storage.set_trial_user_attr(trial, "key", "value"),
        lambda trial: storage.remove_session(),
    ]
    for write in writes:
        trial = suggested(storage)
        assert EntrepotStorage(store).get_trial(trial).params == {}
        assert list(storage.get_trial(trial).params) == ["a", "b", "c"]
        write(trial)
        assert list(EntrepotStorage(store).get_trial(trial).params) == ["a", "b", "c"]


def test_it_is_written_in_a_moment_by_itself_and_at_once_if_so_wished() -> None:
    store = MemoryStore()
    trial = suggested(EntrepotStorage(store, params_within_s=0.01))
    while not EntrepotStorage(store).get_trial(trial).params:
        pass
    assert len(EntrepotStorage(store).get_trial(trial).params) == 3
    trial = suggested(EntrepotStorage(store, params_within_s=0))
    assert len(EntrepotStorage(store).get_trial(trial).params) == 3


def test_a_moment_in_which_the_store_is_away_loses_nothing() -> None:
    store = Counted()
    storage = EntrepotStorage(store, params_within_s=0.001)
    number = storage.create_new_trial(storage.create_new_study(MINIMIZE))
    store.fails = True
    storage.set_trial_param(number, "a", 0.5, FloatDistribution(0, 1))
    while not store.refused:
        pass
    assert EntrepotStorage(store).get_trial(number).params == {}
    storage.set_trial_state_values(number, TrialState.COMPLETE, [1.0])
    assert EntrepotStorage(store).get_trial(number).params == {"a": 0.5}


def test_what_is_not_yet_written_goes_before_what_another_wrote_meanwhile() -> None:
    store = MemoryStore()
    one = EntrepotStorage(store, params_within_s=10)
    two = EntrepotStorage(store)
    trial = suggested(one)
    two.set_trial_user_attr(trial, "by", "two")
    one.set_trial_user_attr(trial, "by", "one")
    one.set_trial_param(trial, "d", 0.5, FloatDistribution(0, 1))
    one.remove_session()
    for reader in (one, two, EntrepotStorage(store)):
        found = reader.get_trial(trial)
        assert (list(found.params), found.user_attrs) == (["a", "b", "c", "d"], {"by": "one"})


# --- long trials ------------------------------------------------------------------------


def test_no_record_of_a_long_trial_is_long_and_nothing_of_it_is_lost(store: MemoryStore) -> None:
    storage = EntrepotStorage(store)
    study = storage.create_new_study(MINIMIZE)
    trial = storage.create_new_trial(study)
    large = '"' * 100_000
    for step in range(2_000):
        storage.set_trial_intermediate_value(trial, step, step / 7)
        if step % 500 == 0:
            storage.set_trial_user_attr(trial, f"at {step}", large)
    storage.record_heartbeat(trial)
    wanted = {step: step / 7 for step in range(2_000)}
    for reader in (storage, EntrepotStorage(store)):
        found = reader.get_trial(trial)
        assert found.intermediate_values == wanted
        assert found.user_attrs == {f"at {step}": large for step in range(0, 2_000, 500)}
    records = [key for key in store.keys() if key.startswith("names/")]  # noqa: SIM118
    assert max(len(store._read(key) or b"") for key in records) < 100_000
    assert store.gc(0, dry_run=True).digests == []


def test_a_large_template_is_claimed_whole(store: MemoryStore) -> None:
    storage = EntrepotStorage(store)
    study = storage.create_new_study(MINIMIZE)
    steps = {step: step / 7 for step in range(20_000)}
    made = create_trial(value=1.0, intermediate_values=steps, user_attrs={"a": "b" * 200_000})
    trial = storage.create_new_trial(study, made)
    found = EntrepotStorage(store).get_trial(trial)
    assert found.intermediate_values == steps
    assert found.user_attrs == made.user_attrs


def test_a_large_attribute_of_a_study_is_a_blob_that_gc_leaves(store: MemoryStore) -> None:
    storage = EntrepotStorage(store)
    study = storage.create_new_study(MINIMIZE)
    storage.set_study_user_attr(study, "large", "x" * 300_000)
    assert store.gc(0, dry_run=True).digests == []
    assert EntrepotStorage(store).get_study_user_attrs(study) == {"large": "x" * 300_000}


# --- many trials ------------------------------------------------------------------------


def test_a_finished_block_is_one_read_for_others_and_says_the_same(folder: Path) -> None:
    storage = storage_in(folder)
    study = storage.create_new_study(MINIMIZE)
    done = create_trial(value=0.5, params={}, distributions={})
    for number in range(1_003):
        if number % 10:
            storage.create_new_trial(study, done)
        else:
            trial = storage.create_new_trial(study)
            storage.set_trial_user_attr(trial, "number", number)
            storage.set_trial_state_values(trial, TrialState.COMPLETE, [float(number)])
    before = storage.get_all_trials(study)
    assert (folder / f"names/optuna/{study}/segment/000000.json").is_file()
    assert storage.get_all_trials(study) == before
    other = storage_in(folder)
    assert other.get_all_trials(study) == before
    assert other.create_new_trial(study) == before[-1]._trial_id + 1
    with pytest.raises(UpdateFinishedTrialError):
        other.set_trial_user_attr(before[10]._trial_id, "late", True)


# --- what cannot be ---------------------------------------------------------------------


def test_what_cannot_be_read_costs_its_trial_alone(folder: Path) -> None:
    storage = storage_in(folder)
    study = storage.create_new_study(MINIMIZE)
    for _ in range(3):
        storage.set_trial_state_values(storage.create_new_trial(study), TrialState.COMPLETE, [1.0])
    block = folder / f"names/optuna/{study}/trial/000000"
    (block / "1.0.json").write_bytes(b'{"name":"')
    (block / "2.9.json").write_bytes(b"what is this")
    (block / "notes.json").write_text("hello")
    states = [trial.state for trial in storage_in(folder).get_all_trials(study)]
    assert states == [TrialState.COMPLETE, TrialState.FAIL, TrialState.COMPLETE]


@pytest.mark.parametrize(
    "meta",
    [
        {},
        {"is": "SLEEPING"},
        {"is": "RUNNING", "start": "yesterday"},
        {"is": "RUNNING", "params": '{"x": [7, "what is this"]}'},
        {"is": "RUNNING", "params": json.dumps({"x": [7, distribution_to_json(LETTERS)]})},
        {"is": "RUNNING", "steps": "[1, 2]"},
        {"is": "RUNNING", "values": '{"a": 1}'},
        {"is": "RUNNING", "body": "blob"},
        {"is": "COMPLETE", "values": "[1, 2]", "beat": "once"},
    ],
)
def test_a_record_that_says_what_cannot_be_costs_its_trial_alone(
    store: MemoryStore, meta: dict[str, str]
) -> None:
    storage = EntrepotStorage(store)
    study = storage.create_new_study(MINIMIZE)
    assert store.claim(f"optuna/{study}/trial/0/0", meta=meta)
    trial = storage.create_new_trial(study)
    storage.set_trial_state_values(trial, TrialState.COMPLETE, [1.0])
    states = [trial.state for trial in storage.get_all_trials(study)]
    assert states == [TrialState.FAIL, TrialState.COMPLETE]
    with pytest.raises(KeyError):
        storage.get_trial(trial - 1)


def test_a_trial_that_runs_does_not_wait_again(store: MemoryStore) -> None:
    storage = EntrepotStorage(store)
    trial = storage.create_new_trial(storage.create_new_study(MINIMIZE))
    with pytest.raises(StudyError, match="enqueue"):
        storage.set_trial_state_values(trial, TrialState.WAITING)
    assert storage.get_trial(trial).state is TrialState.RUNNING


@pytest.mark.parametrize(
    "options",
    [
        {"heartbeat_interval": 0},
        {"heartbeat_interval": 1e300},  # no thread can wait for so long
        {"heartbeat_interval": math.inf},
        {"heartbeat_interval": "10"},
        {"grace_period": math.nan},
        {"params_within_s": -1},
        {"grace_period": -1},
        {"root": ""},
        {"root": "a//b"},
    ],
)
def test_what_cannot_be_is_refused_where_it_is_typed(
    store: MemoryStore, options: dict[str, Any]
) -> None:
    with pytest.raises(ConfigurationError):
        EntrepotStorage(store, **options)


def test_an_attribute_that_json_cannot_say_is_refused_and_nothing_is_written(
    store: MemoryStore,
) -> None:
    storage = EntrepotStorage(store)
    study = storage.create_new_study(MINIMIZE)
    trial = storage.create_new_trial(study)
    with pytest.raises(TypeError):
        storage.set_trial_user_attr(trial, "key", object())
    with pytest.raises(TypeError):
        storage.set_study_user_attr(study, "key", object())
    assert storage.get_trial(trial).user_attrs == {}
    assert storage.get_study_user_attrs(study) == {}
