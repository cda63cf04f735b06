"""The examples do what their READMEs show."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.cli_terminals import WAIT_S, Terminals, objects

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


@pytest.fixture(autouse=True)
def _from_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv("DISTILL_MODEL", raising=False)


def shown(example: str) -> tuple[list[str], str]:
    """The commands of an example's README, and what it says they print."""
    text = (EXAMPLES / example / "README.md").read_text()
    commands = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)[0].splitlines()
    (printed,) = re.findall(r"```\n([a-z].*?)```", text, re.DOTALL)
    return commands, printed


def lines_of(printed: str) -> list[str]:
    """Its lines, without the numbers that are measured."""
    return [re.sub(r"\d\.\d{4}|\d+%", "*", line) for line in printed.splitlines()]


def run(terminals: Terminals, example: str, steps: int) -> str:
    """What the student prints, with the other commands of the README in terminals of their own."""
    commands, _ = shown(example)
    broker, supplier, student = (command.split() for command in commands)
    assert broker == ["entrepot", "broker"]
    terminals.broker()
    words = [word.strip("'") for word in supplier[1:]]
    serving = terminals.start(*words, "--backend", terminals.backend, "--json")
    serving.event("serving")
    done = subprocess.run(
        [sys.executable, *student[1:], "--frontend", terminals.frontend, "--steps", str(steps)],
        capture_output=True,
        text=True,
        timeout=WAIT_S * 2,
    )
    assert (done.returncode, done.stderr) == (0, "")
    serving.signal(signal.SIGTERM)
    code, out, _ = serving.end()
    left = objects(out)[-1]
    # What was being made when the student had enough found nobody to be written to.
    assert code == 0
    assert left["served"] >= steps
    return done.stdout


def errors(line: str) -> tuple[float, float]:
    """The student's, and that of doing nothing."""
    student, nothing = re.findall(r"\d\.\d{4}", line)
    return float(student), float(nothing)


def test_one_layer_is_distilled_as_shown(terminals: Terminals) -> None:
    printed = run(terminals, "distill_layer", 100)
    assert lines_of(printed) == lines_of(shown("distill_layer")[1])[:3]
    first, *_, last = printed.splitlines()
    assert errors(first)[0] > errors(first)[1]
    assert errors(last)[0] < errors(last)[1] / 4


def test_all_layers_are_distilled_by_one_pattern(terminals: Terminals) -> None:
    printed = run(terminals, "distill_layerwise", 25)
    assert lines_of(printed) == lines_of(shown("distill_layerwise")[1])
    *layers, together = printed.splitlines()
    for line in layers:
        student, nothing = errors(line)
        assert student < nothing / 2
    assert int(re.findall(r"(\d+)%", together)[0]) > 50


def test_the_readmes_name_files_that_are_there() -> None:
    for readme in EXAMPLES.glob("*/README.md"):
        for target in re.findall(r"\]\(([^):]+)\)", readme.read_text()):
            assert (readme.parent / target).exists(), f"{readme}: {target}"
