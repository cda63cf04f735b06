"""All trials as rows, the best first."""

from __future__ import annotations

import math
import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from entrepot.errors import ConfigurationError
from entrepot.store.memory import MemoryStore
from entrepot.study import Sampler, Space, Study
from entrepot.study.fronts import front
from entrepot.study.goals import dominates
from entrepot.study.table import Table, leaders, table, values_of
from entrepot.study.trials import Attempt, Said, write_goal, write_score
from tests.unit.study.spaces import spaces


def attempt(
    trial: int,
    state: str = "done",
    score: object = None,
    point: str = "lr=0.1",
    goal: object = "min",
    when: float = 0.0,
    **said: str,
) -> Attempt:
    meta = Said(
        state=state,
        point=point,
        score=write_score(score),  # type: ignore[arg-type]  # a test's
        goal=write_goal(goal),  # type: ignore[arg-type]  # a test's
        **said,
    )
    return Attempt(f"s/trial/{trial}/0", "", meta, when, "w", "n")


def numbers(made: Table) -> list[int]:
    return [row.trial for row in made.rows]


def test_the_best_is_first_and_what_is_not_done_is_shown() -> None:
    made = table(
        [
            attempt(0, score=0.5),
            attempt(1, "pruned", score=0.1),
            attempt(2, "running"),
            attempt(3, score=0.25),
            attempt(4, "failed"),
            attempt(5, "released"),
            attempt(6, "pruned"),
            attempt(7, score=0.25),
        ]
    )
    assert numbers(made) == [3, 7, 0, 1, 6, 2, 5, 4]
    assert [row.trial for row in made.best] == [3], "of equals the first"
    assert made.states == {"done": 3, "pruned": 2, "running": 1, "failed": 1, "released": 1}
    assert str(made).startswith("8 trials, 6 finished, 4 scored; best first (min)\n")


def test_a_goal_that_is_given_turns_the_order() -> None:
    attempts = [attempt(0, score=0.5), attempt(1, score=0.25)]
    assert numbers(table(attempts, "max")) == [0, 1]
    assert numbers(table(attempts)) == [1, 0]
    with pytest.raises(ConfigurationError, match="minimum"):
        table(attempts, "minimum")  # type: ignore[arg-type]  # what is refused


def test_without_a_goal_the_order_is_that_of_the_trials_and_it_says_so() -> None:
    made = table([attempt(1, score=0.1, goal=None), attempt(0, score=0.5, goal=None)])
    assert (numbers(made), made.best) == ([0, 1], [])
    assert "none of them says what better means" in str(made)


def test_the_newest_goal_counts() -> None:
    made = table([attempt(0, score=1, goal="max", when=2), attempt(1, score=2, when=1)])
    assert made.goal == "max"


def test_several_goals_have_their_front_first_and_marked() -> None:
    goal = {"loss": "min", "hits": "max"}
    scores = [(3, 1), (1, 1), (2, 5), (1, 1), (9, 9), (5, 0)]
    made = table(
        [
            attempt(n, score={"loss": loss, "hits": hits}, goal=goal)
            for n, (loss, hits) in enumerate(scores)
        ]
    )
    assert numbers(made) == [1, 3, 2, 4, 0, 5]
    assert [row.trial for row in made.rows if row.best] == [1, 3, 2, 4]
    assert made.scores == ("loss", "hits")
    assert "*" in str(made).splitlines()[2]
    assert made.influence("hits") == {"lr": 0.0}


def test_a_score_that_is_none_of_the_goals_is_counted_and_never_best() -> None:
    made = table([attempt(0, score={"a": 1.0}, goal={"a": "min"}), attempt(1, score=9.0, when=1)])
    assert (numbers(made), made.unfit) == ([1, 0], 1)
    assert [row.trial for row in made.best] == [1]


def test_nan_is_worst() -> None:
    made = table([attempt(0, "pruned", math.nan), attempt(1, "pruned", 5.0)])
    assert numbers(made) == [1, 0]


def test_every_knob_has_a_column_and_a_record_has_all_of_them() -> None:
    made = table(
        [
            attempt(0, score=1.0, point="opt=sgd,momentum=0.9"),
            attempt(1, score=2.0, point="opt=adam,eps=%2C"),
            attempt(2, score=3.0, point="free text", took="1.5", who="m0", tail="2:1.0:3.0,1.0"),
        ]
    )
    assert made.knobs == ("opt", "momentum", "eps")
    first, second, third = made.records()
    assert first.keys() == second.keys() == third.keys()
    assert (first["point.momentum"], first["point.eps"], second["point.eps"]) == (0.9, None, ",")
    assert (third["took_s"], third["reports"], third["who"]) == (1.5, 2, "m0")
    assert (third["point"], third["score"]) == ("free text", 3.0)


@given(st.data())
def test_what_a_point_of_a_space_says_is_read_without_the_space(data: st.DataObject) -> None:
    space = data.draw(spaces())
    point = space.at([data.draw(st.floats(0, 1)) for _ in space.knobs])
    found = values_of(str(point))
    assert list(found) == list(point)
    for name, value in point.items():
        if not isinstance(value, str):
            assert (found[name], type(found[name])) == (value, type(value))


@given(
    st.lists(
        st.tuples(st.sampled_from(["done", "pruned", "running"]), st.integers(0, 3)), max_size=12
    ),
    st.sampled_from(["min", "max", None]),
)
def test_the_leaders_are_those_that_the_table_marks(
    trials: list[tuple[str, int]], goal: str | None
) -> None:
    attempts = [attempt(n, state, score, goal=goal) for n, (state, score) in enumerate(trials)]
    made = table(attempts)
    assert leaders(attempts[::-1]) == (made.goal, [row.attempted for row in made.best])


def test_signs_that_move_a_cursor_are_not_printed() -> None:
    made = table([attempt(0, score=1.0, point="a%1B[2J=%1B[31m,b%0A=" + "x" * 500)])
    said = str(made)
    assert "\x1b" not in said
    assert len(said.splitlines()) == 3
    assert len(said) < 500


def test_a_long_table_is_cut_in_its_text_and_nowhere_else() -> None:
    made = table([attempt(n, score=float(n)) for n in range(200)])
    assert (len(made), len(made.records())) == (200, 200)
    assert str(made).endswith("... and 150 more")
    assert str(table([])) == "0 trials, 0 finished, 0 scored; " + table([]).order + (
        "\n  trial  state  score  reports"
    )


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(0, 3)), max_size=25))
@pytest.mark.parametrize("goals", [1, 2, 3])
def test_a_front_is_what_none_dominates(goals: int, losses: list[tuple[int, ...]]) -> None:
    found = [tuple(map(float, loss[:goals])) for loss in losses]
    wanted = [n for n, one in enumerate(found) if not any(dominates(rival, one) for rival in found)]
    assert front(found) == wanted


def test_a_front_of_many_is_found_in_no_time() -> None:
    draw = random.Random(0)
    losses = [(draw.random(), draw.random()) for _ in range(20_000)]
    began = time.process_time()
    assert 2 < len(front(losses)) < 100
    assert time.process_time() - began < 5


def test_a_study_shows_its_table_and_what_decides() -> None:
    space = Space().real("lr", 0.001, 1.0, log=True).real("other", 0, 1)
    study = Study(MemoryStore(), "spam", space, Sampler.sobol(0), goal="max")
    for trial in study.work(trials=16):
        with trial:
            lr = trial.point["lr"]
            assert isinstance(lr, float)
            trial.report(-lr)
    made = study.table()
    assert made.goal == "max"
    assert made.rows[0].trial == study.best().trial
    found = study.influence()
    assert list(found) == ["lr", "other"]
    assert found["lr"] == pytest.approx(1.0)
    assert found["other"] < 0.5
