"""Every combination, once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from entrepot.errors import SpaceError
from entrepot.study.checks import whole
from entrepot.study.samplers.base import History, Sampler
from entrepot.study.space import Point, Space
from entrepot.study.text import Value

MAX_STEPS = 10_000
MAX_TOTAL = 2**63
MAX_STATES = 100_000

State = tuple[tuple[str, Value], ...]
"""Values of the knobs on which later ones depend."""


@dataclass(frozen=True)
class GridSampler(Sampler):
    """At most ``steps`` values a knob, both ends among them, and every option of a choice.

    The first knob goes fastest. Combinations that differ only in a knob that is not asked for are
    one.
    """

    steps: int = 5

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", whole("steps", self.steps, 2, MAX_STEPS))

    def total(self, space: Space) -> int:
        """How many combinations there are.

        :raises SpaceError: more than 2**63.
        """
        total = _grid(space, self.steps).total
        if total > MAX_TOTAL:
            raise SpaceError(
                f"a grid of {self.steps} steps over {len(space)} knobs has {float(total):.1e} "
                f"points; take fewer steps, or another sampler"
            )
        return total

    def _ask(self, space: Space, trial: int, _history: History, /) -> Point | None:
        return _grid(space, self.steps).point(trial) if trial < self.total(space) else None


class _Grid:
    """The combinations of one space, counted without being listed.

    While knobs are set one after the other, all that matters of those that are set is the values
    of the ones on which later knobs depend: that is a *state*. For each knob and state it is kept
    in how many ways the knob and those after it can be set.
    """

    def __init__(self, space: Space, steps: int) -> None:
        self._space = space
        self._values = [knob.grid(steps) for knob in space.knobs]
        self._matter = [
            {parent for later in space.knobs[index + 1 :] for parent, _ in later.when}
            for index in range(len(space))
        ]
        reached: list[set[State]] = [{()}]
        for index in range(len(space)):
            after = {state for before in reached[-1] for state in self._after(index, before)}
            if len(after) > MAX_STATES:
                raise SpaceError(
                    f"a grid over knobs of which so many depend on others is too much to count; "
                    f"take fewer than {steps} steps, or another sampler"
                )
            reached.append(after)
        self._ways: list[dict[State, int]] = [{} for _ in reached]
        self._ways[-1] = dict.fromkeys(reached[-1], 1)
        for index in reversed(range(len(space))):
            for state in reached[index]:
                self._ways[index][state] = sum(self._ways_of_each(index, state))
        self.total = self._ways[0][()]

    def _after(self, index: int, state: State) -> list[State]:
        """The states after knob ``index``: one a value, or one when it is not asked for."""
        knob = self._space.knobs[index]
        kept = tuple(pair for pair in state if pair[0] in self._matter[index])
        if not self._space.asked(knob, dict(state)):
            return [kept]
        if knob.name not in self._matter[index]:
            return [kept] * len(self._values[index])
        return [(*kept, (knob.name, value)) for value in self._values[index]]

    def _ways_of_each(self, index: int, state: State) -> list[int]:
        return [self._ways[index + 1][after] for after in self._after(index, state)]

    def point(self, number: int) -> Point:
        made: dict[str, Value] = {}
        state: State = ()
        for index, knob in enumerate(self._space.knobs):
            place, number = deal(number, self._ways_of_each(index, state))
            if self._space.asked(knob, dict(state)):
                made[knob.name] = self._values[index][place]
            state = self._after(index, state)[place]
        return Point._made(self._space, made)


def deal(number: int, ways: Sequence[int]) -> tuple[int, int]:
    """Which value number ``number`` has when values take turns, and which of its ways that is.

    A value whose ``ways`` have run out is passed over. Each (value, way) is dealt once.
    """
    done = 0
    for level in sorted(set(ways)):
        playing = [place for place, count in enumerate(ways) if count > done]
        if number < (level - done) * len(playing):
            turn, seat = divmod(number, len(playing))
            return playing[seat], done + turn
        number -= (level - done) * len(playing)
        done = level
    raise IndexError(number)


@lru_cache(maxsize=16)
def _grid(space: Space, steps: int) -> _Grid:
    return _Grid(space, steps)
