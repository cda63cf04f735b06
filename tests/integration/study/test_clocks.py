"""Machines whose clocks are wrong: by the records they are as right as any."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from entrepot.store import Store
from entrepot.study import trials
from tests.integration.needs import lacking
from tests.peer.process import LineProcess
from tests.peer.waiting import until

HOUR_S = 3600.0


def faketime() -> str:
    """The library that gives a process another clock."""
    found = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)
    if shutil.which("faketime") is None or found is None:
        lacking("needs faketime, of the Debian package of that name")
    return str(found)


@pytest.fixture
def machines(folder: Store) -> Iterator[dict[str, LineProcess]]:
    """One whose clock is an hour ahead, one an hour behind, and one that is right."""
    library = faketime()
    with ExitStack() as stack:
        started = {}
        for name, offset in (("ahead", "+1h"), ("behind", "-1h"), ("right", "")):
            with pytest.MonkeyPatch.context() as patch:
                if offset:
                    patch.setenv("LD_PRELOAD", library)
                    patch.setenv("FAKETIME", offset)
                    # A wrong clock goes as fast as any other, and the disk has its own.
                    patch.setenv("FAKETIME_DONT_FAKE_MONOTONIC", "1")
                    patch.setenv("DONT_FAKE_MONOTONIC", "1")
                    patch.setenv("NO_FAKE_STAT", "1")
                process = LineProcess("tests.integration.study.parties")
            started[name] = stack.enter_context(process)
            process.ask("open", url=folder.url)
        yield started


def test_a_clock_that_is_an_hour_wrong_changes_nothing(
    folder: Store, machines: dict[str, LineProcess]
) -> None:
    off = {name: one.ask("wall") - time.time() for name, one in machines.items()}
    assert [round(off[name] / HOUR_S) for name in ("ahead", "behind", "right")] == [1, -1, 0]
    for number, (name, one) in enumerate(machines.items()):
        assert one.ask("take", trial=number, me=name)
        one.ask("report", trial=number, me=name, state="running")
    for one in machines.values():
        assert one.ask("abandoned", stale=60.0) == [], "nobody seems dead to anybody"
    assert all(abs(each.when - time.time()) < 60 for each in trials(folder, study="spam"))
    machines["ahead"].kill()
    machines["behind"].ask("report", trial=1, me="behind", state="done")
    for name in ("behind", "right"):
        assert machines[name].ask("abandoned", stale=60.0) == []
        # And who is dead is found, after as long as anybody else would be.
        silent = until(
            lambda name=name: dict(machines[name].ask("abandoned", stale=1.0)),  # type: ignore[misc]
            lambda found: 0 in found,
        )
        assert 1.0 <= silent[0] < 60
        assert 1 not in silent
