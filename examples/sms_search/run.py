"""All of it on this machine: a broker, two stages, and two that search; then what came of it.

python -m examples.sms_search.run
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from entrepot.cli import told
from entrepot.demo.sms import MESSAGES
from entrepot.store import Store
from entrepot.study.curves import Tail
from entrepot.study.trials import DONE, PRUNED, Attempt
from examples.sms_search.data import COUNT
from examples.sms_search.search import EPOCHS, SAMPLER, SPACE, TRIALS, study_of, whole

ROOT = Path(__file__).parents[2]
ANY = "tcp://127.0.0.1:0"
ALWAYS_HAM = 0.39
"""The loss of who says of every message, as surely as it pays, that it is none."""


@contextmanager
def process(
    *arguments: str, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """A Python of its own, ended with the block."""
    started = subprocess.Popen(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        env={**os.environ, **(environment or {})},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield started
    finally:
        started.terminate()
        started.wait()
        assert started.stdout is not None
        started.stdout.close()


def line(of: subprocess.Popen[str]) -> str:
    """The next line that it prints."""
    assert of.stdout is not None
    said = of.stdout.readline()
    if not said:
        raise SystemExit(f"the broker ended with exit code {of.wait()} before it was ready")
    return said


def search(
    store: str,
    workers: int,
    trials: int,
    epochs: int,
    count: int,
    clean: Mapping[str, str] | None = None,
) -> list[str]:
    """Runs all of it. What each worker printed.

    :param clean: environment variables of the tokenising stage.
    """
    with ExitStack() as stack:
        start = stack.enter_context
        broker = start(
            process(
                "entrepot.cli",
                "broker",
                "--frontend",
                ANY,
                "--backend",
                ANY,
                "--json",
                "--log-level",
                "error",
            )
        )
        where = json.loads(line(broker))
        backend = ("--backend", where["backend"])
        start(process("examples.sms_search.clean", *backend, environment=clean))
        start(process("examples.sms_search.embed", *backend))
        searching = [
            start(
                process(
                    *("examples.sms_search.search", "--store", store, "--me", f"m{number}"),
                    *("--frontend", where["frontend"], "--host", "127.0.0.1"),
                    *("--trials", str(trials), "--epochs", str(epochs), "--messages", str(count)),
                )
            )
            for number in range(workers)
        ]
        said = ["".join(each.stdout or ()) for each in searching]
        for number, each in enumerate(searching):
            if each.wait():
                raise SystemExit(f"m{number}, who searches, ended with exit code {each.wait()}")
    return said


def check(attempts: list[Attempt], trials: int, epochs: int) -> list[str]:
    """What is promised of such a search, each in a line; AssertionError where it is not kept."""
    done = [each for each in attempts if each.state == DONE]
    pruned = [each for each in attempts if each.state == PRUNED]
    numbers = [each.trial for each in attempts]
    assert numbers == list(range(trials)), numbers
    assert {each.attempt for each in attempts} == {0}
    points = [each.meta.point for each in attempts]
    alone = [str(SAMPLER.ask(SPACE, number)) for number in range(trials)]
    assert points == alone, "one machine alone would have tried others"
    assert len(set(points)) == trials
    who = sorted({each.meta.who for each in attempts})
    scores = [float(each.meta.score) for each in done]
    assert min(scores) < 0.2, scores
    assert all(reports(each) == epochs for each in done)
    assert all(reports(each) < epochs for each in pruned)
    assert {*done, *pruned} == {*attempts}
    return [
        f"each of {trials} trials ran once, all over {len(who)} machines: {', '.join(who)}",
        "their points are those that one machine alone would have tried, and all differ",
        f"the best loss is {min(scores):.3f}; always saying ham is about {ALWAYS_HAM}",
        f"{len(pruned)} were pruned before epoch {epochs}, and are not among the {len(done)} done",
    ]


def reports(attempt: Attempt) -> int:
    """Epochs that a trial went through."""
    return Tail.read(attempt.meta.tail).length


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", help="a folder, or a bucket's URL; a new folder without it")
    parser.add_argument("--workers", type=whole(), default=2)
    parser.add_argument("--trials", type=whole(), default=TRIALS)
    parser.add_argument("--epochs", type=whole(), default=EPOCHS)
    parser.add_argument("--messages", type=whole(1, MESSAGES), default=COUNT)
    given = parser.parse_args()
    with told(as_json=False), ExitStack() as stack:
        url = given.store or stack.enter_context(tempfile.TemporaryDirectory())
        said = search(url, given.workers, given.trials, given.epochs, given.messages)
        print("".join(said), end="")
        store = stack.enter_context(Store.open(url, read_only=True))
        study = study_of(store, "who looks")
        print(study.table())
        for kept in check(study.trials(), given.trials, given.epochs):
            print(f"- {kept}")


if __name__ == "__main__":
    main()
