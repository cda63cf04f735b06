"""The last part: a search over the messages, by a model that is cut, from two workers.

The scripts are those of ``examples/sms_search``, as they are.
"""

from __future__ import annotations

import importlib.util
import json
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from entrepot.demo import script, sms
from entrepot.demo.consumer import LOOK_S, Watcher
from entrepot.demo.place import Place, start_broker
from entrepot.demo.processes import Part, Parts
from entrepot.errors import DemoFailed
from entrepot.market.client import Client
from entrepot.mediums.shm import ShmMedium

if TYPE_CHECKING:
    from entrepot.study.trials import Attempt

EXAMPLES = Path(__file__).parents[3]
"""The folder that has ``examples`` in it, in a checkout."""

NAME = "sms"
TRIALS, EPOCHS, MESSAGES = 6, 2, 400
WORKERS = ("m0", "m1")

PROCESSES = 3 + len(WORKERS)
"""Broker, two stages, and those that search."""

SEARCH_S = 120.0
"""Time for all the trials."""

GOOD = 0.25
"""A loss that the best is below; always saying ham is about 0.39."""


class SearchingWatcher(Watcher, Protocol):
    """Who is told how this part goes, too."""

    def searching(self) -> None:
        """It begins."""


@dataclass
class Searched:
    """How it went.

    :ivar left_out: why it was not done, in words; nothing of the rest is there then.
    :ivar trials: how many there were.
    :ivar by: how many each worker ran.
    :ivar best: the lowest loss, and
    :ivar point: where it was.
    :ivar pruned: how many were stopped early.
    """

    left_out: str = ""
    trials: int = 0
    by: dict[str, int] = field(default_factory=dict)
    best: float = 0.0
    point: str = ""
    pruned: int = 0


def missing() -> str:
    """What the search needs and is not here, in words; nothing if all is."""
    if not (EXAMPLES / "examples" / "sms_search" / "search.py").is_file():
        return "its scripts are in examples/sms_search of the sources"
    lacks = [name for name in ("torch", "scipy") if importlib.util.find_spec(name) is None]
    if lacks:
        return f"no {' and '.join(lacks)} here: pip install 'entrepot[torch,study]' brings it"
    return ""


def search(parts: Parts, place: Place, watch: SearchingWatcher, path: Path) -> Searched:
    """Have it happen: a broker, two stages of a model, and two workers that share a folder.

    :param path: where the messages are.
    :raises DemoFailed: a trial did not run exactly once, or not with its point, or none was good.
    """
    left_out = missing()
    if left_out:
        return Searched(left_out)
    watch.searching()
    broker, backend = start_broker(parts, place, watch)
    at = place.home, path
    stages = [_script(parts, stage, at, "--backend", backend) for stage in ("clean", "embed")]
    workers = [
        _script(
            *(parts, "search", at, "--store", place.store, "--frontend", place.frontend),
            *("--me", me, "--trials", str(TRIALS), "--epochs", str(EPOCHS)),
            *("--messages", str(MESSAGES)),
            title=me,
        )
        for me in WORKERS
    ]
    for part, does in zip(
        [*stages, *workers],
        ("text to numbers", "an embedding, trained there", *["trials, with the head here"] * 2),
        strict=True,
    ):
        watch.part(part.title, part.pid, does)
    _wait(place.store, workers, watch)
    found = _verified(place.store)
    with Client(place.frontend, ShmMedium.create(1, 1)) as client:
        parts.drain(client.drain, stages, broker)
    return found


def _script(
    parts: Parts, module: str, at: tuple[Path, Path], *arguments: str, title: str = ""
) -> Part:
    """``at`` are where it may leave files, as torch does, and where the messages are."""
    home, path = at
    return parts.start(
        title or module,
        *(str(EXAMPLES), f"examples.sms_search.{module}", *arguments),
        environment={sms.VARIABLE: str(path), "TMPDIR": str(home)},
        module=script.__name__,
    )


def _wait(folder: str, workers: list[Part], watch: Watcher) -> None:
    """Until each worker has ended by itself; what is finished is told meanwhile."""
    give_up = time.monotonic() + SEARCH_S
    with watch.stage("a search, by two workers", TRIALS, "trials") as done:
        while not all(each.ended(LOOK_S) for each in workers):
            for each in workers:
                if not each.running and not each.ended(0):
                    raise DemoFailed(
                        f"{each.title} ended with {each.process.returncode}; {each.log_end()}"
                    )
            if time.monotonic() > give_up:
                raise DemoFailed(f"the search was not over in {SEARCH_S:g} s")
            done(sum(1 for each in _attempts(folder) if each.finished))
        done(TRIALS)


def _attempts(folder: str) -> list[Attempt]:
    from entrepot.store import Store
    from entrepot.study.looking import trials

    if not (Path(folder) / "store.json").exists():
        return []
    with Store.open(folder, read_only=True) as store:
        return trials(store, study=NAME)


def _verified(folder: str) -> Searched:
    """What is in the store, if it is as it has to be."""
    attempts = _attempts(folder)
    numbers = [(each.trial, each.attempt) for each in attempts]
    if numbers != [(number, 0) for number in range(TRIALS)]:
        raise DemoFailed(f"of {TRIALS} trials these ran, by their attempts: {numbers}")
    unfinished = [each.trial for each in attempts if each.state not in ("done", "pruned")]
    if unfinished:
        raise DemoFailed(f"trials {unfinished} are neither done nor pruned")
    expected = _points(folder)
    if [each.meta.point for each in attempts] != expected:
        raise DemoFailed("the points are not those that one machine alone would have tried")
    done = [each for each in attempts if each.state == "done"]
    best = min(done, key=lambda each: float(each.meta.score))
    if float(best.meta.score) > GOOD:
        raise DemoFailed(f"the best loss is {best.meta.score}, at {best.meta.point}")
    return Searched(
        trials=TRIALS,
        by=dict(sorted(Counter(each.meta.who for each in attempts).items())),
        best=float(best.meta.score),
        point=best.meta.point,
        pruned=len(attempts) - len(done),
    )


def _points(folder: str) -> list[str]:
    """What the sampler gives for each number, in the space that the workers wrote down."""
    from entrepot.store import Store
    from entrepot.study import Sampler, Space

    with Store.open(folder, read_only=True) as store:
        (record,) = (one for one in store.scan(f"{NAME}/space/") if "space" in one.meta)
    said: Any = json.loads(record.meta["space"])
    space, sampler = Space.from_dict(said), Sampler.sobol(0)
    return [str(sampler.ask(space, number)) for number in range(TRIALS)]
