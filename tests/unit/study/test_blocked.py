"""No number is blocked for ever: not by a torn claim, and not by somebody else's file."""

from __future__ import annotations

import pytest

from entrepot.store.layout import key_of
from entrepot.store.memory import MemoryStore
from entrepot.study import Sampler, Space, Study, take

SPACE = Space().real("lr", 1e-4, 1.0, log=True)

TORN = b'{"name":"spam/tr'
FOREIGN = b"not a record\n"
FUTURE = b'{"name":"spam/trial/1/0","format":99,"more":1}\n'


class Time:
    """A clock that only sleeping moves, and that ends a loop which would never end."""

    def __init__(self) -> None:
        self.now = 1.8e9

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        assert self.now < 1.8e9 + 600, "it waits for ever"


def ran(store: MemoryStore, time: Time) -> list[int]:
    made = Study(
        store, "spam", SPACE, Sampler.random(0), me="m0", clock=time.clock, sleep=time.sleep
    )
    numbers = []
    for trial in made.work(trials=4):
        with trial:
            numbers.append(trial.number)
            trial.report(0.5)
    return numbers


def test_a_number_whose_claim_was_torn_is_had_after_the_grace() -> None:
    """As a claim without links leaves it when its process is killed."""
    time = Time()
    store = MemoryStore(wall=time.clock, torn_grace_s=60.0)
    store.plant(key_of("spam/trial/1/0"), TORN)
    assert ran(store, time) == [0, 2, 3, 1]
    assert 60.0 < time.now - 1.8e9 < 62.0


@pytest.mark.parametrize("data", [FOREIGN, FUTURE], ids=["foreign", "future"])
def test_a_number_that_has_somebody_elses_file_is_not_waited_for(data: bytes) -> None:
    time = Time()
    store = MemoryStore(wall=time.clock)
    store.plant(key_of("spam/trial/1/0"), data)
    assert ran(store, time) == [0, 2, 3]
    assert len(store.skipped.faults) == 1


@pytest.mark.parametrize(
    "data", [FOREIGN, FUTURE.replace(b"1/0", b"0/1")], ids=["foreign", "future"]
)
def test_a_trial_whose_next_attempt_is_somebody_elses_file_is_not_waited_for(data: bytes) -> None:
    time = Time()
    store = MemoryStore(wall=time.clock)
    assert take(store.view(), SPACE.point(lr=0.5), study="spam", trial=0, me="dead", goal="min")
    store.plant(key_of("spam/trial/0/1"), data)
    time.now += 3601
    assert ran(store, time) == [1, 2, 3]
