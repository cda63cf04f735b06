"""Names of strangers as labels: short, few, and each once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from entrepot.sidecar.labels import LONGEST, OTHER, cut, largest

NAMES = st.text(max_size=300)
FIGURES = st.lists(
    st.tuples(NAMES | st.just(OTHER), st.fixed_dictionaries({"queued": st.integers(0, 9)})),
    max_size=30,
)


@given(NAMES, NAMES)
def test_names_are_short_and_two_stay_two(one: str, other: str) -> None:
    assert len(cut(one)) <= LONGEST
    assert (cut(one) == cut(other)) == (one == other)


def test_a_long_name_keeps_its_beginning() -> None:
    said = cut("x" * 500)
    assert said.startswith("x" * 100)
    assert len(said) == LONGEST
    assert said != cut("x" * 501)


@given(FIGURES, st.integers(1, 5))
def test_each_stands_there_once_and_nothing_is_lost(
    figures: list[tuple[str, dict[str, int]]], most: int
) -> None:
    kept = largest(figures, "queued", most)
    names = [name for name, _ in kept]
    assert len(names) == len(set(names))
    assert len(set(names) - {OTHER}) <= most
    total = sum(figure["queued"] for _, figure in figures)
    assert sum(figure["queued"] for _, figure in kept) == total


def test_the_largest_are_kept() -> None:
    figures = [(f"p{number}", {"queued": number}) for number in range(10)]
    assert largest(figures, "queued", 2) == [
        ("p9", {"queued": 9}),
        ("p8", {"queued": 8}),
        (OTHER, {"queued": 28}),
    ]
