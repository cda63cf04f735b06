"""The search over real messages: a model whose halves are in different processes, trained inside a
study whose trials are, and neither knows of the other."""

from __future__ import annotations

import pytest

from entrepot.store import Store
from entrepot.study.trials import DONE
from examples.sms_search.run import search
from tests.integration import sms_promises
from tests.integration.sms_promises import Searched, told_in_text

TRIALS, EPOCHS, MESSAGES = 8, 3, 600

NO_TORCH = "raise ImportError('there is no torch on this machine')\n"


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Searched:
    """What two processes have left."""
    folder = tmp_path_factory.mktemp("search")
    without = folder / "without"
    without.mkdir()
    (without / "torch.py").write_text(NO_TORCH)
    url = str(folder / "store")
    printed = search(url, 2, TRIALS, EPOCHS, MESSAGES, clean={"PYTHONPATH": str(without)})
    said = {f"m{worker}": told_in_text(each) for worker, each in enumerate(printed)}
    with Store.open(url, read_only=True) as store:
        return Searched(store, said, trials=TRIALS, epochs=EPOCHS)


def test_each_trial_ran_once_over_all_machines(searched: Searched) -> None:
    sms_promises.each_trial_ran_once(searched)


def test_the_points_are_those_that_one_machine_alone_would_have_tried(searched: Searched) -> None:
    sms_promises.the_points_are_those_of_one_machine_alone(searched)


def test_the_configurations_differ(searched: Searched) -> None:
    sms_promises.the_configurations_differ(searched)


def test_the_record_says_who_ran_which(searched: Searched) -> None:
    sms_promises.the_record_says_who_ran_which(searched)


def test_the_best_is_far_better_than_always_saying_ham(searched: Searched) -> None:
    sms_promises.the_best_is_far_better_than_always_saying_ham(searched)


def test_what_was_pruned_stopped_early_and_is_not_among_the_finished(searched: Searched) -> None:
    sms_promises.what_was_pruned_stopped_early_and_is_not_among_the_finished(searched)


def test_tokens_came_from_where_there_is_no_torch(searched: Searched) -> None:
    """Its process would have ended at an import of torch, and no trial would have had a token."""
    assert len(searched.of(DONE)) >= 1


def test_the_far_half_learned(searched: Searched) -> None:
    sms_promises.the_far_half_learned(searched)
