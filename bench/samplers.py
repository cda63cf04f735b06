"""How well and how fast samplers choose, beside Optuna's.

    python bench/samplers.py               # minutes: 100 trials, 50 seeds
    python bench/samplers.py --quick       # a minute: 5 seeds, which decide nothing
    python bench/samplers.py --only regret --json out.json

Regret: the best value after so many trials, less the best there is. Both begin with the same ten
random points for a seed, so that their difference is paired; its interval is Student's, at 95 %,
two-sided.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if __package__ in (None, ""):  # run as a file
    sys.path.insert(0, str(Path(__file__).parents[1]))

import optuna
from rich.console import Console
from rich.table import Table
from scipy import stats

from bench.landscapes import LANDSCAPES, Landscape
from bench.report import machine
from entrepot.study import Point, Sampler, Space
from entrepot.study.knobs import ChoiceKnob, IntKnob, RealKnob
from entrepot.study.samplers.optuna import distribution

TRIALS = 100
STARTUP = 10
MARGIN = 0.05
"""By this share of Optuna's regret ours may be larger."""

MANY = 10_000
"""Trials at which answers are timed."""

BARS_MS = {"sobol_ask_ms": (0.4, 0.1), "tpe_ask_ms_10k": (10.0, 3.0)}
"""What must be reached, and what is aimed at."""

TIMED = (
    Space()
    .real("lr", 1e-5, 1e-1, log=True)
    .int("batch", 16, 128)
    .choice("opt", ["adam", "sgd"])
    .real("dropout", 0.0, 0.5)
)


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


# --- regret -----------------------------------------------------------------------------


def ours(space: Space, landscape: Landscape, seed: int, trials: int) -> float:
    sampler = Sampler.tpe("min", startup=STARTUP, seed=seed)
    history: list[tuple[Point, float]] = []
    for trial in range(trials):
        point = sampler.ask(space, trial, history)
        assert point is not None
        history.append((point, landscape(point)))
    return min(regret for _, regret in history)


def optunas(space: Space, landscape: Landscape, seed: int, trials: int) -> float:
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    first = Sampler.random(seed)
    for trial in range(STARTUP):
        point = first.ask(space, trial)
        assert point is not None
        study.enqueue_trial(dict(point))

    def objective(trial: optuna.Trial) -> float:
        made: dict[str, Any] = {}
        for knob in space:
            if space.asked(knob, made):
                made[knob.name] = suggest(trial, knob)
        return landscape(made)

    study.optimize(objective, n_trials=trials)
    return study.best_value


def suggest(trial: optuna.Trial, knob: object) -> Any:
    match knob:
        case RealKnob():
            return trial.suggest_float(knob.name, knob.low, knob.high, log=knob.log)
        case IntKnob():
            return trial.suggest_int(knob.name, knob.low, knob.high, log=knob.log, step=knob.step)
        case ChoiceKnob():
            return trial.suggest_categorical(knob.name, knob.values)
    raise AssertionError(knob)


@dataclass(frozen=True)
class Regret:
    """Of one landscape, a number a seed."""

    ours: Sequence[float]
    optuna: Sequence[float]

    @property
    def difference(self) -> float:
        return statistics.fmean(self.ours) - statistics.fmean(self.optuna)

    @property
    def interval(self) -> tuple[float, float]:
        """Of the mean of the paired differences, at 95 %."""
        pairs = [own - other for own, other in zip(self.ours, self.optuna, strict=True)]
        error = statistics.stdev(pairs) / math.sqrt(len(pairs))
        reach = float(stats.t.ppf(0.975, len(pairs) - 1)) * error
        return self.difference - reach, self.difference + reach

    @property
    def allowed(self) -> float:
        return MARGIN * statistics.fmean(self.optuna)

    @property
    def reached(self) -> bool:
        return self.interval[1] <= self.allowed

    def as_json(self) -> dict[str, Any]:
        return {
            "ours": statistics.fmean(self.ours),
            "optuna": statistics.fmean(self.optuna),
            "ours_median": statistics.median(self.ours),
            "optuna_median": statistics.median(self.optuna),
            "difference": self.difference,
            "interval": self.interval,
            "allowed": self.allowed,
            "reached": self.reached,
            "seeds": len(self.ours),
        }


def regrets(seeds: Sequence[int], names: Sequence[str]) -> dict[str, Regret]:
    found = {}
    for name in names:
        space, landscape = LANDSCAPES[name]
        began = time.monotonic()
        found[name] = Regret(
            [ours(space, landscape, seed, TRIALS) for seed in seeds],
            [optunas(space, landscape, seed, TRIALS) for seed in seeds],
        )
        say(f"{name}: {time.monotonic() - began:.1f} s")
    return found


# --- time -------------------------------------------------------------------------------


def median_ms(asks: int, ask: Callable[[int], object]) -> float:
    """One answer, engine and history kept; the first is not counted."""
    ask(MANY)
    spent = []
    for number in range(asks):
        began = time.perf_counter()
        ask(MANY + 1 + number)
        spent.append((time.perf_counter() - began) * 1e3)
    return statistics.median(spent)


def speeds(quick: bool) -> dict[str, float]:
    random, sobol, tpe = Sampler.random(1), Sampler.sobol(1), Sampler.tpe("min", seed=1)
    asks = 3 if quick else 15
    points = [random.ask(TIMED, trial) for trial in range(MANY + 10 * asks + 1)]
    scored = [(point, float(number * 7919 % MANY)) for number, point in enumerate(points) if point]
    history, coming = scored[:MANY], iter(scored[MANY:])
    study = optuna.create_study()
    ranges = {knob.name: distribution(knob) for knob in TIMED}
    study.add_trials(
        [
            optuna.create_trial(params=dict(point), distributions=ranges, value=score)
            for point, score in history
        ]
    )
    say(f"{MANY:,} trials made")

    def next_of_ours(number: int) -> None:
        """As in a study: since the last answer another trial was finished."""
        history.append(next(coming))
        tpe.ask(TIMED, number, history)

    def peer(sampler: optuna.samplers.BaseSampler) -> Callable[[int], object]:
        study.sampler = sampler

        def ask(_number: int) -> None:
            trial = study.ask()
            for knob in TIMED:
                suggest(trial, knob)
            study.tell(trial, 1.0)

        return ask

    return {
        "sobol_ask_ms": median_ms(100 * asks, lambda number: sobol.ask(TIMED, number)),
        "optuna_sobol_ask_ms": median_ms(asks, peer(optuna.samplers.QMCSampler(seed=1))),
        "tpe_ask_ms_10k": median_ms(10 * asks, next_of_ours),
        "optuna_tpe_ask_ms_10k": median_ms(asks, peer(optuna.samplers.TPESampler(seed=1))),
    }


# --- the report -------------------------------------------------------------------------


def show(console: Console, found: dict[str, Regret], spent: dict[str, float]) -> None:
    if found:
        table = Table(title=f"Regret after {TRIALS} trials", title_justify="left")
        for column in ("landscape", "ours", "Optuna's", "difference, 95 %", "at most", ""):
            table.add_column(column, justify="left" if column in ("landscape", "") else "right")
        for name, regret in found.items():
            low, high = regret.interval
            table.add_row(
                name,
                f"{statistics.fmean(regret.ours):.4f}",
                f"{statistics.fmean(regret.optuna):.4f}",
                f"{regret.difference:+.4f} ({low:+.4f} to {high:+.4f})",
                f"{regret.allowed:+.4f}",
                "[green]pass[/green]" if regret.reached else "[red]short[/red]",
            )
        console.print(table)
    if spent:
        table = Table(title=f"One answer at {MANY:,} trials, ms", title_justify="left")
        for column in ("sampler", "ours", "Optuna's", "must reach", "aims at", ""):
            table.add_column(column, justify="left" if column in ("sampler", "") else "right")
        for key, (must, aim) in BARS_MS.items():
            table.add_row(
                key.split("_")[0],
                f"{spent[key]:.3f}",
                f"{spent[f'optuna_{key}']:.1f}",
                f"{must:g}",
                f"{aim:g}",
                "[green]pass[/green]" if spent[key] <= must else "[red]short[/red]",
            )
        console.print(table)


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.formatter_class = argparse.RawDescriptionHelpFormatter
    arguments.add_argument("--quick", action="store_true", help="5 seeds, fewer timed answers")
    arguments.add_argument("--json", type=Path, metavar="PATH", help="write the figures there too")
    arguments.add_argument("--only", choices=("regret", "time"), help="one question alone")
    arguments.add_argument("--seeds", type=int, metavar="N", help="paired seeds, 50 unless quick")
    arguments.add_argument("--on", choices=LANDSCAPES, action="append", help="a landscape alone")
    asked = arguments.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    began = time.monotonic()
    spent = {} if asked.only == "regret" else speeds(asked.quick)
    seeds = range(asked.seeds or (5 if asked.quick else 50))
    found = {} if asked.only == "time" else regrets(seeds, asked.on or list(LANDSCAPES))
    console = Console()
    if not console.is_terminal:
        console.width = 130
    show(console, found, spent)
    if asked.json:
        figures = {
            **spent,
            "regret": {name: regret.as_json() for name, regret in found.items()},
            "optuna": optuna.__version__,
            "quick": asked.quick,
            "spent_s": round(time.monotonic() - began, 1),
            "machine": machine(),
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        }
        asked.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
