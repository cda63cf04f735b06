"""What docs/study.md says of made-up scores is what is measured."""

from __future__ import annotations

from bench.liars import TOLD, measured


def test_a_made_up_bad_score_backfires_and_none_keeps_away() -> None:
    for counts in measured(3).values():
        for nothing, none, made_up in zip(*(counts[told] for told in TOLD), strict=True):
            assert none <= nothing
            assert made_up > nothing + 20
