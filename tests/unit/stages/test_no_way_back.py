"""Answers that cannot be brought back to who asked: the market gives such an order up at once."""

from __future__ import annotations

from typing import Any

import pytest

from entrepot.errors import MediumError, StageUnavailable
from entrepot.market.broker import Broker
from entrepot.market.client import Client
from entrepot.market.supplier import Work
from entrepot.stages import StageServer
from entrepot.stages.calling import PAUSE_S, Caller
from tests.peer.waiting import LIMIT_S
from tests.unit.stages.conftest import Serve


class Lonely(StageServer):
    """One that finds no way back while ``lost``.

    :ivar tried: how often it was asked.
    """

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker.backend, "clean", str)
        self.lost = True
        self.tried = 0

    def _fill(self, work: Work, out: memoryview) -> list[Any]:
        self.tried += 1
        if self.lost:
            raise MediumError("the name client-1 is not known here")
        return super()._fill(work, out)


@pytest.fixture
def lonely(broker: Broker, serve: Serve) -> Lonely:
    server = Lonely(broker)
    serve(server)
    return server


def test_a_call_is_made_again_when_there_may_be_a_way(client: Client, lonely: Lonely) -> None:
    pauses: list[float] = []

    def found(pause_s: float) -> None:
        pauses.append(pause_s)
        lonely.lost = False

    described = Caller(client, "clean", timeout_s=LIMIT_S, sleep=found).describe()
    assert described.host == lonely.name
    assert pauses == [PAUSE_S]
    assert lonely.tried == 6  # the market's five tries of the first order, and one of the second
    assert client.stats()["orders"]["failed"] == 1


def test_a_call_without_a_way_ends_with_what_was_in_it(client: Client, lonely: Lonely) -> None:
    caller = Caller(client, "clean", timeout_s=LIMIT_S, sleep=lambda _: None)
    with pytest.raises(StageUnavailable, match="the name client-1 is not known here"):
        caller.describe()
    assert lonely.tried == 10


def test_there_is_no_pause_that_ends_too_late(client: Client, lonely: Lonely) -> None:
    pauses: list[float] = []
    times = iter([0.0, 0.0, 0.0])  # until it has the first order's end

    def clock() -> float:
        return next(times, LIMIT_S - PAUSE_S)

    caller = Caller(client, "clean", timeout_s=LIMIT_S, clock=clock, sleep=pauses.append)
    with pytest.raises(StageUnavailable, match="the name client-1 is not known here"):
        caller.describe()
    assert (pauses, lonely.tried) == ([], 5)


def test_who_was_stopped_for_longer_than_a_call_may_take_is_told_of_that(client: Client) -> None:
    times = iter([0.0, 0.0])  # of its beginning, and of its first order
    caller = Caller(client, "nobody", timeout_s=5, clock=lambda: next(times, 100.0))
    with pytest.raises(StageUnavailable, match="nobody answered for stage 'nobody' within 5 s"):
        caller.describe()
    assert client.stats()["orders"]["placed"] == 1
