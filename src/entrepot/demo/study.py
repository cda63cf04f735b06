"""A part of the demonstration: a study, by two workers over one folder, of which one is killed."""

from __future__ import annotations

import importlib.util
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from entrepot.demo import sms
from entrepot.demo.consumer import LOOK_S, Watcher
from entrepot.demo.place import Place
from entrepot.demo.processes import Part, Parts
from entrepot.errors import DemoFailed

if TYPE_CHECKING:
    from entrepot.study import Study
    from entrepot.study.trials import Attempt

TRIALS = 24
KILL_AT = 6
"""Trials that are finished before a worker is killed in the middle of its next one."""

WORKERS = ("worker-1", "worker-2")
PROCESSES = len(WORKERS)
STUDY_S = 90.0
"""Time for all trials."""

PAGE = "study.html"
SHOWN = 5
"""Rows of the table."""


class StudyWatcher(Watcher, Protocol):
    """Who is told how this part goes, too."""

    def study(self) -> None:
        """It begins."""


@dataclass
class Studied:
    """How it went.

    :ivar left_out: why it was not done, in words; nothing of the rest is there then.
    :ivar trials: how many there were, and
    :ivar pruned: how many of them were stopped early.
    :ivar by: how many each worker finished.
    :ivar killed: the worker that was, in the middle of
    :ivar rescued: that trial, which
    :ivar heir: this one then ran.
    :ivar best: the lowest loss.
    :ivar point: where it was.
    :ivar table: the best trials, in lines.
    :ivar page: where the page with the charts is.
    """

    left_out: str = ""
    trials: int = 0
    pruned: int = 0
    by: dict[str, int] = field(default_factory=dict)
    killed: str = ""
    rescued: int = -1
    heir: str = ""
    best: float = 0.0
    point: str = ""
    table: list[str] = field(default_factory=list)
    page: str = ""


def search(parts: Parts, place: Place, watch: StudyWatcher, path: Path) -> Studied:
    """Have it happen.

    :param path: where the messages are.
    :raises DemoFailed: a trial was not finished exactly once, or what was killed was not rescued.
    """
    if importlib.util.find_spec("scipy") is None:
        return Studied("no scipy here: pip install 'entrepot[study]' brings it")
    from entrepot.demo import worker
    from entrepot.store import Store

    watch.study()
    with Store(place.store):  # so that it is there to be looked at
        pass
    workers = [
        parts.start(
            name,
            *(place.store, name, str(TRIALS)),
            environment={sms.VARIABLE: str(path)},
            module=worker.__name__,
        )
        for name in WORKERS
    ]
    for part in workers:
        watch.part(part.title, part.pid, "runs trials; all that they share is a folder")
    with Store.open(place.store, read_only=True) as store:
        study = worker.study_of(store, "who looks")
        studied = Studied(trials=TRIALS)
        _follow(study, workers, studied, watch)
        return _verified(study, studied)


def _follow(study: Study, workers: list[Part], studied: Studied, watch: Watcher) -> None:
    """Until all is finished; one worker is killed on the way."""
    victim, heir = workers
    give_up = time.monotonic() + STUDY_S
    with watch.stage("a study, and a kill -9", TRIALS, "trials") as done:
        while not heir.ended(LOOK_S):
            if heir.process.poll():  # with 0 it is over, and has ended since the line above
                raise DemoFailed(f"{heir.title} ended with {heir.process.returncode}")
            if time.monotonic() > give_up:
                raise DemoFailed(f"the study was not over in {STUDY_S:g} s")
            attempts = study.trials()
            finished = sum(1 for each in attempts if each.finished)
            if not studied.killed and finished >= KILL_AT:
                _kill(study, victim, studied)
            done(finished)
        done(TRIALS)
    if not studied.killed:
        raise DemoFailed(f"{victim.title} was in no trial when it was to be killed")


def _kill(study: Study, victim: Part, studied: Studied) -> None:
    """It is stopped first, to see which trial it is in; if it is in none, another time."""
    victim.freeze()
    held = [
        each.trial
        for each in study.trials()
        if each.state == "running" and each.meta.who == victim.title
    ]
    if not held:
        victim.resume()
        return
    victim.kill()
    studied.killed, studied.rescued = victim.title, held[0]


def _verified(study: Study, studied: Studied) -> Studied:
    attempts = study.trials()
    numbers = [each.trial for each in attempts]
    if numbers != list(range(TRIALS)) or not all(each.finished for each in attempts):
        raise DemoFailed(f"of {TRIALS} trials these were finished: {_finished(attempts)}")
    again = {each.trial: each.attempt for each in attempts if each.attempt}
    if again != {studied.rescued: 1}:
        raise DemoFailed(f"trial {studied.rescued} was to be run again, and these were: {again}")
    studied.heir = attempts[studied.rescued].meta.who
    studied.by = dict(sorted(Counter(each.meta.who for each in attempts).items()))
    studied.pruned = sum(1 for each in attempts if each.state == "pruned")
    best = study.best()
    if best is None or not isinstance(best.score, float):
        raise DemoFailed("no trial was done")
    studied.best, studied.point = best.score, best.meta.point
    studied.table = str(study.table()).splitlines()[1 : SHOWN + 2]
    folder = sms.cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    studied.page = str(study.plot(folder / PAGE))
    return studied


def _finished(attempts: list[Attempt]) -> list[int]:
    return [each.trial for each in attempts if each.finished]
