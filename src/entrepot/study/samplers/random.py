"""Random search."""

from __future__ import annotations

from dataclasses import dataclass

from entrepot.study import streams
from entrepot.study.checks import whole
from entrepot.study.samplers.base import History, Sampler
from entrepot.study.space import Point, Space


@dataclass(frozen=True)
class RandomSampler(Sampler):
    """Uniform in each knob. A knob's draws do not change when others are added."""

    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", whole("seed", self.seed))

    def _ask(self, space: Space, trial: int, _history: History, /) -> Point:
        return uniform(space, self.seed, trial)


def uniform(space: Space, seed: int, trial: int) -> Point:
    """A point whose knobs are drawn from the streams of ``trial``."""
    return space.at(
        [
            streams.unit(streams.words(1, seed, trial, "random", knob.name)[0])
            for knob in space.knobs
        ]
    )
