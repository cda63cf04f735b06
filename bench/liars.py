"""What to tell a guided sampler of a trial that still runs: nothing, None, or a made-up score.

    python bench/liars.py                  # half a minute
    python bench/liars.py --seeds 5 --json out.json

Eight trials are scored, the best two pairs of them at both ends of the learning rate; another
machine tries a point beside two of the best. 200 proposals are asked for, and those are counted
that fall within a factor of two of the learning rate that is being tried.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

if __package__ in (None, ""):  # run as a file
    sys.path.insert(0, str(Path(__file__).parents[1]))

from rich.console import Console
from rich.table import Table

from entrepot.study import Point, Sampler, Space

SPACE = (
    Space().real("lr", 1e-5, 1e-1, log=True).int("batch", 16, 128).choice("opt", ["adam", "sgd"])
)
SCORED = [
    (SPACE.point(lr=lr, batch=batch, opt=opt), score)
    for lr, batch, opt, score in (
        (0.09, 64, "adam", 0.10),
        (0.00011, 32, "sgd", 0.11),
        (0.08, 60, "adam", 0.12),
        (0.00013, 30, "sgd", 0.13),
        (0.005, 100, "adam", 5.0),
        (0.008, 90, "sgd", 6.0),
        (0.003, 110, "adam", 7.0),
        (0.002, 120, "sgd", 8.0),
    )
]
HELD_LR = 0.085
HELD = SPACE.point(lr=HELD_LR, batch=64, opt="adam")
"""What another machine is trying, beside two of the best."""
NEAR = 0.7
ASKS = 200

History = Sequence[tuple[Point, float | None]]

TOLD: dict[str, History] = {
    "nothing": SCORED,
    "None": [*SCORED, (HELD, None)],
    "9.0, made up": [*SCORED, (HELD, 9.0)],
}
"""What the sampler hears of the trial that runs."""


def near(seed_of: Callable[[int], int], history: History, asks: int = ASKS) -> int:
    """How many of so many proposals are near what is being tried.

    :param seed_of: the sampler's seed for each trial.
    """
    found = 0
    for trial in range(asks):
        sampler = Sampler.tpe("min", startup=4, quantile=0.25, candidates=24, seed=seed_of(trial))
        point = sampler.ask(SPACE, trial, history)
        assert point is not None
        found += abs(math.log(float(str(point["lr"])) / HELD_LR)) < NEAR
    return found


def measured(seeds: int, asks: int = ASKS) -> dict[str, dict[str, list[int]]]:
    """For each way to choose seeds and each thing to tell, the counts."""
    return {
        "a seed a trial": {
            told: [near(lambda trial: trial, history, asks)] for told, history in TOLD.items()
        },
        "seed 0": {told: [near(lambda _: 0, history, asks)] for told, history in TOLD.items()},
        f"{seeds} seeds": {
            told: [near(lambda _, seed=seed: seed, history, asks) for seed in range(seeds)]  # type: ignore[misc]
            for told, history in TOLD.items()
        },
    }


def said(counts: Sequence[int]) -> str:
    if len(counts) == 1:
        return str(counts[0])
    return f"{statistics.fmean(counts):.1f} ± {statistics.stdev(counts):.1f}"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--seeds", type=int, default=20)
    options.add_argument("--json", type=Path, help="write the counts to this file")
    given = options.parse_args()
    found = measured(given.seeds)
    table = Table(title=f"of {ASKS} proposals, those near what another machine is trying")
    table.add_column("it is told of that trial")
    for column in found:
        table.add_column(column, justify="right")
    for told in TOLD:
        table.add_row(told, *(said(counts[told]) for counts in found.values()))
    Console().print(table)
    if given.json:
        given.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
