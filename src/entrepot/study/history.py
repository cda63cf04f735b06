"""All trials of a study, as the store has them, kept up to date at the cost of what changed."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from entrepot.errors import ConfigurationError, PointError
from entrepot.store.layout import BLOCK_TRIALS, block_of
from entrepot.study.curves import Tail
from entrepot.study.trials import (
    DONE,
    RUNNING,
    STATES,
    Attempt,
    attempt_of,
    speaking,
    speaks,
)

if TYPE_CHECKING:
    from entrepot.store.base import Changes, Store
    from entrepot.store.cursor import Cursor
    from entrepot.store.record import Record
    from entrepot.store.segment import Segment
    from entrepot.study.goals import Score
    from entrepot.study.space import Point, Space


class _Packed(msgspec.Struct, gc=False):
    records: list[Attempt]


_packed = msgspec.json.Decoder(_Packed)


class History:
    """The trials of one study. One scan at first; then :meth:`refresh` reads what is new.

    Where a block of trials was closed by a segment, the segment is what counts. What cannot be read
    is passed over and counted, never raised: in ``strangers`` what is no trial's record, in
    ``store.skipped`` what is no record.

    :param clock: seconds, going up: for how long a record was not written again.
    :ivar trials: of each trial the attempt that speaks for it.
    :ivar closed: blocks that a segment closed.
    :ivar states: how many trials are in each state.
    """

    def __init__(
        self, store: Store, study: str, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.store = store
        self.study = study
        self.trials: dict[int, Attempt] = {}
        self.closed: set[int] = set()
        self.states: Counter[str] = Counter()
        self.strangers = 0
        self.extra: list[Record] = []
        self._clock = clock
        self._prefix = f"{study}/trial/"
        self._cursor: Cursor | None = None
        self._open: dict[int, dict[int, Attempt]] = {}
        self._ended: Counter[int] = Counter()
        self._since: dict[int, tuple[str, float]] = {}
        self._next = 0
        self._observed: dict[str, _Observed] = {}
        self._tails: dict[int, tuple[str, Tail]] = {}
        self.skipped_points: Counter[str] = Counter()

    def refresh(self) -> bool:
        """Take note of what is new; whether anything was.

        :raises StoreError: the store cannot be read.
        """
        changes: Changes = self.store.changes(self._prefix, self._cursor)
        self._cursor = changes.cursor
        return self.note(changes.records, changes.closed)

    def note(self, records: Iterable[Record], closed: Iterable[Segment]) -> bool:
        """Take note of what a look at the store found of this study; whether anything was.

        For who looks at many studies at once, and never refreshes one.
        """
        now = self._clock()
        met = False
        for segment in closed:
            self._close(segment)
            met = True
        touched: dict[int, None] = {}
        for record in records:
            attempt = attempt_of(record, self.study)
            if attempt is None:
                self.strangers += 1
                continue
            trial = attempt.trial
            if block_of(trial) in self.closed:
                continue
            self._open.setdefault(trial, {})[attempt.attempt] = attempt
            touched[trial] = None
        for trial in touched:
            self._speak(trial, speaking(self._open[trial].values()), now)
        return bool(touched) or met

    def _close(self, segment: Segment) -> None:
        """From now on the block is what the segment says, whatever was told before."""
        block = segment.block
        first = block * BLOCK_TRIALS
        for trial in range(first, first + BLOCK_TRIALS):
            if trial in self.trials:
                self._open.pop(trial, None)
                self._speak(trial, None, 0.0)
        self.closed.add(block)
        try:
            attempts = _packed.decode(segment.data).records
        except msgspec.DecodeError:
            attempts = [one for each in segment.records() if (one := attempt_of(each, self.study))]
        prefix = self._prefix
        cut = len(prefix)
        found: dict[int, Attempt] = {}
        # A hundred thousand pass here at once. Who closed the block has looked at each of them, and
        # scores and tails are read when they are wanted.
        for attempt in attempts:
            name = attempt.name
            number, _, nth = name[cut:].partition("/")
            if not (
                attempt.meta.state in STATES
                and name.startswith(prefix)
                and number.isdecimal()
                and nth.isdecimal()
            ):
                self.strangers += 1
                continue
            trial = int(number)
            other = found.get(trial)
            if other is None or speaks(attempt, other):
                found[trial] = attempt
        self.trials.update(found)
        self.states.update([attempt.meta.state for attempt in found.values()])
        self._ended[block] = len(found)
        for observed in self._observed.values():
            observed.note(found)

    def _speak(self, trial: int, attempt: Attempt | None, now: float) -> None:
        before = self.trials.get(trial)
        if before is attempt:
            return
        block = block_of(trial)
        if before is not None:
            self.states[before.state] -= 1
            self._ended[block] -= before.finished
            self._since.pop(trial, None)
        if attempt is None:
            self.trials.pop(trial, None)
        else:
            self.trials[trial] = attempt
            self.states[attempt.state] += 1
            self._ended[block] += attempt.finished
            if not attempt.finished:
                self._since[trial] = (attempt.nonce, now)
        for observed in self._observed.values():
            observed.note({trial: attempt})

    # --- looking ------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.trials)

    def __iter__(self) -> Iterator[Attempt]:
        """The attempts that speak, by trial."""
        return iter([self.trials[trial] for trial in sorted(self.trials)])

    def attempts(self, trial: int) -> dict[int, Attempt]:
        """Every attempt of a trial in a block that is open."""
        return dict(self._open.get(trial, {}))

    def unfinished(self) -> list[Attempt]:
        """The attempts that speak for trials which are not finished, by trial."""
        return [self.trials[trial] for trial in sorted(self._since)]

    def watched_s(self, trial: int) -> float:
        """For how long the trial's record was not written again, as this process saw it."""
        since = self._since.get(trial)
        return 0.0 if since is None else self._clock() - since[1]

    def next_free(self, start: int = 0) -> int:
        """The lowest number from ``start`` on that no trial has."""
        trials = self.trials
        while self._next in trials:
            self._next += 1
        number = max(self._next, start)
        while number in trials:
            number += 1
        return number

    def complete_blocks(self) -> list[int]:
        """Blocks that are open, and all of whose trials are finished."""
        return [
            block
            for block, ended in self._ended.items()
            if ended == BLOCK_TRIALS and block not in self.closed
        ]

    def observed(self, space: Space) -> Sequence[tuple[Point, Score | None]]:
        """What a sampler is given: what is done with its score, what runs with None, by trial.

        Trials of another space are left out, and counted in ``skipped_points``.
        """
        observed = self._observed.get(space.digest)
        if observed is None:
            observed = self._observed[space.digest] = _Observed(space, self.skipped_points)
            observed.note(self.trials)
        return observed.pairs()

    def tails(self, but: int) -> Iterable[Tail]:
        """The curves of all trials that reported something, but for one, in short."""
        for trial, attempt in self.trials.items():
            said = attempt.meta.tail
            if trial == but or said == "0":
                continue
            known = self._tails.get(trial)
            if known is None or known[0] != said:
                try:
                    known = self._tails[trial] = (said, Tail.read(said))
                except ConfigurationError:
                    continue
            yield known[1]


class _Observed:
    """Points and scores of one space, made once each."""

    def __init__(self, space: Space, skipped: Counter[str]) -> None:
        self._space = space
        self._skipped = skipped
        self._found: dict[int, tuple[Point, Score | None]] = {}
        self._stale: dict[int, Attempt | None] = {}
        self._pairs: list[tuple[Point, Score | None]] | None = None

    def note(self, changed: dict[int, Any]) -> None:
        self._stale.update(changed)

    def pairs(self) -> Sequence[tuple[Point, Score | None]]:
        if self._stale:
            for trial, attempt in self._stale.items():
                pair = self._pair(attempt)
                if pair is None:
                    self._found.pop(trial, None)
                else:
                    self._found[trial] = pair
            self._stale = {}
            self._pairs = None
        if self._pairs is None:
            self._pairs = [self._found[trial] for trial in sorted(self._found)]
        return self._pairs

    def _pair(self, attempt: Attempt | None) -> tuple[Point, Score | None] | None:
        if attempt is None or attempt.state not in (DONE, RUNNING):
            return None
        if attempt.meta.space not in ("", self._space.digest):
            self._skipped["space"] += 1
            return None
        try:
            point = self._space.read(attempt.meta.point)
            return point, attempt.score if attempt.state == DONE else None
        except (PointError, ValueError):
            self._skipped["point"] += 1
            return None
