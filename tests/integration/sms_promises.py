"""What is promised of the search over real messages, wherever it ran: a function each."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import NamedTuple

from entrepot.store import Store
from entrepot.study.trials import DONE, PRUNED, RUNNING, Attempt
from examples.sms_search.run import ALWAYS_HAM, reports
from examples.sms_search.search import NAME, SAMPLER, SPACE, study_of

GOOD_LOSS = 0.2

TOLD = re.compile(r"^trial (\d+): (\S+); far half ([0-9a-f]{12}) -> ([0-9a-f]{12})$", re.M)


class Told(NamedTuple):
    """What one that searched said of a trial: its point, and the hash of the far half's
    parameters before and after."""

    trial: int
    point: str
    before: str
    after: str


def running(store: Store, name: str) -> int:
    """Trials that are at work."""
    return sum(each.state == RUNNING for each in study_of(store, "who looks", name).trials())


def told_in_text(printed: str) -> list[Told]:
    return [Told(int(number), *rest) for number, *rest in TOLD.findall(printed)]


def told_in_json(printed: str) -> list[Told]:
    """Of what was printed with ``--json``; other lines are logs."""
    lines = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    return [Told(**line) for line in lines if "before" in line]


class Searched:
    """What is left of a search.

    :param store: where its study is.
    :param said: what each that searched said, by the name under which it did.
    :ivar attempts: the attempts that speak, by trial.
    :ivar records: the names of all records of attempts.
    """

    def __init__(
        self,
        store: Store,
        said: Mapping[str, list[Told]],
        *,
        trials: int,
        epochs: int,
        name: str = NAME,
    ) -> None:
        self.said = said
        self.trials = trials
        self.epochs = epochs
        self.name = name
        self.attempts: list[Attempt] = study_of(store, "who looks", name).trials()
        self.records = [each.name for each in store.scan(f"{name}/trial/")]

    def of(self, state: str) -> list[Attempt]:
        return [each for each in self.attempts if each.state == state]

    @property
    def told(self) -> list[Told]:
        """All that was said, by trial."""
        return sorted(one for each in self.said.values() for one in each)


def each_trial_ran_once(searched: Searched) -> None:
    """Over all machines: in the record, and by what they say themselves."""
    numbers = list(range(searched.trials))
    assert [each.trial for each in searched.attempts] == numbers
    names = [f"{searched.name}/trial/{number}/0" for number in numbers]
    assert sorted(searched.records) == sorted(names)
    assert [each.trial for each in searched.told] == numbers


def the_points_are_those_of_one_machine_alone(searched: Searched) -> None:
    points = [each.meta.point for each in searched.attempts]
    assert points == [str(SAMPLER.ask(SPACE, number)) for number in range(searched.trials)]
    assert [each.point for each in searched.told] == points


def the_configurations_differ(searched: Searched) -> None:
    assert len({each.meta.point for each in searched.attempts}) == searched.trials


def the_record_says_who_ran_which(searched: Searched) -> None:
    ran = {one.trial: who for who, told in searched.said.items() for one in told}
    assert {each.trial: each.meta.who for each in searched.attempts} == ran


def the_best_is_far_better_than_always_saying_ham(searched: Searched) -> None:
    scores = [float(each.meta.score) for each in searched.of(DONE)]
    assert min(scores) < GOOD_LOSS < ALWAYS_HAM


def what_was_pruned_stopped_early_and_is_not_among_the_finished(searched: Searched) -> None:
    done, pruned = searched.of(DONE), searched.of(PRUNED)
    assert pruned, "nothing was pruned"
    assert len(done) + len(pruned) == searched.trials
    assert {reports(each) for each in done} == {searched.epochs}
    assert all(1 <= reports(each) < searched.epochs for each in pruned)


def the_far_half_learned(searched: Searched) -> None:
    """Its parameters are others after each trial, from others for each; and the loss fell."""
    assert all(each.before != each.after for each in searched.told)
    assert len({each.before for each in searched.told}) == searched.trials
    best = min(searched.of(DONE), key=lambda each: float(each.meta.score))
    assert best.tail.best[-1] < 0.9 * best.tail.best[0]
