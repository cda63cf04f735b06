"""What tests of a round have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from entrepot.federation import gather
from entrepot.federation.fedavg import entries_of
from entrepot.federation.gather import Place, Round
from entrepot.federation.packing import pack_state
from entrepot.store import Store


class Time:
    """A clock that only sleeping moves.

    :ivar at: what happens when it has slept up to a moment.
    """

    def __init__(self) -> None:
        self.now = 100.0
        self.slept = 0
        self.at: dict[float, Callable[[], object]] = {}

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds
        self.slept += 1
        for moment in [moment for moment in self.at if self.now >= moment]:
            self.at.pop(moment)()

    @property
    def passed(self) -> float:
        return self.now - 100.0


def weights(value: float, n: int = 4) -> dict[str, Any]:
    return {"body": {"0": np.full(n, float(value))}}


def value_of(state: dict[str, Any]) -> float:
    """The one number of ``weights``."""
    found = state["body"]["0"]
    assert (found == found[0]).all()
    return float(found[0])


def meet(store: Store, value: float, *, mine: int = 0, clients: int = 1, **more: Any) -> float:
    """One client's round, with a clock of its own unless one is given."""
    time = more.pop("time", None) or Time()
    given = {"run": "fed", "round": 0, "clock": time.clock, "sleep": time.sleep, **more}
    return value_of(gather(store, weights(value), mine=mine, clients=clients, **given))


def put_in(
    store: Store,
    state: dict[str, Any],
    *,
    mine: int,
    clients: int,
    size: float | None = None,
    run: str = "fed",
    round: int = 0,
    job: str = "",
) -> None:
    """What a client does that is never heard of again."""
    place = Place(f"{run}/round/{round}/", f"round {round} of {run!r}", clients, mine, job)
    one = Round(store, place, resume=False, clock=lambda: 0.0)
    assert one.sends()
    one.send(pack_state(dict(entries_of(state, mine))), size)
