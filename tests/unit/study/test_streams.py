"""Streams: no draw repeats, none depends on another, and none changes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from entrepot.study import streams

SEEDS = st.integers(-(2**70), 2**70)
TRIALS = st.integers(0, 2**40)


def repeats(draws: Iterator[int], count: int) -> int:
    """How many of ``count`` draws were drawn before."""
    drawn = np.fromiter(draws, np.uint64, count)
    return count - len(np.unique(drawn))


def test_no_draw_repeats_over_a_hundred_thousand_trials_and_sixteen_seeds() -> None:
    trials, seeds = 100_000, 16
    draws = (
        streams.words(1, seed, trial, "random", "lr")[0]
        for seed in range(seeds)
        for trial in range(trials)
    )
    assert repeats(draws, trials * seeds) == 0


def test_nor_over_knobs_purposes_and_places() -> None:
    draws = (
        word
        for seed in range(4)
        for trial in range(2_000)
        for purpose in ("random", "tpe")
        for knob in ("lr", "batch", "opt")
        for word in streams.words(4, seed, trial, purpose, knob)
    )
    assert repeats(draws, 4 * 2_000 * 2 * 3 * 4) == 0


def test_the_count_finds_streams_that_overlap() -> None:
    # Starting a generator at a multiple of the step that it takes: knob j of trial t is knob
    # j - 1 of trial t + 1.
    step, mask = 0x9E3779B97F4A7C15, 2**64 - 1

    def overlapping(trial: int, knob: int) -> int:
        return (trial * step + (knob + 1) * step) & mask

    draws = (overlapping(trial, knob) for trial in range(2_000) for knob in range(4))
    assert repeats(draws, 8_000) == 5_997


@given(SEEDS, TRIALS, st.sampled_from(["random", "tpe"]), st.text(max_size=5))
def test_a_stream_is_a_function_of_where_it_is_used(
    seed: int, trial: int, purpose: str, knob: str
) -> None:
    knob = knob.encode(errors="replace").decode()
    once = streams.words(5, seed, trial, purpose, knob)
    assert streams.words(5, seed, trial, purpose, knob) == once
    assert streams.words(3, seed, trial, purpose, knob) == once[:3]
    assert streams.units(5, seed, trial, purpose, knob) == [streams.unit(word) for word in once]
    others = [
        streams.words(5, seed + 1, trial, purpose, knob),
        streams.words(5, seed, trial + 1, purpose, knob),
        streams.words(5, seed, trial, purpose + "2", knob),
        streams.words(5, seed, trial, purpose, knob + "2"),
    ]
    assert not set(once) & set(itertools.chain(*others))


def test_streams_never_change() -> None:
    # A study that was begun by one release is gone on with by another.
    assert streams.words(2, 7, 11, "random", "lr") == (11770565850465029009, 4698774974304719762)
    assert streams.unit(2**64 - 1) < 1.0
    assert streams.unit(0) == 0.0


def test_no_two_places_share_a_stream_because_of_how_they_are_written() -> None:
    assert streams.words(1, 1, 11, "p", "k") != streams.words(1, 11, 1, "p", "k")
    assert streams.words(1, 1, 1, "p", "q\nk") != streams.words(1, 1, 1, "p\nq", "k")[:0]


@pytest.mark.parametrize(
    ("what", "statistic"),
    [
        ("means", lambda u: u.mean(axis=0)),
        ("neighbours", lambda u: (u[1:] * u[:-1]).mean(axis=0) * 2 - u.mean(axis=0) + 0.5),
    ],
)
def test_units_are_even_and_neighbouring_trials_say_nothing_of_each_other(
    what: str, statistic: Callable[[np.ndarray], np.ndarray]
) -> None:
    drawn = np.array([streams.units(4, 0, trial, what) for trial in range(10_000)])
    # Four standard deviations of a mean of 10,000 evenly distributed numbers are 0.0115.
    assert np.abs(statistic(drawn) - 0.5).max() < 0.012


@given(st.integers(1, 300), SEEDS, TRIALS)
def test_a_permutation_has_each_number_once(size: int, seed: int, trial: int) -> None:
    order = streams.permutation(size, seed, trial, "p")
    assert sorted(order) == list(range(size))


def test_every_permutation_is_as_likely() -> None:
    drawn = [tuple(streams.permutation(3, 0, trial, "p")) for trial in range(6_000)]
    counts = [drawn.count(order) for order in itertools.permutations(range(3))]
    assert min(counts) > 880  # 1,000 each, less four standard deviations
