"""One trial as the loop has it: a context manager that writes down how it ended."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, SupportsFloat

from entrepot.arguments import shown
from entrepot.errors import (
    BadRecord,
    CorruptBlob,
    MissingBlob,
    ScoreNotFinite,
    StoreError,
    StudyError,
    TrialLost,
)
from entrepot.errors.root import sentence_of
from entrepot.logs import why_of
from entrepot.study.curves import Tail, longer, number_of
from entrepot.study.goals import Score
from entrepot.study.held import Held, direction_of, write
from entrepot.study.space import Point
from entrepot.study.trials import DONE, FAILED, PRUNED, RELEASED, RUNNING

if TYPE_CHECKING:
    from typing import Self

    from entrepot.store.base import Store

logger = logging.getLogger(__name__)

_FOR_GOOD = (BadRecord, CorruptBlob, MissingBlob)
"""What a store says of what it was given or asked for: whoever tries the trial next is told so."""


@dataclass(frozen=True)
class Verdict:
    """What a pruner says of a report.

    :ivar because: why the trial should stop; None to go on.
    """

    because: str | None = None

    @property
    def should_stop(self) -> bool:
        """Whether it should stop. Nothing stops by itself: the loop does."""
        return self.because is not None


Judge = Callable[[int, list[float]], str | None]
"""What a pruner says of a trial's number and its reports."""


class Trial:
    """A trial that is ours to run. Leaving the ``with`` writes how it ended:

    * done, with the last report or :attr:`score`;
    * pruned, when the last report's verdict was to stop;
    * failed, by an exception, which passes on, and by a score that is NaN or infinite, which does
      not: the next trial comes;
    * released, so that another may have it at once, by Ctrl-C, SIGTERM or the end of the loop, when
      it ends without a report or a score, and by an error of the store in one of the methods here,
      which passes on: the trial is not to blame for that.

    An end that the store did not take is written once more. While it takes nothing the trial stays
    running, until somebody finds it abandoned.

    A trial that was lost to a rescue meanwhile ends its ``with`` quietly: the next one comes.

    :ivar number: the trial's number.
    :ivar attempt: which attempt at it this is, from 0.
    :ivar point: what to try; reads like a dictionary.
    :ivar reports: what was reported so far.
    :ivar score: set it where the last report is not the score: a number, or one for each name of
        the goal.
    """

    def __init__(
        self, store: Store, held: Held, point: Point, judge: Judge, ended: Callable[[Trial], None]
    ) -> None:
        self.number = held.trial
        self.attempt = held.attempt
        self.point = point
        self.reports: list[float] = []
        self.score: Score | None = None
        self.silent = False
        """Whether it ended without a report, a score or a word."""
        self._store = store
        self._held = held
        self._judge = judge
        self._ended = ended
        self._verdict = Verdict()
        self._over = False
        self._tail = Tail(0, (), None)
        self._fault: StoreError | None = None
        """What the store said last when it did not do what was asked of it here."""
        self._unwritten: tuple[str, Score | None, str] | None = None
        """The end that it did not take: state, score, and why."""

    @property
    def checkpoint(self) -> bytes | None:
        """What an attempt at this trial kept last with :meth:`keep`; None if none did."""
        said = self._held.said
        if said is None or not said.kept:
            return None
        with self._asking():
            return self._store.get(said.kept)

    def report(self, value: SupportsFloat) -> Verdict:
        """Write down one more number, an epoch's loss say, and hear what the pruner thinks.

        :raises TrialLost: the trial was rescued by somebody else; leave the ``with``.
        :raises ConfigurationError: it is not a number.
        """
        self._check()
        self.reports.append(number_of(value))
        self._tail = longer(self._tail, self.reports[-1], direction_of(self._held.goal))
        with self._asking():
            self._write(RUNNING)
            self._verdict = Verdict(self._judge(self.number, self.reports))
        return self._verdict

    def keep(self, data: bytes) -> None:
        """Put a checkpoint, which the next attempt finds should this one be cut short.

        :raises TrialLost: the trial was rescued by somebody else; leave the ``with``.
        """
        self._check()
        with self._asking():
            self._write(RUNNING, checkpoint=self._store.put(data))

    def finish(self, score: Score | None = None) -> None:
        """It is done, with this score, or the last report's; leaving the ``with`` does the same.

        With one that is NaN or infinite it has failed, and its record says with which.

        :raises StudyError: there is no score, or none of the goal's.
        """
        self._check()
        self._finish(self.score if score is None else score)

    def prune(self, because: str) -> None:
        """It is not worth going on with."""
        self._check()
        self._end(PRUNED, because=because)

    def release(self) -> None:
        """Somebody else may have it, at once."""
        self._check()
        self._end(RELEASED)

    # --- with ---------------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if self._over:
            return False
        if isinstance(error, TrialLost):
            _tell("trial %s was lost: %s", self.number, error)
            self._done()
            return True
        try:
            if error is None:
                self._leave_or_again()
            elif error is self._fault and not isinstance(error, _FOR_GOOD):
                self._end(*(self._unwritten or (RELEASED,)))
            elif isinstance(error, Exception):
                self._end(FAILED, because=f"{type(error).__name__}: {sentence_of(error)}")
            else:
                self._end(RELEASED)
        except TrialLost as lost:
            _tell("trial %s was lost: %s", self.number, lost)
        except StoreError as fault:
            if error is None:
                raise
            # The error that is under way says more; the trial will be found abandoned.
            _tell("the end of trial %s is not written: %s", self.number, fault)
        finally:
            self._done()
        return False

    def _leave_or_again(self) -> None:
        try:
            self._leave()
        except StoreError as fault:
            if self._unwritten is None or isinstance(fault, _FOR_GOOD):
                raise
            _tell("the end of trial %s is written once more: %s", self.number, fault)
            self._end(*self._unwritten)

    def _leave(self) -> None:
        if self._verdict.because is not None:
            self._end(PRUNED, because=self._verdict.because)
        elif self.reports or self.score is not None:
            try:
                self._finish(self.score)
            except StudyError as fault:
                if isinstance(fault, TrialLost):
                    raise
                self._end(FAILED, because=str(fault))
                raise
        else:
            self.silent = True
            self._end(RELEASED)

    def _finish(self, score: Score | None) -> None:
        try:
            self._end(DONE, score=score)
        except ScoreNotFinite:
            said = self.reports[-1] if score is None else score
            logger.warning(
                "trial %s has no finite score: %s",
                self.number,
                shown(said),
                extra={"trial": self.number},
            )
            self._end(FAILED, score=score, because=f"its score is {said!r:.200}, and not finite")

    def _check(self) -> None:
        if self._over:
            raise StudyError(f"trial {self.number} is over; the loop gives the next")

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """What a store raises within is the store's own fault, and none of what is run."""
        self._unwritten = None
        try:
            yield
        except StoreError as fault:
            self._fault = fault
            raise

    def _end(self, state: str, score: Score | None = None, because: str = "") -> None:
        with self._asking():
            try:
                self._write(state, score=score, because=because)
            except StoreError:
                self._unwritten = (state, score, because)
                raise
        self._done()

    def _write(
        self, state: str, *, score: Score | None = None, because: str = "", checkpoint: str = ""
    ) -> None:
        write(
            self._store,
            self._held,
            self.reports,
            state=state,
            score=score,
            because=because,
            checkpoint=checkpoint,
            so_far=self._tail,
        )

    def _done(self) -> None:
        if not self._over:
            self._over = True
            self._ended(self)

    def __repr__(self) -> str:
        return f"<Trial {self.number}, attempt {self.attempt}: {self.point}>"


def _tell(what: str, trial: int, why: Exception) -> None:
    logger.warning(what, trial, why_of(why), extra={"trial": trial, "why": str(why)})
