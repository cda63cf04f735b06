"""What every sampler answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from entrepot.errors import ConfigurationError, SpaceError
from entrepot.study.checks import whole
from entrepot.study.goals import Goal, Score
from entrepot.study.space import Point, Space

if TYPE_CHECKING:
    from collections.abc import Callable

History = Sequence[tuple[Point, Score | None]]
"""What has been tried: points of the space and their scores, None for those that still run."""


class Sampler(ABC):
    """Where to look next.

    ``ask`` is a function of what it is given and of nothing else: whoever claims trial 7 derives
    its point without asking for the six before it, and any machine derives the same.

    :cvar looks_back: whether ``ask`` looks at the history; where it does not, none need be read.
    """

    looks_back: ClassVar[bool] = False

    def ask(self, space: Space, trial: int, history: History = ()) -> Point | None:
        """The point of trial number ``trial``, which counts from 0; None when nothing is left.

        :param history: points with their scores; None for a score says that the trial is running.
        :raises SpaceError: the space has no knobs, or more than the sampler can serve.
        :raises ConfigurationError: the trial is no number of one, or a score is none of the goal's.
        """
        if not isinstance(space, Space):
            raise ConfigurationError(f"the space is {space!r}; make one with Space().real(...)")
        if not len(space):
            raise SpaceError("the space has no knobs; add one, as with .real('lr', 1e-5, 1e-1)")
        return self._ask(space, whole("trial", trial, 0), history)

    @abstractmethod
    def _ask(self, space: Space, trial: int, history: History, /) -> Point | None: ...

    @staticmethod
    def random(seed: int = 0) -> Sampler:
        """Uniform in each knob, each trial by itself."""
        from entrepot.study.samplers.random import RandomSampler

        return RandomSampler(seed)

    @staticmethod
    def grid(steps: int = 5) -> GridSampler:
        """Every combination of ``steps`` values a knob, once, the first knob fastest; then None."""
        from entrepot.study.samplers.grid import GridSampler

        return GridSampler(steps)

    @staticmethod
    def halton(seed: int = 0) -> Sampler:
        """Scrambled Halton points, which fill the space evenly."""
        from entrepot.study.samplers.halton import HaltonSampler

        return HaltonSampler(seed)

    @staticmethod
    def sobol(seed: int = 0) -> Sampler:
        """Scrambled Sobol points, which fill the space most evenly after 2, 4, 8, ... trials."""
        from entrepot.study.samplers.sobol import SobolSampler

        return SobolSampler(seed)

    @staticmethod
    def lhs(seed: int = 0, size: int = 100) -> Sampler:
        """Latin hypercubes of ``size`` trials: in each, every knob visits every one of ``size``
        equal parts of its range once."""
        from entrepot.study.samplers.lhs import LatinHypercubeSampler

        return LatinHypercubeSampler(seed, size)

    @staticmethod
    def tpe(
        goal: Goal,
        startup: int = 10,
        candidates: int = 24,
        quantile: float = 0.25,
        seed: int = 0,
    ) -> Sampler:
        """Near what went well and away from what did not: a tree-structured Parzen estimator.

        :param goal: ``"min"``, ``"max"``, or ``{"loss": "min", "latency": "min"}``.
        :param startup: below so many scores it is ``Sampler.random(seed)``.
        :param candidates: points that are weighed for each answer.
        :param quantile: the share of the scored trials that count as good, at most 25 of them.
        """
        from entrepot.study.samplers.tpe import TPESampler

        return TPESampler(goal, startup, candidates, quantile, seed)

    @staticmethod
    def optuna(sampler: Any | Callable[[int], Any], goal: Goal = "min", seed: int = 0) -> Sampler:
        """Any of Optuna's samplers: CMA-ES, Gaussian processes, NSGA-II.

        :param sampler: a function of a seed that makes one, such as
            ``lambda seed: optuna.samplers.CmaEsSampler(seed=seed)``, or one that is made.
        :raises MissingExtra: Optuna is not installed.
        """
        from entrepot.study.samplers.optuna import OptunaSampler

        return OptunaSampler(sampler, goal, seed)


if TYPE_CHECKING:
    from entrepot.study.samplers.grid import GridSampler
