"""The study: machines that never speak to each other search one space together."""

from entrepot.study.closing import compact
from entrepot.study.history import History
from entrepot.study.looking import (
    STALE,
    Abandoned,
    abandoned,
    curves,
    direction,
    finished,
    in_flight,
    next_free,
    trials,
)
from entrepot.study.pruners import Pruner
from entrepot.study.rescue import enqueue, rescue
from entrepot.study.samplers import Sampler
from entrepot.study.space import Point, Space
from entrepot.study.study import Study
from entrepot.study.trial import Trial, Verdict
from entrepot.study.trials import Attempt
from entrepot.study.verbs import report, take

__all__ = [
    "STALE",
    "Abandoned",
    "Attempt",
    "History",
    "Point",
    "Pruner",
    "Sampler",
    "Space",
    "Study",
    "Trial",
    "Verdict",
    "abandoned",
    "compact",
    "curves",
    "direction",
    "enqueue",
    "finished",
    "in_flight",
    "next_free",
    "report",
    "rescue",
    "take",
    "trials",
]
