"""Studies to look at, and ``entrepot study`` on them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from entrepot.cli import main
from entrepot.store import Store
from entrepot.store.layout import key_of
from entrepot.study import Sampler, Space, Study, report, take

SPACE = Space().real("lr", 1e-4, 1.0, log=True).choice("opt", ["adam", "sgd"])
CURVE = [0.9, 0.5, 0.4]


def run(capfd: pytest.CaptureFixture[str], *line: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of ``entrepot study ...``."""
    with pytest.raises(SystemExit) as ended:
        main(["study", *line])
    said = capfd.readouterr()
    code = ended.value.code
    assert isinstance(code, int | None)
    return code or 0, said.out, said.err


def objects(text: str) -> list[dict[str, Any]]:
    """What --json printed. What is no JSON, such as NaN, is refused."""

    def no(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    return [json.loads(line, parse_constant=no) for line in text.splitlines()]


def study(store: Store, name: str = "spam", **options: Any) -> Study:
    given: dict[str, Any] = {"me": "gpu-7", "goal": "min", "sampler": Sampler.sobol(0)} | options
    return Study(store, name, SPACE, **given)


def fill(path: Path, name: str = "spam", trials: int = 4) -> None:
    """Trials 0, 1, ... that are done with the scores 0.5, 0.6, ...; 3 is pruned."""
    with Store(path, durable=False) as store:
        for trial in study(store, name).work(trials=trials):
            with trial:
                for one in CURVE[:-1]:
                    trial.report(one)
                trial.report(0.5 + trial.number / 10)
                if trial.number == 3:
                    trial.prune("worse than others")


def begin(path: Path, trial: int, name: str = "spam", me: str = "gpu-8") -> None:
    """A trial that runs and, when this process is not asked, for nobody."""
    with Store(path, durable=False) as store:
        point = Sampler.sobol(0).ask(SPACE, trial)
        assert point is not None
        assert take(store, point, study=name, trial=trial, me=me, goal="min")
        report(store, point, CURVE, study=name, trial=trial, me=me, goal="min")


def tear(path: Path, name: str) -> None:
    """Leave of a record what a crash does."""
    file = path / key_of(name)
    file.write_bytes(file.read_bytes()[:40])
