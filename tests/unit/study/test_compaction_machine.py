"""Blocks are closed beside late reports, rescues, readers and gc: whatever the interleaving.

What a machine does is cut open at any of its store's primitives, and others act in the cut. Blocks
have three trials here, so that they fill.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from entrepot.errors import TrialLost
from entrepot.store import layout, segment
from entrepot.store.cursor import Listing, Tag
from entrepot.store.layout import block_of, segment_name
from entrepot.store.memory import MemoryStore
from entrepot.store.record import EMPTY, Record
from entrepot.study import (
    Space,
    closing,
    compact,
    curves,
    history,
    next_free,
    report,
    rescue,
    take,
    trials,
)
from entrepot.study.trials import Attempt, attempt_of

SPACE = Space().real("lr", 1e-4, 1.0)
BLOCK = 3
NUMBERS = 4
MACHINES = 3
CLOSE_AFTER_S = 50.0
GC_GRACE_S = 20.0
POINTS = [SPACE.point(lr=(number + 1) / 10) for number in range(NUMBERS)]


class CutOpen(MemoryStore):
    """A view of a store in which others act before the n-th primitive."""

    cuts: dict[int, list[Callable[[], None]]]
    ticks = 0

    def _tick(self) -> None:
        self.ticks += 1
        for act in self.cuts.pop(self.ticks, []):
            act()

    def _read(self, key: str) -> bytes | None:
        self._tick()
        return super()._read(key)

    _read_blob = _read

    def _list(self, folder: str) -> Listing:
        self._tick()
        return super()._list(folder)

    def _create(self, key: str, record: Record, data: bytes) -> bool:
        self._tick()
        return super()._create(key, record, data)

    def _replace(self, key: str, record: Record, data: bytes) -> None:
        self._tick()
        super()._replace(key, record, data)

    def _put_blob(self, key: str, data: memoryview) -> None:
        self._tick()
        super()._put_blob(key, data)

    def _blobs(self) -> Iterable[tuple[str, float, int, Tag]]:
        self._tick()
        return super()._blobs()

    def _remove_blob(self, key: str, tag: Tag) -> bool:
        self._tick()
        return super()._remove_blob(key, tag)


@dataclass(frozen=True)
class Act:
    """What a machine does: ``do`` names a method of the state machine."""

    do: str
    who: int
    trial: int
    score: int


ACTS = st.builds(
    Act,
    st.sampled_from(
        ["take", "beat", "finish", "finish", "rescue", "seize", "close", "close", "collect"]
    ),
    st.integers(0, MACHINES - 1),
    st.integers(0, NUMBERS - 1),
    st.integers(0, 99),
)
CUTS = st.lists(st.tuples(st.integers(1, 25), ACTS), max_size=3)


class CompactionMachine(RuleBasedStateMachine):
    """``sure`` are finished attempts that must speak from when they were acknowledged."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        for module in (layout, segment, history, closing):
            self.patch.setattr(module, "BLOCK_TRIALS", BLOCK)
        self.now = 1.8e9
        self.observer = MemoryStore(wall=lambda: self.now)
        self.machines = [self.machine() for _ in range(MACHINES)]
        self.busy: set[int] = set()
        self.won: set[tuple[int, int]] = set()
        self.acked: dict[tuple[int, int], float] = {}
        self.sure: dict[int, int] = {}
        self.frozen: dict[int, dict[int, tuple[int, str, Any]]] = {}

    def machine(self) -> CutOpen:
        made = CutOpen(wall=lambda: self.now)
        made._objects, made.url = self.observer._objects, self.observer.url
        made.cuts = {}
        return made

    def teardown(self) -> None:
        self.patch.undo()

    # --- what machines do ---------------------------------------------------------------

    @initialize(done=st.lists(st.booleans(), min_size=BLOCK, max_size=BLOCK), data=st.data())
    def begin(self, done: list[bool], data: st.DataObject) -> None:
        """The block is begun, and most of it was finished long ago."""
        for number, is_done in enumerate(done):
            act = Act("", number % MACHINES, number, data.draw(st.integers(0, 9)))
            self.take(act)
            if is_done or data.draw(st.booleans()):
                self.finish(act)
            if data.draw(st.booleans()):
                self.seize(Act("", (number + 1) % MACHINES, number, 0))
        self.now += data.draw(st.sampled_from([0.0, 60.0]))

    @rule(act=ACTS, cuts=CUTS)
    def act(self, act: Act, cuts: list[tuple[int, Act]]) -> None:
        self.perform(act, cuts)
        self.check()

    @rule(seconds=st.sampled_from([25.0, 60.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    @rule(who=st.integers(0, MACHINES - 1), cuts=CUTS, after=st.lists(ACTS, max_size=3))
    def end(self, who: int, cuts: list[tuple[int, Act]], after: list[Act]) -> None:
        """All that can be finished is; then the block is closed, and what comes late comes."""
        for number in range(BLOCK):
            for machine in range(MACHINES):
                self.finish(Act("", machine, number, machine))
        self.check()
        self.now += 60.0
        self.perform(Act("close", who, 0, 0), cuts)
        self.check()
        for act in after:
            self.perform(act, [])
        self.now += 60.0
        self.collect(Act("", who, 0, 0))
        self.check()

    def perform(self, act: Act, cuts: list[tuple[int, Act]]) -> None:
        if act.who in self.busy:
            return  # a machine does one thing at a time
        store = self.machines[act.who]
        store.ticks = 0
        store.cuts = {}
        for at, other in cuts:
            store.cuts.setdefault(at, []).append(lambda other=other: self.perform(other, []))  # type: ignore[misc]
        self.busy.add(act.who)
        try:
            getattr(self, act.do)(act)
        finally:
            store.cuts = {}
            self.busy.discard(act.who)

    def take(self, act: Act) -> None:
        store = self.machines[act.who]
        point = POINTS[act.trial]
        me = f"m{act.who}"
        if take(store, point, study="spam", trial=act.trial, me=me, goal="min"):
            self.note_won(act.trial, 0)

    def rescue(self, act: Act) -> None:
        store = self.machines[act.who]
        try:
            held = rescue(store, study="spam", trial=act.trial, me=f"m{act.who}", max_attempts=9)
        except TrialLost:
            return  # nobody has begun it
        if held is not None:
            self.note_won(act.trial, held.attempt)

    def seize(self, act: Act) -> None:
        """Rescue by what was seen long ago, though the trial is finished by now."""
        attempts = [attempt for trial, attempt in self.won if trial == act.trial]
        if not attempts or len(attempts) > 3:
            return
        store, point = self.machines[act.who], POINTS[act.trial]
        attempt = max(attempts) + 1
        me = f"m{act.who}"
        if take(store, point, study="spam", trial=act.trial, me=me, attempt=attempt, goal="min"):
            self.note_won(act.trial, attempt)

    def note_won(self, trial: int, attempt: int) -> None:
        assert (trial, attempt) not in self.won, "a number was free again"
        self.won.add((trial, attempt))

    def beat(self, act: Act) -> None:
        self.write(act, "running")

    def finish(self, act: Act) -> None:
        self.write(act, "done")

    def write(self, act: Act, state: str) -> None:
        store = self.machines[act.who]
        reports = [act.score + 1 / 3] * (200 if act.score % 2 else 1)  # a blob, or none
        was_late = self.is_late(act.trial)
        try:
            report(
                store,
                POINTS[act.trial],
                reports,
                study="spam",
                trial=act.trial,
                me=f"m{act.who}",
                state=state,
            )
        except TrialLost:
            return
        if state == "done":
            attempt = self.just_finished(act)
            self.acked[act.trial, attempt] = reports[-1]
            if not was_late and not self.is_closed(block_of(act.trial)):
                self.sure[act.trial] = max(self.sure.get(act.trial, 0), attempt)

    def just_finished(self, act: Act) -> int:
        """Which attempt it was that this machine has finished just now."""
        mine = [
            (attempt, self.observer.resolve(f"spam/trial/{act.trial}/{attempt}"))
            for trial, attempt in self.won
            if trial == act.trial and (trial, attempt) not in self.acked
        ]
        (found,) = [
            attempt
            for attempt, record in mine
            if record is not None
            and (record.meta["who"], record.meta["state"]) == (f"m{act.who}", "done")
        ]
        return found

    def close(self, act: Act) -> None:
        store = self.machines[act.who]
        may_close, is_cut = self.is_late(0), bool(store.cuts)
        closed = compact(store, study="spam", grace_s=CLOSE_AFTER_S)
        assert may_close or is_cut or not closed, "somebody in it was heard of just now"

    def collect(self, act: Act) -> None:
        self.machines[act.who].gc(GC_GRACE_S, dry_run=False)

    # --- what is true -------------------------------------------------------------------

    def is_closed(self, block: int) -> bool:
        return self.observer.resolve(segment_name("spam", block)) is not None

    def is_late(self, trial: int) -> bool:
        """Whether the trial's block may be closed at any moment, so that nothing has to speak that
        comes now: all its trials are finished, and none of its records is young."""
        block = block_of(trial)
        if self.is_closed(block):
            return True
        found = [
            attempt
            for record in self.observer.scan("spam/trial/")
            if (attempt := attempt_of(record, "spam")) and block_of(attempt.trial) == block
        ]
        complete = {attempt.trial for attempt in found if attempt.finished}
        young = any(self.now - attempt.when < CLOSE_AFTER_S for attempt in found)
        return len(complete) == BLOCK and not young

    def check(self) -> None:
        spoken = self.spoken(self.observer.view())
        for trial, attempt in self.sure.items():
            said = spoken[trial]
            assert said.finished, "what was finished is hidden"
            assert said.attempt >= attempt, "what was finished is overruled by what was before"
        for trial, said in spoken.items():
            if said.state == "done":
                assert said.score == self.acked[trial, said.attempt]
        for block in range(NUMBERS // BLOCK):
            if self.is_closed(block):
                here = {
                    trial: (said.attempt, said.state, said.score)
                    for trial, said in spoken.items()
                    if block_of(trial) == block
                }
                assert self.frozen.setdefault(block, here) == here, "what came late speaks"
        begun = {trial for trial, _ in self.won}
        assert set(spoken) == begun
        assert next_free(self.observer.view(), study="spam") not in begun
        for machine in self.machines:
            assert self.spoken(machine) == spoken, "who looked before sees something else"
        self.check_blobs(spoken)

    def spoken(self, store: MemoryStore) -> dict[int, Attempt]:
        return {attempt.trial: attempt for attempt in trials(store, study="spam")}

    def check_blobs(self, spoken: dict[int, Attempt]) -> None:
        needed = {trial for trial, said in spoken.items() if said.digest != EMPTY}
        found = curves(self.observer.view(), study="spam")
        for trial in needed:
            assert len(found[trial]) == 200, "gc took what is needed"
        for record in self.observer.scan("spam/"):
            assert self.observer.get(record.digest) is not None


TestCompactionMachine = CompactionMachine.TestCase
TestCompactionMachine.settings = settings(max_examples=150, stateful_step_count=20, deadline=None)
