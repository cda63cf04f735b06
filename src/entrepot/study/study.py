"""A search over machines as one loop: what to try next, who does, and what came of it."""

from __future__ import annotations

import json
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from entrepot.arguments import LONGEST_S
from entrepot.errors import BudgetShrank, ConfigurationError, PointError, StoreError, StudyError
from entrepot.logs import why_of
from entrepot.store.layout import key_of
from entrepot.store.record import EMPTY, Fault
from entrepot.study import closing as segments
from entrepot.study.beating import Heart
from entrepot.study.checks import number, whole
from entrepot.study.fronts import front
from entrepot.study.goals import Goal, checked_goal, losses
from entrepot.study.held import Held, check_settled, claimed, history, settle
from entrepot.study.history import History
from entrepot.study.leaving import terminated
from entrepot.study.looking import STALE, abandoned, curves
from entrepot.study.naming import checked_study
from entrepot.study.pruners import Pruner
from entrepot.study.rescue import MAX_ATTEMPTS, enqueue, rescue
from entrepot.study.samplers import Sampler
from entrepot.study.space import Point, Space
from entrepot.study.table import Table, table
from entrepot.study.trial import Trial
from entrepot.study.trials import (
    DONE,
    RELEASED,
    RUNNING,
    Attempt,
    checked_who,
    trial_name,
)
from entrepot.study.writing import write_whole

if TYPE_CHECKING:
    from entrepot.store.base import Store

logger = logging.getLogger(__name__)

LOOK_S = 0.5
"""Longest wait, in seconds, between two looks at what others do, for a worker with nothing to do;
it begins at a twentieth of that. Stores across a network are looked at ten times more rarely."""

LOOK_FOR_GONE_S = 60.0
"""Longest time, in seconds, between two looks for trials that fell silent; a tenth of ``stale``
where that is less."""

TIDY_S = 60.0
"""Seconds between two looks for blocks of trials to close."""


class Study:
    """A study in a store, as the machine that runs this process sees it::

        study = Study(store, "spam", space, Sampler.tpe(goal="min"), pruner=Pruner.median())
        for trial in study.work(trials=100):
            with trial:
                for epoch in range(20):
                    if trial.report(train(trial.point, epoch)).should_stop:
                        break
        print(study.best())

    The same on as many machines as there are: they have the store in common and nothing else.

    :param store: a store, or what :meth:`entrepot.store.Store.open` takes.
    :param name: the study's, such as ``spam`` or ``team/spam``.
    :param space: what is searched.
    :param sampler: where to look; by default ``Sampler.sobol()``.
    :param pruner: says of each report whether the trial should stop; by default nobody does.
    :param goal: what better means; by default the sampler's, where it has one, or ``"min"``.
    :param me: who runs the trials, for people; host and process by default.
    :param stale: seconds of silence after which a trial is taken from whoever ran it; some 30
        years at most.
    :param max_attempts: attempts at a trial that may fall silent before it is written off.
    :param clock: seconds, going up.
    :param sleep: waits for seconds.
    :raises ConfigurationError: one of these cannot be.
    """

    def __init__(
        self,
        store: Store | str | os.PathLike[str],
        name: str,
        space: Space,
        sampler: Sampler | None = None,
        *,
        pruner: Pruner | None = None,
        goal: Goal | None = None,
        me: str | None = None,
        stale: float = STALE,
        max_attempts: int = MAX_ATTEMPTS,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        from entrepot.store.base import Store

        if not isinstance(space, Space):
            raise ConfigurationError(
                f"the space is {space!r:.100}; make one with Space().real(...)"
            )
        sampler = Sampler.sobol() if sampler is None else sampler
        if not isinstance(sampler, Sampler):
            raise ConfigurationError(f"the sampler is {sampler!r:.100}; take Sampler.sobol(), say")
        if pruner is not None and not isinstance(pruner, Pruner):
            raise ConfigurationError(f"the pruner is {pruner!r:.100}; take Pruner.median(), say")
        own = getattr(sampler, "goal", None)
        if goal is None:
            goal = "min" if own is None else own
        elif own is not None and checked_goal(own) != checked_goal(goal):
            raise ConfigurationError(
                f"the sampler looks for {own!r}, and the study's goal is {goal!r}; leave one out"
            )
        self.name = checked_study(name)
        self.store = store if isinstance(store, Store) else Store.open(store)
        self.space = space
        self.sampler = sampler
        self.pruner = pruner
        self.goal: Goal = checked_goal(goal)
        self.me = checked_who(me or f"{socket.gethostname()[:180]}:{os.getpid()}")
        self.stale = number("stale", stale, 0, LONGEST_S)
        self.max_attempts = whole("max_attempts", max_attempts, 1)
        self._clock = clock
        self._sleep = sleep
        self._tidied_at = clock() - TIDY_S
        self._look_at = clock()
        self._gone: dict[int, str] = {}
        self._described = False

    # --- the loop -----------------------------------------------------------------------

    def work(self, trials: int, *, wait: bool = True) -> Iterator[Trial]:
        """Trials to run, one after another, until all of the budget are finished.

        First what was handed back, then what somebody left behind for ``stale`` seconds, then new
        ones. With none left it waits for those that others run, since they may have to be rescued.

        While a trial is in hand a thread writes its record now and then, so that a long epoch is
        not taken for a dead machine, and SIGTERM hands it back.

        :param trials: the budget of the study, over all machines: numbers 0 to ``trials - 1``.
        :param wait: without, end when there is nothing to do just now.
        One that this loop hands back it leaves to others, and ends when nothing else is left.

        :raises BudgetShrank: a trial beyond the budget was begun already.
        :raises GoalMismatch: others search it with another goal.
        :raises StudyError: a trial ended without a report, a score or a word; it was handed back.
        :raises SpaceError: the space has nothing to search.
        :raises StoreError: the store cannot be read or written.
        """
        budget = whole("trials", trials, 1)
        found = self._check_budget(budget)
        settle(self.store, self.name, self.goal, anew=True)
        self._tell_of_others(found, budget)
        return self._work(budget, wait)

    def _check_budget(self, budget: int) -> History:
        found = history(self.store, self.name)
        beyond = max(found.trials, default=-1)
        if beyond >= budget:
            raise BudgetShrank(
                f"the study {self.name!r} has a trial {beyond:,} already, and a budget of "
                f"{budget:,} ends before it; give at least {beyond + 1:,}"
            )
        return found

    def _tell_of_others(self, found: History, budget: int) -> None:
        """Who changed the space and kept the name may find that the loop ends at once: why."""
        others = sum(one.meta.space not in ("", self.space.digest) for one in found)
        if others:
            logger.warning(
                "%s of the %s trials that %r may have are of another space: they use up the "
                "budget, and nothing is learnt from them; give the study another name for this "
                "space, or a larger budget",
                f"{others:,}",
                f"{budget:,}",
                self.name,
            )

    def _work(self, budget: int, wait: bool) -> Iterator[Trial]:
        heart = Heart(self.store, max(self.stale / 4, 0.05))
        lost: set[int] = set()
        left: set[int] = set()
        idle_s = LOOK_S / 20
        self._describe()
        with terminated():
            while True:
                trial = self._next(budget, lost, left)
                if trial is None:
                    if self._is_over(budget, left) or not wait:
                        self._tidy()
                        return
                    self._sleep(idle_s)
                    idle_s = min(idle_s * 1.5, self._look_s())
                    lost.clear()  # a claim that was torn can be had when it is old enough
                    continue
                idle_s = LOOK_S / 20
                heart.start(trial._held)
                try:
                    yield trial
                except GeneratorExit:
                    self._abandon(trial)
                    raise
                finally:
                    heart.stop()
                self._abandon(trial)
                if trial.silent:
                    raise StudyError(
                        f"trial {trial.number} ended without a report or a score, and was handed "
                        f"back; run it in `with trial:` and report a number, or release() it"
                    )
                left.add(trial.number)

    def _abandon(self, trial: Trial) -> None:
        """One that was not entered, or whose loop was left: others may have it."""
        if not trial._over:
            trial.silent = True
            trial.__exit__(GeneratorExit, GeneratorExit(), None)

    def _next(self, budget: int, lost: set[int], left: set[int]) -> Trial | None:
        """A trial that is ours now, or None if there is none to be had."""
        found = history(self.store, self.name)
        for lost_one in self._to_rescue(found, budget, left):
            trial = self._rescued(found.trials[lost_one])
            if trial is not None:
                return trial
        lost &= {number for number in lost if number not in found.trials}
        free = found.next_free()
        while free < budget:
            if free not in lost and free not in found.trials:
                point = self._ask(free, found)
                if point is None:
                    return None
                held = claimed(
                    self.store, point, study=self.name, trial=free, me=self.me, goal=self.goal
                )
                if held is not None:
                    return self._trial(held, point)
                lost.add(free)
                if self.sampler.looks_back:
                    # What the other has is to be kept away from.
                    found = history(self.store, self.name)
            free += 1
        return None

    def _to_rescue(self, found: History, budget: int, left: set[int]) -> list[int]:
        """Trials of our space that somebody handed back, and those that somebody left behind."""
        unfinished = {
            one.trial: one
            for one in found.unfinished()
            if one.trial < budget and self._is_ours(one)
        }
        waiting = [
            number
            for number, one in unfinished.items()
            if one.state == RELEASED and number not in left
        ]
        runs = any(one.state == RUNNING for one in unfinished.values())
        # The store's clock is read by a write: not for each trial, where others run theirs.
        if runs and self._clock() >= self._look_at:
            self._look_at = self._clock() + min(self.stale / 10, LOOK_FOR_GONE_S)
            gone = abandoned(self.store, study=self.name, stale=self.stale)
            trials = found.trials
            self._gone = {one.trial: trials[one.trial].nonce for one in gone}
        # Those that were not written since are as silent as they were, and a while longer.
        return waiting + [
            number
            for number, nonce in self._gone.items()
            if number in unfinished and unfinished[number].nonce == nonce
        ]

    def _is_ours(self, attempt: Attempt) -> bool:
        """Whether its point is one of our space. Another's is left to whoever has that space."""
        if attempt.meta.space not in ("", self.space.digest):
            return False
        try:
            self.space.read(attempt.meta.point)
        except PointError:
            return False
        return True

    def _ask(self, free: int, found: History) -> Point | None:
        seen = found.observed(self.space) if self.sampler.looks_back else ()
        return self.sampler.ask(self.space, free, seen)

    def _rescued(self, last: Attempt) -> Trial | None:
        held = rescue(
            self.store,
            study=self.name,
            trial=last.trial,
            me=self.me,
            max_attempts=self.max_attempts,
        )
        # A trial's point stays what it was, whoever tries it.
        return None if held is None else self._trial(held, self.space.read(held.point))

    def _trial(self, held: Held, point: Point) -> Trial:
        return Trial(self.store, held, point, self._judge, self._ended)

    def _judge(self, number: int, reports: list[float]) -> str | None:
        if self.pruner is None:
            return None
        others = history(self.store, self.name).tails(but=number)
        return self.pruner.verdict(reports, others, self.goal)

    def _ended(self, _trial: Trial) -> None:
        if self._clock() - self._tidied_at >= TIDY_S:
            try:
                self._tidy()
            except StoreError as fault:
                # The trial's end is written, or its own error is under way; neither waits for this.
                logger.warning(
                    "finished trials are not tidied: %s", why_of(fault), extra={"why": str(fault)}
                )

    def _tidy(self) -> None:
        self._tidied_at = self._clock()
        segments.compact(self.store, study=self.name)

    def _is_over(self, budget: int, left: set[int]) -> bool:
        """Whether there is nothing left that anybody may have to run."""
        found = history(self.store, self.name)
        for attempt in found.unfinished():
            handed_back = attempt.trial in left and attempt.state == RELEASED
            if (
                attempt.trial < budget
                and not handed_back
                and self._is_ours(attempt)
                and not self._is_strange(attempt.trial, attempt.attempt + 1)
            ):
                return False
        free = found.next_free()
        while free < budget and self._is_strange(free, 0):
            free = found.next_free(free + 1)
        return free >= budget or self._ask(free, found) is None

    def _is_strange(self, number: int, attempt: int) -> bool:
        """Whether somebody else's file, or a later release's, has its name: nobody gets it."""
        fault = self.store.skipped.faults.get(key_of(trial_name(self.name, number, attempt)))
        return fault is not None and fault is not Fault.TORN

    def _look_s(self) -> float:
        return LOOK_S if self.store.url.startswith(("/", "file:", "memory:")) else 10 * LOOK_S

    def _describe(self) -> None:
        """Leave what the space is beside the trials, for who looks at them later."""
        if self._described or self.store.read_only:
            return
        self._described = True
        name = f"{self.name}/space/{self.space.digest}"
        if self.store.resolve(name) is None:
            self.store.claim(name, EMPTY, {"space": json.dumps(self.space.to_dict())})

    # --- looking ------------------------------------------------------------------------

    def history(self) -> History:
        """All trials, with what is new; those of another space are counted."""
        found = history(self.store, self.name)
        found.observed(self.space)
        return found

    def trials(self) -> list[Attempt]:
        """The attempt that speaks for each trial, by trial."""
        return list(history(self.store, self.name))

    def curves(self) -> dict[int, list[float]]:
        """What each trial reported; see :func:`entrepot.study.curves`."""
        return curves(self.store, study=self.name)

    def best(self) -> Any:
        """The best attempt of this space that is done, of equals the first; with several goals,
        all that no other beats in every one of them, by trial.

        :raises StudyError: none is done yet.
        :raises GoalMismatch: it is searched with another goal, so that its best is another.
        """
        check_settled(self.store, self.name, self.goal)
        found = history(self.store, self.name)
        scored = [one for one in found if one.state == DONE and self._scores(one)]
        done = [one for one in scored if self._is_ours(one)]
        if not done:
            others = f"; {len(scored):,} of another space are" if scored else ""
            raise StudyError(f"no trial of {self.name!r} is done yet{others}")
        reached = {one.trial: losses(one.score, self.goal) for one in done}
        if isinstance(self.goal, str):
            return min(done, key=lambda one: (reached[one.trial], one.trial))
        return [done[place] for place in front([reached[one.trial] for one in done])]

    def table(self) -> Table:
        """All trials as rows, the best first; printed, the first of them.

        :raises GoalMismatch: it is searched with another goal.
        """
        check_settled(self.store, self.name, self.goal)
        return table(history(self.store, self.name), self.goal)

    def influence(self, score: str | None = None) -> dict[str, float]:
        """How much each knob decides, from 0 to 1; see :mod:`entrepot.study.influence`.

        :param score: of several goals, which.
        """
        return self.table().influence(score)

    def plot(self, path: str | os.PathLike[str] = "history.html") -> Path:
        """Write a page with charts of the study, complete in one file; see
        :mod:`entrepot.study.page`.

        :raises ConfigurationError: the file cannot be written.
        """
        from entrepot.study.page import study_page

        return write_whole(path, study_page(self.store, self.name, self.table()).encode())

    def _scores(self, attempt: Attempt) -> bool:
        """Whether its score is one of the study's goal: another script's may not be."""
        try:
            losses(attempt.score, self.goal)
        except ConfigurationError:
            return False
        return True

    def enqueue(self, point: Point | dict[str, Any]) -> int:
        """Have a point of one's own tried first, and return its trial's number.

        :raises PointError: it is none of the space's.
        """
        made = point if isinstance(point, Point) else self.space.point(point)
        if made.space != self.space:
            made = self.space.read(str(made))
        return enqueue(self.store, made, study=self.name, me=self.me, goal=self.goal)

    def __repr__(self) -> str:
        return f"<Study {self.name!r} in {self.store.url}>"
