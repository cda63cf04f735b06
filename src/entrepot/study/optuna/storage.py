"""Optuna's storage over a store: what Optuna calls."""

from __future__ import annotations

import copy
import logging
import os
import threading
import uuid
from collections.abc import Callable, Container, Sequence
from datetime import datetime
from typing import Any

import optuna
from msgspec.structs import replace
from optuna.distributions import BaseDistribution, check_distribution_compatibility
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import BaseStorage
from optuna.storages._base import DEFAULT_STUDY_NAME_PREFIX
from optuna.storages._heartbeat import BaseHeartbeat
from optuna.study import StudyDirection
from optuna.study._frozen import FrozenStudy
from optuna.trial import FrozenTrial, TrialState

from entrepot.arguments import checked_seconds
from entrepot.errors import ConfigurationError, StoreError, StudyError
from entrepot.logs import why_of
from entrepot.store.base import Store
from entrepot.study.optuna.seen import TRIALS
from entrepot.study.optuna.slots import Body, body_of, started_now, text_of
from entrepot.study.optuna.studies import Attributes, Kind, Studies
from entrepot.study.optuna.trials import Trials

_logger = logging.getLogger(__name__)

StaleCallback = Callable[["optuna.Study", FrozenTrial], None]


class EntrepotStorage(BaseStorage, BaseHeartbeat):
    """Studies of Optuna's in a folder or a bucket that the machines have in common.

    To be given to ``optuna.create_study(storage=...)``; the rest of a script stays as it is. Any
    number of processes and threads may use one study at once. Numbers of trials have no gaps, a
    trial that waits is given to one, and of all that finish a trial exactly one is not told that it
    was finished already: each of these is a claim, and there is no lock.

    :param store: a store, or what :meth:`Store.open` takes: a path, ``s3://bucket/prefix``.
    :param root: what the names of all records here begin with.
    :param params_within_s: what a trial tries is written with its next report, attribute or finish,
        or after so many seconds, 10 at most; 0 writes each parameter by itself.
    :param heartbeat_interval: seconds between two signs of life of a trial; None for none.
    :param grace_period: seconds without one after which a trial is failed; by default twice that.
    :param heartbeat_stale_trial_callback: called with each trial that was failed so, such as
        ``optuna.storages.RetryHeartbeatStaleTrialCallback(max_retry=3)``.
    :raises ConfigurationError: an argument cannot be what it is.
    :raises StoreError: the store cannot be opened.
    """

    def __init__(
        self,
        store: Store | str | os.PathLike[str],
        *,
        root: str = "optuna",
        params_within_s: float = 0.05,
        heartbeat_interval: int | None = None,
        grace_period: int | None = None,
        heartbeat_stale_trial_callback: StaleCallback | None = None,
    ) -> None:
        for name, given in (
            ("heartbeat_interval", heartbeat_interval),
            ("grace_period", grace_period),
        ):
            if given is not None:
                checked_seconds(name, given)
        if not all(root.split("/")):
            raise ConfigurationError(f"the root is {root!r:.100}; it is a name, such as 'optuna'")
        self._store = store if isinstance(store, Store) else Store.open(store)
        self._root = root
        if not 0 <= params_within_s <= 10:
            raise ConfigurationError(
                f"params_within_s is from 0 to 10 seconds, got {params_within_s!r:.100}"
            )
        self._soon_s = params_within_s
        self._interval = heartbeat_interval
        self._grace = grace_period
        self._callback = heartbeat_stale_trial_callback
        self._start()

    def _start(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._known = Studies(self._store, self._root)
        self._trials: dict[int, Trials] = {}
        self._attributes: dict[int, Attributes] = {}

    def __getstate__(self) -> dict[str, Any]:
        # For a process that is spawned with it: what was read is read anew.
        kept = ("_store", "_root", "_soon_s", "_interval", "_grace", "_callback")
        return {name: self.__dict__[name] for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()

    def __repr__(self) -> str:
        return f"EntrepotStorage({self._store.url!r}, root={self._root!r})"

    @property
    def store(self) -> Store:
        """Where it all is."""
        return self._store

    def close(self) -> None:
        """Write what is not yet written, and let go of the store's connections; Optuna never calls
        it."""
        self.remove_session()
        self._store.close()

    def remove_session(self) -> None:
        """Write what is not yet written; Optuna calls it at the end of ``optimize``."""
        if self._pid == os.getpid():
            for trials in list(self._trials.values()):
                trials.flush()

    @property
    def _studies(self) -> Studies:
        if self._pid != os.getpid():
            # A forked child: its parent's locks may be held, and its records are not the child's.
            self._start()
        return self._known

    def _trials_of(self, study_id: int) -> Trials:
        """:raises KeyError: there is no such study."""
        self._studies.get(study_id)
        with self._lock:
            if study_id not in self._trials:
                base = f"{self._root}/{study_id}"
                self._trials[study_id] = Trials(self._store, base, study_id, self._soon_s)
            return self._trials[study_id]

    def _trial(self, trial_id: int) -> tuple[Trials, int]:
        """:raises KeyError: there is no such study; whether the trial is there is not looked at."""
        study_id, number = divmod(trial_id, TRIALS)
        return self._trials_of(study_id), number

    def _attributes_of(self, study_id: int) -> Attributes:
        """:raises KeyError: there is no such study."""
        self._studies.get(study_id)
        with self._lock:
            if study_id not in self._attributes:
                self._attributes[study_id] = Attributes(self._store, f"{self._root}/{study_id}")
            return self._attributes[study_id]

    # --- studies ------------------------------------------------------------------------

    def create_new_study(
        self, directions: Sequence[StudyDirection], study_name: str | None = None
    ) -> int:
        name = DEFAULT_STUDY_NAME_PREFIX + str(uuid.uuid4()) if study_name is None else study_name
        return self._studies.make(name, directions).id

    def delete_study(self, study_id: int) -> None:
        self._studies.delete(study_id)
        with self._lock:
            self._trials.pop(study_id, None)
            self._attributes.pop(study_id, None)

    def set_study_user_attr(self, study_id: int, key: str, value: Any) -> None:
        self._attributes_of(study_id).set("user", key, value)

    def set_study_system_attr(self, study_id: int, key: str, value: Any) -> None:
        self._attributes_of(study_id).set("system", key, value)

    def get_study_id_from_name(self, study_name: str) -> int:
        return self._studies.of_name(study_name).id

    def get_study_name_from_id(self, study_id: int) -> str:
        return self._studies.get(study_id).name

    def get_study_directions(self, study_id: int) -> list[StudyDirection]:
        return self._studies.get(study_id).directions

    def get_study_user_attrs(self, study_id: int) -> dict[str, Any]:
        return self._attrs(study_id, "user")

    def get_study_system_attrs(self, study_id: int) -> dict[str, Any]:
        return self._attrs(study_id, "system")

    def _attrs(self, study_id: int, kind: Kind) -> dict[str, Any]:
        return self._attributes_of(study_id).get(kind)

    def get_all_studies(self) -> list[FrozenStudy]:
        return [
            FrozenStudy(
                study_name=known.name,
                direction=None,
                directions=known.directions,
                user_attrs=copy.deepcopy(self._attrs(known.id, "user")),
                system_attrs=copy.deepcopy(self._attrs(known.id, "system")),
                study_id=known.id,
            )
            for known in self._studies.all()
        ]

    # --- writing trials -----------------------------------------------------------------

    def create_new_trial(self, study_id: int, template_trial: FrozenTrial | None = None) -> int:
        trials = self._trials_of(study_id)
        made = started_now() if template_trial is None else body_of(template_trial)
        return study_id * TRIALS + trials.make(made)

    def set_trial_param(
        self,
        trial_id: int,
        param_name: str,
        param_value_internal: float,
        distribution: BaseDistribution,
    ) -> None:
        trials, number = self._trial(trial_id)

        def change(body: Body) -> Body:
            before = trials.distributions.get(param_name)
            if before is not None:
                check_distribution_compatibility(before, distribution)
            return body.with_param(param_name, param_value_internal, distribution)

        trials.write_soon(number, change)

    def set_trial_state_values(
        self, trial_id: int, state: TrialState, values: Sequence[float] | None = None
    ) -> bool:
        trials, number = self._trial(trial_id)
        said = None if values is None else [float(value) for value in values]
        if state.is_finished():
            trials.finish(number, Body(state.name, end=text_of(datetime.now()), values=said))
            return True
        if state is TrialState.RUNNING:
            changed = trials.take_up(number)
        else:
            changed = trials.get(number).state is TrialState.WAITING
            if not changed:
                self.check_trial_is_updatable(trial_id, trials.get(number).state)
                raise StudyError(
                    f"trial {number} runs and cannot wait again; enqueue another one with the "
                    f"same parameters"
                )
        if said is not None:
            trials.write(number, lambda body: replace(body, values=said))
        return changed

    def set_trial_intermediate_value(
        self, trial_id: int, step: int, intermediate_value: float
    ) -> None:
        trials, number = self._trial(trial_id)
        trials.write(number, lambda body: body.with_step(step, intermediate_value))

    def set_trial_user_attr(self, trial_id: int, key: str, value: Any) -> None:
        trials, number = self._trial(trial_id)
        trials.write(number, lambda body: body.with_user(key, value))

    def set_trial_system_attr(self, trial_id: int, key: str, value: Any) -> None:
        trials, number = self._trial(trial_id)
        trials.write(number, lambda body: body.with_system(key, value))

    # --- reading trials -----------------------------------------------------------------

    def get_trial(self, trial_id: int) -> FrozenTrial:
        trials, number = self._trial(trial_id)
        return trials.get(number)

    def get_trial_id_from_study_id_trial_number(self, study_id: int, trial_number: int) -> int:
        self._trials_of(study_id).check(trial_number)
        return study_id * TRIALS + trial_number

    def get_trial_number_from_id(self, trial_id: int) -> int:
        trials, number = self._trial(trial_id)
        trials.check(number)
        return number

    def get_all_trials(
        self,
        study_id: int,
        deepcopy: bool = True,
        states: Container[TrialState] | None = None,
    ) -> list[FrozenTrial]:
        trials = self._trials_of(study_id)
        found = trials.waiting() if states == (TrialState.WAITING,) else trials.all()
        if states is not None:
            found = [trial for trial in found if trial.state in states]
        return copy.deepcopy(found) if deepcopy else found

    def check_trial_is_updatable(self, trial_id: int, trial_state: TrialState) -> None:
        if trial_state.is_finished():
            raise UpdateFinishedTrialError(
                f"trial {self.get_trial_number_from_id(trial_id)} is finished and cannot be changed"
            )

    # --- signs of life ------------------------------------------------------------------

    def record_heartbeat(self, trial_id: int) -> None:
        try:
            trials, number = self._trial(trial_id)
            trials.beat(number)
        except (StoreError, KeyError) as error:
            # Raised, it would end the thread that beats, and the trial with it.
            _logger.warning(
                "a sign of life of trial %s could not be written: %s",
                trial_id,
                why_of(error),
                extra={"trial": trial_id, "store": self._store.url, "error": str(error)},
            )

    def _get_stale_trial_ids(self, study_id: int) -> list[int]:
        assert self._interval is not None
        grace = 2 * self._interval if self._grace is None else self._grace
        silent = self._trials_of(study_id).silent(grace)
        return [study_id * TRIALS + number for number in silent]

    def get_heartbeat_interval(self) -> int | None:
        return self._interval

    def get_heartbeat_stale_trial_callback(self) -> StaleCallback | None:
        return self._callback
