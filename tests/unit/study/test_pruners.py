"""Curves, their tails, and verdicts."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from entrepot.errors import ConfigurationError
from entrepot.study import Pruner
from entrepot.study.curves import RUNGS, Tail, best_so_far, longer, tail
from entrepot.study.goals import Direction
from entrepot.study.pruners import quantile

GOALS: st.SearchStrategy[Direction] = st.sampled_from(["min", "max"])
NUMBERS = st.floats(allow_nan=False)
CURVES = st.lists(NUMBERS, max_size=80)
WITH_NAN = st.lists(st.floats(), max_size=80)

PRUNERS = [
    Pruner.median(),
    Pruner.percentile(25.0, warmup=2),
    Pruner.percentile(0, startup=3),
    Pruner.percentile(100),
    Pruner.threshold(lower=-1.0, upper=1.0),
    Pruner.patience(3),
    Pruner.diverged(),
    Pruner.asha(),
    Pruner.asha(eta=2, first=3),
]


# --- tails ------------------------------------------------------------------------------


def test_rungs_are_64_numbers_each_at_first_then_a_third_further() -> None:
    assert len(RUNGS) == 64
    assert RUNGS[:24] == tuple(range(1, 25))
    assert all(1.25 < later / rung < 1.34 for rung, later in itertools.pairwise(RUNGS[24:]))
    assert RUNGS[-1] > 1_000_000


@given(WITH_NAN, GOALS)
def test_a_tail_has_the_best_so_far_of_the_curve_at_every_rung(
    curve: list[float], goal: Direction
) -> None:
    made = tail(curve, goal)
    assert made.length == len(curve)
    assert len(made.best) <= 64
    for rung in range(1, 82):
        reached = [r for r in RUNGS if r <= rung]
        if rung > len(curve):
            assert made.at(rung) is None
            continue
        real = [number for number in curve[: reached[-1]] if not math.isnan(number)]
        worst = math.inf if goal == "min" else -math.inf
        wanted = (min if goal == "min" else max)(real, default=worst)
        assert made.at(rung) == wanted
    assert made.at(0) is None


@given(WITH_NAN, GOALS)
def test_a_tail_grows_report_by_report(curve: list[float], goal: Direction) -> None:
    grown = Tail(0, (), None)
    for report in curve:
        grown = longer(grown, report, goal)
    assert grown == tail(curve, goal)


@given(WITH_NAN, GOALS)
def test_a_tails_text_reads_back(curve: list[float], goal: Direction) -> None:
    made = tail(curve, goal)
    assert Tail.read(str(made)) == made


@pytest.mark.parametrize(
    "said", ["", "x", "1", "2:0.5:0.5", "1:0.5:0.5,0.4", "-1:1:1", "0:1:", "1:a:1"]
)
def test_what_is_no_tail_is_refused(said: str) -> None:
    with pytest.raises(ConfigurationError, match="not the tail"):
        Tail.read(said)


def test_a_long_curve_has_a_short_tail() -> None:
    made = tail([1.0 / n for n in range(1, 50_001)], "min")
    assert len(made.best) < 52
    assert made.at(50_000) == 1.0 / max(r for r in RUNGS if r <= 50_000)
    assert made.last == 1.0 / 50_000
    assert len(str(made)) < 1_500


# --- verdicts that every pruner gives ---------------------------------------------------


@pytest.mark.parametrize("pruner", PRUNERS, ids=repr)
@given(before=CURVES, after=WITH_NAN, goal=GOALS)
def test_nan_always_prunes(
    pruner: Pruner, before: list[float], after: list[float], goal: Direction
) -> None:
    curve = [*before, math.nan, *after]
    at = len(before) + 1
    assert pruner.verdict(curve, [], goal) == f"report {at} is NaN"


@pytest.mark.parametrize("pruner", PRUNERS, ids=repr)
def test_nothing_is_said_before_the_first_report(pruner: Pruner) -> None:
    assert pruner.verdict([], [[1.0], [2.0]], "min") is None


@pytest.mark.parametrize("pruner", PRUNERS, ids=repr)
@given(curve=CURVES, others=st.lists(WITH_NAN, max_size=6), goal=GOALS)
def test_a_verdict_is_a_sentence_or_none_and_the_same_for_tails(
    pruner: Pruner, curve: list[float], others: list[list[float]], goal: Direction
) -> None:
    verdict = pruner.verdict(curve, others, goal)
    assert verdict is None or verdict.isprintable()
    assert pruner.verdict(curve, [tail(other, goal) for other in others], goal) == verdict


@pytest.mark.parametrize("pruner", PRUNERS, ids=repr)
@given(curve=CURVES, others=st.lists(CURVES, max_size=6))
def test_making_large_is_making_small_upside_down(
    pruner: Pruner, curve: list[float], others: list[list[float]]
) -> None:
    mirrored = pruner
    if pruner == Pruner.threshold(lower=-1.0, upper=1.0):
        mirrored = Pruner.threshold(lower=-1.0, upper=1.0)

    def stops(sign: float, goal: Direction) -> bool:
        turned = [[sign * number for number in other] for other in others]
        return mirrored.verdict([sign * n for n in curve], turned, goal) is not None

    assert stops(1.0, "min") is stops(-1.0, "max")


@pytest.mark.parametrize(
    "report", ["0.5", None, True, [1.0], torch.ones(2), {"loss": 1.0}, 10**400, 1j]
)
@pytest.mark.parametrize("pruner", PRUNERS[:1], ids=repr)
def test_a_report_that_is_no_number_is_refused(pruner: Pruner, report: Any) -> None:
    with pytest.raises(ConfigurationError, match="a report is"):
        pruner.verdict([1.0, report], [], "min")


def test_a_report_may_be_a_tensor_or_an_array_of_one_number() -> None:
    reports: list[Any] = [torch.tensor(0.5), np.float32(0.25), 1]
    assert Pruner.median().verdict(reports, [[0.1, 0.1, 0.1]], "min") is not None
    assert tail(reports, "max") == Tail(3, (0.5, 0.5, 1.0), 1.0)


def test_the_goal_is_the_callers_or_the_pruners_and_they_agree() -> None:
    others = [[1.0], [2.0], [3.0]]
    assert Pruner.median(goal="max").verdict([1.5], others) is not None
    assert Pruner.median().verdict([1.5], others, "max") is not None
    assert Pruner.median(goal="max").verdict([1.5], others, "max") is not None
    with pytest.raises(ConfigurationError, match="nobody said"):
        Pruner.median().verdict([1.5], others)
    with pytest.raises(ConfigurationError, match="made for 'max', and the goal is 'min'"):
        Pruner.median(goal="max").verdict([1.5], others, "min")
    with pytest.raises(ConfigurationError, match="judges one number"):
        Pruner.median().verdict([1.5], others, {"loss": "min", "size": "min"})
    assert Pruner.threshold(upper=1.0).verdict([1.5]) is not None
    assert Pruner.diverged().verdict([math.inf, 1e30, -math.inf]) is None


# --- percentile -------------------------------------------------------------------------


def stopped_by(pruner: Pruner, reports: Sequence[float], others: Sequence[Sequence[float]]) -> bool:
    return pruner.verdict(reports, others, "min") is not None


def test_the_median_of_four_is_between_the_middle_two() -> None:
    others = [[1.0], [2.0], [3.0], [4.0]]
    assert not stopped_by(Pruner.median(), [2.5], others)
    assert stopped_by(Pruner.median(), [2.5000001], others)
    assert Pruner.median().verdict([9.0], others, "min") == (
        "9 is the best of 1 reports; 50 % of the 4 others had 2.5 or better by then"
    )


def test_a_tie_goes_on() -> None:
    assert not stopped_by(Pruner.median(), [2.0], [[2.0], [2.0]])


def test_what_counts_is_the_best_so_far_on_both_sides() -> None:
    assert not stopped_by(Pruner.median(), [1.0, 9.0], [[2.0, 2.0]])
    assert stopped_by(Pruner.median(), [2.0, 2.0], [[1.0, 9.0]])


def test_a_curve_counts_up_to_where_it_stopped() -> None:
    stopped, others = [0.5, 0.5], [[2.0] * 4, [3.0] * 4]
    assert stopped_by(Pruner.median(), [2.5, 2.5], [stopped, *others])  # of 0.5, 2 and 3
    assert not stopped_by(Pruner.median(), [2.5, 2.5, 2.5], [stopped, *others])  # of 2 and 3


def test_warmup_and_startup_hold_verdicts_back() -> None:
    others = [[1.0] * 9, [1.0] * 9]
    assert not stopped_by(Pruner.median(warmup=3), [5.0] * 3, others)
    assert stopped_by(Pruner.median(warmup=3), [5.0] * 4, others)
    assert not stopped_by(Pruner.median(startup=3), [5.0], others)
    assert stopped_by(Pruner.median(startup=2), [5.0], others)
    assert not stopped_by(Pruner.median(startup=2), [5.0] * 3, [[1.0] * 9, [1.0] * 2])
    assert not stopped_by(Pruner.median(), [5.0], [])
    assert stopped_by(Pruner.median(warmup=9), [math.nan], [])


def test_percent_is_the_share_that_goes_on() -> None:
    others = [[float(n)] for n in range(1, 12)]
    kept = {
        percent: [
            n for n in range(1, 12) if not stopped_by(Pruner.percentile(percent), [n], others)
        ]
        for percent in (0, 10, 50, 100)
    }
    assert kept == {0: [1], 10: [1, 2], 50: [1, 2, 3, 4, 5, 6], 100: list(range(1, 12))}


def test_infinities_are_numbers_to_a_median() -> None:
    others = [[math.inf], [math.inf], [1.0]]
    assert not stopped_by(Pruner.median(), [5.0], others)
    assert stopped_by(Pruner.median(), [math.inf], [[1.0], [2.0], [math.inf]])


@given(st.lists(NUMBERS.filter(math.isfinite), min_size=1, max_size=20), st.floats(0, 1))
def test_a_quantile_is_what_numpy_says(values: list[float], share: float) -> None:
    values = [value / 4 for value in values]  # numpy overflows between the largest
    wanted = float(np.quantile(values, share))
    found = quantile(sorted(values), share)
    assert min(values) <= found <= max(values)
    assert math.isclose(found, wanted, rel_tol=1e-9, abs_tol=1e-9 * max(map(abs, values)))


@given(
    st.lists(NUMBERS, min_size=1, max_size=60),
    st.lists(st.lists(NUMBERS, min_size=1, max_size=60), min_size=1, max_size=5),
)
def test_tails_stop_at_a_rung_what_whole_curves_stop_and_between_rungs_nothing_more(
    curve: list[float], others: list[list[float]]
) -> None:
    reports = len(curve)
    reached = [best_so_far(other, "min")[reports - 1] for other in others if len(other) >= reports]
    finite = all(map(math.isfinite, reached))
    whole = bool(reached) and finite and min(curve) > _median(reached)
    by_tails = stopped_by(Pruner.median(), curve, others)
    if reports in RUNGS and finite:
        assert by_tails is whole
    elif finite:
        assert whole or not by_tails


def _median(values: list[float]) -> float:
    return quantile(sorted(values), 0.5)


def test_the_median_is_the_median() -> None:
    for values in ([3.0], [1.0, 2.0], [5.0, 1.0, 4.0], [1.0, 2.0, 3.0, 9.0]):
        assert _median(values) == statistics.median(values)


# --- threshold, patience ----------------------------------------------------------------


def test_thresholds_are_inclusive_and_say_which_was_crossed() -> None:
    both = Pruner.threshold(lower=0.0, upper=1.0)
    assert both.verdict([0.0]) is both.verdict([1.0]) is None
    assert both.verdict([0.5, 1.5]) == "report 2 is 1.5, above 1"
    assert both.verdict([-0.5]) == "report 1 is -0.5, below 0"
    assert both.verdict([1.5, 0.5]) is None
    assert Pruner.threshold(upper=1.0).verdict([-1e30]) is None
    assert Pruner.threshold(upper=1.0).verdict([math.inf]) is not None


def test_patience_counts_from_the_last_improvement() -> None:
    patient = Pruner.patience(2, goal="min")
    assert patient.verdict([3.0]) is None
    assert patient.verdict([3.0, 4.0]) is None
    assert patient.verdict([3.0, 4.0, 5.0]) == "nothing better than 3, report 1, in 2 reports"
    assert patient.verdict([3.0, 4.0, 2.0, 5.0]) is None
    assert patient.verdict([3.0, 3.0, 3.0]) is not None  # as good is not better
    assert Pruner.patience(2, goal="max").verdict([3.0, 4.0, 5.0]) is None
    assert Pruner.patience(2, 0.5, goal="min").verdict([3.0, 2.6, 2.5]) is not None
    assert Pruner.patience(2, 0.5, goal="min").verdict([3.0, 2.6, 2.4]) is None


def test_patience_looks_at_no_other_trial() -> None:
    assert Pruner.patience(9, goal="min").verdict([5.0], [[1.0]] * 9) is None


# --- asha -------------------------------------------------------------------------------


def test_asha_judges_at_its_rungs_and_keeps_the_best_share() -> None:
    asha = Pruner.asha(eta=2, first=2)
    others = [[float(n)] * 8 for n in range(1, 8)]  # 1 to 7
    assert not stopped_by(asha, [9.0], others)
    assert not stopped_by(asha, [3.5] * 2, others)  # place 4 of 8
    assert stopped_by(asha, [4.5] * 2, others)  # place 5 of 8
    assert not stopped_by(asha, [4.5] * 3, others)
    assert stopped_by(asha, [4.5] * 4, others)
    assert not stopped_by(asha, [9.0] * 4, [[1.0] * 3] * 7)  # nobody else came as far
    assert asha.verdict([9.0] * 2, others, "min") == (
        "9 is place 8 of the 8 that made 2 reports; the best 4 go on"
    )


def test_who_comes_first_goes_on_and_ties_do_too() -> None:
    asha = Pruner.asha(eta=4)
    assert not stopped_by(asha, [9.0], [])
    assert not stopped_by(asha, [1.0], [[1.0], [1.0], [1.0]])
    assert stopped_by(asha, [1.0], [[0.5], [2.0]])


def test_of_many_in_any_order_about_one_in_eta_passes_a_rung() -> None:
    values = [float(n * 7919 % 1009) for n in range(400)]
    passed = [
        not stopped_by(Pruner.asha(eta=4), [value], [[other] for other in values[:number]])
        for number, value in enumerate(values)
    ]
    assert 0.2 < sum(passed) / len(passed) < 0.35


# --- refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "make"),
    [
        ("percent is 101", lambda: Pruner.percentile(101)),
        ("percent is -1", lambda: Pruner.percentile(-1)),
        ("percent is nan", lambda: Pruner.percentile(math.nan)),
        ("percent is '50'", lambda: Pruner.percentile("50")),  # type: ignore[arg-type]
        ("warmup is -1", lambda: Pruner.median(warmup=-1)),
        ("startup is 0", lambda: Pruner.median(startup=0)),
        ("startup is 1.5", lambda: Pruner.median(startup=1.5)),  # type: ignore[arg-type]
        ("goal is 'best'", lambda: Pruner.median(goal="best")),  # type: ignore[arg-type]
        ("a lower bound, an upper one", lambda: Pruner.threshold()),
        ("above upper", lambda: Pruner.threshold(2.0, 1.0)),
        ("upper is nan", lambda: Pruner.threshold(upper=math.nan)),
        ("steps is 0", lambda: Pruner.patience(0)),
        ("min_delta is -1", lambda: Pruner.patience(1, -1)),
        ("eta is 1", lambda: Pruner.asha(eta=1)),
        ("first is 0", lambda: Pruner.asha(first=0)),
    ],
)
def test_what_cannot_be_is_refused_where_it_is_typed(said: str, make: Callable[[], Any]) -> None:
    with pytest.raises(ConfigurationError) as refused:
        make()
    assert said in str(refused.value)


def test_pruners_are_equal_when_they_judge_the_same() -> None:
    assert Pruner.median() == Pruner.percentile(50) != Pruner.percentile(25)
    assert len({Pruner.asha(), Pruner.asha(4), Pruner.asha(3)}) == 2
