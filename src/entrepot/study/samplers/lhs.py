"""Latin hypercubes (McKay, Beckman and Conover, 1979), one after the other."""

from __future__ import annotations

from dataclasses import dataclass

from entrepot.study import streams
from entrepot.study.checks import whole
from entrepot.study.samplers.base import History, Sampler
from entrepot.study.space import Point, Space

MAX_SIZE = 10_000


@dataclass(frozen=True)
class LatinHypercubeSampler(Sampler):
    """Trials 0 to ``size - 1`` are one hypercube, the next ``size`` another, and so on."""

    seed: int = 0
    size: int = 100

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", whole("seed", self.seed))
        object.__setattr__(self, "size", whole("size", self.size, 1, MAX_SIZE))

    def _ask(self, space: Space, trial: int, _history: History, /) -> Point:
        cube, place = divmod(trial, self.size)
        units = []
        for knob in space.knobs:
            order = streams.permutation(self.size, self.seed, cube, "lhs order", knob.name)
            drawn = streams.words(1, self.seed, trial, "lhs", knob.name)
            within = (order[place] + streams.unit(drawn[0])) / self.size
            units.append(min(within, 1.0 - 2.0**-53))
        return space.at(units)
