"""Processes that a test starts, asks and kills: ``python -m tests.integration.study.parties``."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from entrepot.errors import RoundIncomplete
from entrepot.federation import gather
from entrepot.federation.gather import Round
from entrepot.store import Store
from entrepot.study import Sampler, Space, Study, abandoned, report, take
from tests.peer.lines import commands, serve

SPACE = Space().real("lr", 1e-4, 1.0, log=True)


class Party:
    """A machine of a study, and a client of a federated run that learns its number."""

    def open(self, url: str) -> None:
        self._store = Store.open(url, durable=False if url.startswith("file:") else None)

    def rounds(self, mine: int, clients: int, rounds: int, **more: Any) -> float:
        """Each round leaves with the mean of all, and goes on from one more."""
        value = float(mine)
        for number in range(rounds):
            state = {"body": {"0": np.full(4, value)}}
            mean = gather(
                self._store,
                state,
                run="fed",
                round=number,
                clients=clients,
                mine=mine,
                **more,
            )
            value = float(mean["body"]["0"][0]) + 1.0
        return value

    def alone(self, mine: int, clients: int, within: float, come: int) -> dict[str, Any]:
        """A round that is never complete: what is said of it. Its time begins when so many have
        come: on a busy machine some come late."""
        began: list[float] = []

        def clock() -> float:
            if not began and len(self._store.scan("fed/round/0/client-")) == come:
                began.append(time.monotonic())
            return time.monotonic() - began[0] if began else 0.0

        try:
            self.rounds(mine, clients, 1, within=within, clock=clock)
        except RoundIncomplete as error:
            return {"said": str(error), "missing": error.missing}
        raise AssertionError("it was complete")

    def hang_averaging(self, mine: int, clients: int) -> None:
        """Win the averaging, and never come to its end."""
        Round._means = lambda self, took: time.sleep(600)  # type: ignore[assignment,method-assign,return-value]
        self.rounds(mine, clients, 1)

    # --- a study ------------------------------------------------------------------------

    def wall(self) -> float:
        """What this machine takes for the time."""
        return time.time()

    def take(self, trial: int, me: str) -> bool:
        return take(self._store, SPACE.point(lr=0.01), study="spam", trial=trial, me=me, goal="min")

    def report(self, trial: int, me: str, state: str) -> None:
        point = SPACE.point(lr=0.01)
        report(self._store, point, [0.5], study="spam", trial=trial, me=me, state=state)

    def work(self, me: str, budget: int, stale: float, hangs_at: int = -1) -> int:
        """The loop, to its end; how many trials it ran. At one of them it may hang."""
        made = Study(self._store, "spam", SPACE, Sampler.random(0), me=me, stale=stale)
        ran = 0
        for trial in made.work(trials=budget):
            with trial:
                trial.report(1.0)
                if trial.number == hangs_at:
                    time.sleep(600)
                trial.report(0.5)
                ran += 1
        return ran

    def abandoned(self, stale: float) -> list[tuple[int, float]]:
        found = abandoned(self._store, study="spam", stale=stale)
        return [(one.trial, one.silent_s) for one in found]

    def close(self) -> None:
        self._store.close()


if __name__ == "__main__":
    serve(commands(Party()))
