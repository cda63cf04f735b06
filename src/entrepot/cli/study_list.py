"""``entrepot study list``."""

from __future__ import annotations

import time
from collections import Counter

from entrepot.cli import output
from entrepot.cli.options import Json
from entrepot.cli.study_reading import (
    NAME_CHARS,
    Url,
    best_line,
    in_states,
    said_row,
    studies_in,
    tell_unreadable,
    unreadable,
)
from entrepot.study.plain import plain


def command(url: Url, json: Json = False) -> None:
    """List the studies of a store, with their states and their best.

    \b
    Example:
      entrepot study list /mnt/shared
    """
    from entrepot.store import Store
    from entrepot.study.table import leaders, table
    from entrepot.study.trials import Attempt, attempt_of, speaking

    with Store.open(url, read_only=True) as store:
        studies = studies_in(store.scan())
        strangers = 0
        for name, records in studies.items():
            by_trial: dict[int, list[Attempt]] = {}
            for record in records:
                attempt = attempt_of(record, name)
                if attempt is None:
                    strangers += 1
                    continue
                by_trial.setdefault(attempt.trial, []).append(attempt)
            spoken = [one for each in by_trial.values() if (one := speaking(each))]
            states = Counter(one.state for one in spoken)
            newest = max((one.when for one in spoken), default=None)
            goal, best = leaders(spoken)
            made = table(best, goal)
            if json:
                output.emit(
                    "study",
                    name=name,
                    trials=len(spoken),
                    states=states,
                    goal=goal,
                    best=[said_row(row) for row in made.best],
                    newest=plain(newest),
                )
                continue
            output.say(f"{output.shown(name, NAME_CHARS)}: {in_states(states) or 'no trials'}")
            if line := best_line(made):
                output.say(f"  best {line}")
            if newest is not None:
                at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(newest))
                output.say(f"  heard of last at {at}")
        if json:
            output.emit("studies", studies=len(studies), unreadable=unreadable(store))
        elif not studies:
            output.say(f"no studies are in {store.url}")
        tell_unreadable(store, strangers)
