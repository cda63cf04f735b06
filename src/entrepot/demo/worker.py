"""``python -m entrepot.demo.worker PARENT STORE ME TRIALS``: runs trials of the study.

It ends when its parent, the demonstration, does.
"""

from __future__ import annotations

import sys
import time

from entrepot.cli.child import end_with_parent
from entrepot.demo import model
from entrepot.store import Store
from entrepot.study import Pruner, Sampler, Space, Study

NAME = "spam"
SPACE = (
    Space().real("rate", 1e-3, 3.0, log=True).real("decay", 1e-7, 1e-2, log=True).bool("adaptive")
)
STALE_S = 1.5
"""Silence after which a trial is taken over: this is one machine, and an epoch takes no time."""

EPOCH_S = 0.02
"""What is added to an epoch, so that a trial is long enough to be killed in the middle of."""


def study_of(store: Store, me: str) -> Study:
    """The study, as each worker has it."""
    sampler = Sampler.tpe(goal="min", startup=8)
    return Study(
        store, NAME, SPACE, sampler, pruner=Pruner.median(warmup=2, startup=4), me=me, stale=STALE_S
    )


def main() -> None:
    """Run trials until all are finished."""
    _, parent, folder, me, trials = sys.argv
    end_with_parent(int(parent))
    model.data()
    with Store(folder) as store:
        for trial in study_of(store, me).work(trials=int(trials)):
            with trial:
                for loss in model.learn(trial.point, trial.number):
                    time.sleep(EPOCH_S)
                    if trial.report(loss).should_stop:
                        break


if __name__ == "__main__":
    main()
