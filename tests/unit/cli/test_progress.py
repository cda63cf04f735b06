"""Why nothing comes is asked after a moment, and said when it is something else than before."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest

from entrepot.cli import progress as module
from entrepot.cli.progress import BUSY, NOBODY, progress, why_nothing
from entrepot.cli.tally import Tally
from entrepot.errors import BrokerUnavailable
from entrepot.market.client import Client
from tests.peer.waiting import until


def stats(*products: tuple[str, int]) -> dict[str, Any]:
    rows: list[dict[str, Any]] = [
        {"product": name, "unservable": unservable} for name, unservable in products
    ]
    return {"products": [*rows, {"product": None, "others": 3, "unservable": 7}]}


def test_what_the_brokers_figures_say() -> None:
    assert why_nothing(stats(("x", 2), ("y", 0)), "x") == NOBODY
    assert why_nothing(stats(("x", 2), ("y", 0)), "y") == BUSY
    assert why_nothing(stats(("x", 0), ("x", 1)), "x") == NOBODY, "under two contracts"
    assert why_nothing(stats(("x", 2)), "z") is None, "it is none of the busiest, and not known"


class Broker:
    """In place of a client: answers what the test says next, as long as there is something."""

    def __init__(self, *answers: dict[str, Any] | Exception) -> None:
        self.answers = list(answers)
        self.asked = 0

    def stats(self, timeout_s: float) -> dict[str, Any]:
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


@contextmanager
def watched(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tally]:
    monkeypatch.setattr(module, "HINT_AFTER_S", 0.001)
    monkeypatch.setattr(module, "HINT_AT_MOST_S", 0.002)
    tally = Tally("x", 10)
    with progress(tally, cast(Client, broker), bar=False):
        yield tally


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelno == logging.WARNING]


def test_that_nobody_makes_it_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broker = Broker(stats(("x", 1)))
    with watched(broker, monkeypatch):
        until(lambda: broker.asked > 5)
    assert said(caplog) == ["no supplier serves the product; waiting for one"]


def test_it_is_said_again_when_the_supplier_left_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broker = Broker(stats(("x", 1)), stats(("x", 0)), stats(("x", 1)))
    with watched(broker, monkeypatch):
        until(lambda: broker.asked > 5)
    assert len(said(caplog)) == 2


def test_a_broker_that_does_not_answer_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gone = BrokerUnavailable("tcp://127.0.0.1:9", 1.0, "asking")
    broker = Broker(gone, gone, stats(("x", 1)))
    with watched(broker, monkeypatch):
        until(lambda: said(caplog))
    assert broker.asked >= 3


def test_nothing_is_asked_while_products_come(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broker = Broker(stats(("x", 1)))
    monkeypatch.setattr(Tally, "came", property(lambda self: next(counter)), raising=False)
    counter = iter(range(10**9))
    monkeypatch.setattr(module, "HINT_AFTER_S", 0.001)
    tally = Tally.__new__(Tally)
    tally.product, tally.wanted = "x", 10**9
    looked = next(counter)
    with progress(tally, cast(Client, broker), bar=False):
        until(lambda: next(counter) > looked + 20)
    assert broker.asked == 0
    assert said(caplog) == []
