"""Eight processes and 1,000 names: each has one winner, and the record is the winner's."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest

from entrepot.store import Store
from entrepot.store.calls import Calls
from entrepot.store.folder import FolderStore
from tests.unit.store.folder_faults import NoLinks

PROCESSES = 8
NAMES = 1000
TIMEOUT_S = 100.0


def race(folder: Path, *options: str) -> None:
    """Until there was one: on a busy machine one may have claimed all before the others begin."""
    for number in count():
        if raced(folder / str(number), *options) > 1:
            return


def raced(path: Path, *options: str) -> int:
    """How many of the processes won anything."""
    calls = NoLinks() if "no-links" in options else Calls()
    with FolderStore(path, calls=calls), ExitStack() as stack:
        racers = [
            stack.enter_context(
                subprocess.Popen(
                    [
                        *(sys.executable, "-m", "tests.unit.store.racer"),
                        *(str(path), str(NAMES), str(me), *options),
                    ],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for me in range(PROCESSES)
        ]
        try:
            for racer in racers:
                assert racer.stdout is not None
                assert racer.stdout.readline() == "ready\n"
            for racer in racers:
                assert racer.stdin is not None
                racer.stdin.write("go\n")
                racer.stdin.flush()
            won = [json.loads(racer.communicate(timeout=TIMEOUT_S)[0]) for racer in racers]
        finally:
            for racer in racers:
                racer.kill()
    told = {n: str(me) for me, theirs in enumerate(won) for n in theirs}
    assert sorted(n for theirs in won for n in theirs) == list(range(NAMES))
    with Store(path, read_only=True) as store:
        records = store.scan("spam/trial/")
        assert {int(each.name.split("/")[2]): each.meta["who"] for each in records} == told
        assert store.skipped.faults == {}
    assert list((path / "tmp").iterdir()) == []
    return sum(map(bool, won))


@pytest.mark.parametrize("options", [("links",), ("no-links",)], ids="".join)
def test_one_winner_each(tmp_path: Path, options: tuple[str, ...]) -> None:
    race(tmp_path, *options)


@pytest.mark.soak
@pytest.mark.parametrize("run", range(20))
@pytest.mark.parametrize(
    "options",
    [("links",), ("no-links",), ("links", "durable"), ("no-links", "durable")],
    ids=" ".join,
)
def test_one_winner_each_again_and_again(
    tmp_path: Path, options: tuple[str, ...], run: int
) -> None:
    race(tmp_path, *options)
