"""The last minutes, and no more."""

from __future__ import annotations

from entrepot.sidecar.recent import Recent
from tests.unit.sidecar.figures import figures


def test_what_is_old_is_forgotten_and_memory_is_bounded() -> None:
    recent = Recent(60.0, 1.0)
    for second in range(1_000):
        recent.note(float(second), figures(queued=second))
    kept = recent.samples(999.0)
    assert [each.queued for each in kept] == list(range(940, 1_000))
    assert len(recent._samples) == 61


def test_answers_that_come_quickly_are_one_sample() -> None:
    recent = Recent(60.0, 1.0)
    for tenth in range(100):
        recent.note(tenth / 10, figures(queued=tenth))
    assert len(recent.samples(10.0)) <= 20
    assert recent.samples(10.0)[-1].queued == 99


def test_a_clock_that_is_set_back_starts_anew() -> None:
    recent = Recent(60.0, 1.0)
    recent.note(1_000.0, figures())
    recent.note(10.0, figures(queued=3))
    assert [each.queued for each in recent.samples(11.0)] == [3]


def test_the_rate_is_that_of_the_last_half_minute() -> None:
    recent = Recent(900.0, 1.0)
    for second in range(100):
        recent.note(float(second), figures(fulfilled=second * 10 if second > 50 else 0))
    assert recent.per_s(99.0) == 10.0


def test_a_broker_that_was_started_anew_is_no_negative_rate() -> None:
    recent = Recent(900.0, 1.0)
    recent.note(0.0, figures(fulfilled=1_000))
    recent.note(1.0, figures(fulfilled=5))
    assert recent.per_s(1.0) == 0.0
    assert Recent(900.0, 1.0).per_s(0.0) == 0.0
